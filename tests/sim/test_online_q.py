"""Q-learning online: against a plain loop, and combined replay against uniform replay."""

from collections import deque

import numpy as np
import pytest
from scipy.stats import ttest_ind

from sim.problems.mdp import MOVES, gridworld
from sim.problems.online_q import Learner, episode_lengths

SMALL = ("S..", ".#.", "..G")
TWO_WALLS = (
    "S..#......",
    "...#......",
    "...#......",
    "...#..#...",
    "...#..#...",
    "...#..#...",
    "...#..#...",
    "......#...",
    "......#...",
    "......#..G",
)


def maze(layout):
    """Every step costs 1 until the goal is reached."""
    return gridworld(layout=layout, goal_reward=0.0, step_reward=-1.0)


def looped_total(layout, learner, episodes, cap, discount, epsilon):
    """Steps of all episodes of a plain loop over dictionaries and a queue."""
    rng = np.random.default_rng(learner.seed)
    q, start, goal = {}, (0, 0), (len(layout) - 1, len(layout[0]) - 1)
    for r, row in enumerate(layout):
        q |= {(r, c): np.zeros(4) for c, mark in enumerate(row) if mark != "#"}
    stored, total = deque(maxlen=learner.buffer_size), 0
    for _ in range(episodes):
        state, steps = start, 0
        while state != goal and steps < cap:
            best = np.flatnonzero(q[state] == q[state].max())
            action = rng.integers(4) if rng.random() < epsilon else rng.choice(best)
            down, right = MOVES[action]
            moved = (state[0] + down, state[1] + right)
            stored.append((state, action, moved if moved in q else state))
            picks = rng.integers(len(stored), size=learner.batch_size)
            if learner.combined:
                picks[0] = len(stored) - 1
            errors = []
            for pick in picks:
                here, did, reached = stored[pick]
                value = 0.0 if reached == goal else q[reached].max()
                errors.append((here, did, -1 + discount * value - q[here][did]))
            for here, did, error in errors:
                q[here][did] += learner.step_size * error
            state, steps = stored[-1][2], steps + 1
        total += steps
    return total


def test_three_learners_take_as_long_as_a_plain_loop():
    run = {"episodes": 12, "cap": 25, "discount": 0.9, "epsilon": 0.2}
    kinds = [(1, 1, 0.3, False), (40, 5, 0.1, False), (40, 5, 0.1, True)]
    learners = [Learner(*kind, seed) for kind in kinds for seed in range(400)]
    found = episode_lengths(maze(SMALL), learners, **run)
    assert found.min() >= 4
    assert found.max() == 25
    totals = found.sum(axis=-1).reshape(len(kinds), 400)
    for kind, ours in zip(kinds, totals, strict=True):
        loop = [looped_total(SMALL, Learner(*kind, seed), **run) for seed in range(80)]
        error = np.sqrt(np.var(loop) / len(loop) + ours.var() / len(ours))
        assert abs(ours.mean() - np.mean(loop)) < 4.5 * error
        # Enough runs to tell this learner from the others.
        others = [mean for mean in totals.mean(axis=-1) if mean != ours.mean()]
        assert np.abs(np.array(others) - ours.mean()).min() > 5 * error


@pytest.fixture(scope="module")
def small_lengths():
    """Steps of 10 episodes by learner, run together, and by learner again in the reverse order."""
    learners = [Learner(size, 4, 0.1, False, 5) for size in (20, 500, 900)]
    learners += [Learner(30, 4, 0.1, seed % 2 == 0, seed) for seed in range(6)]
    learners += [Learner(1, 1, 0.2, False, 3), Learner(50, 1, 0.2, True, 3)]
    run = {"episodes": 10, "cap": 50}
    found = episode_lengths(maze(SMALL), learners, **run).tolist()
    again = episode_lengths(maze(SMALL), learners[::-1], **run).tolist()[::-1]
    return dict(zip(learners, found, strict=True)), dict(zip(learners, again, strict=True))


def test_a_combined_batch_of_one_is_online(small_lengths):
    found, _ = small_lengths
    assert found[Learner(1, 1, 0.2, False, 3)] == found[Learner(50, 1, 0.2, True, 3)]


def test_a_buffer_longer_than_the_run_is_never_full(small_lengths):
    full, *never = (small_lengths[0][Learner(size, 4, 0.1, False, 5)] for size in (20, 500, 900))
    assert never[0] == never[1]
    assert full != never[0]


def test_runs_do_not_know_each_other(small_lengths):
    found, reversed_order = small_lengths
    assert found == reversed_order
    assert len({tuple(lengths) for lengths in found.values()}) == len(found) - 2


@pytest.mark.parametrize(
    ("changes", "run", "words"),
    [
        ({"buffer_size": 0}, {}, "buffer_size must be a whole number from 1 to 65535, got 0"),
        ({"buffer_size": 10**5}, {}, "got 100000"),
        ({"batch_size": 2.5}, {}, "batch_size .* got 2.5"),
        ({"seed": -1}, {}, "seed .* got -1"),
        ({"step_size": float("nan")}, {}, "step_size must be finite and > 0, got nan"),
        ({}, {"episodes": 0}, "episodes .* got 0"),
        ({}, {"cap": 0}, "cap .* got 0"),
        ({}, {"epsilon": 0.0}, "epsilon .* got 0.0"),
    ],
)
def test_bad_settings_are_named(changes, run, words):
    learner = Learner(10, 4, 0.1, False, 0)._replace(**changes)
    with pytest.raises(ValueError, match=words):
        episode_lengths(maze(SMALL), [learner], **run)


def walled_lengths(sizes, seeds, step_size=0.1):
    """Steps (seeds, 60) of every episode by kind: online, and (combined or not, buffer size)."""
    kinds = {"online": (1, 1, 0.1, False)}
    for size in sizes:
        kinds["uniform", size] = (size, 10, step_size, False)
        kinds["combined", size] = (size, 10, step_size, True)
    learners = [Learner(*kind, seed) for kind in kinds.values() for seed in range(seeds)]
    found = episode_lengths(maze(TWO_WALLS), learners).reshape(len(kinds), seeds, -1)
    return dict(zip(kinds, found, strict=True))


def shorter(fast, slow):
    """Whether the 95 % interval of the difference of means, over seeds, lies above 0."""
    return ttest_ind(slow, fast, equal_var=False).confidence_interval(0.95).low > 0


def totals(lengths):
    return {kind: found.sum(axis=-1) for kind, found in lengths.items()}


def test_combined_replay_needs_fewer_steps_than_uniform_and_online():
    # Zhang and Sutton (arXiv 1712.01275), on a maze of our own.
    total = totals(walled_lengths((100, 1000), seeds=5))
    for size in (100, 1000):
        assert shorter(total["combined", size], total["uniform", size])
        assert shorter(total["combined", size], total["online"])
    assert shorter(total["uniform", 100], total["uniform", 1000])
    assert not shorter(total["combined", 100], total["combined", 1000])


@pytest.mark.slow
def test_combined_replay_at_every_buffer_size():
    # Means of 20 seeds, steps of 60 episodes; online 20.7k. A run of combined replay stores less
    # than 10^4 transitions, so any larger buffer is the same one.
    # M            100    1000   10000  60000
    # uniform     12.8k   20.3k  18.7k  15.7k
    # combined     8.9k    8.7k   6.4k   6.4k
    sizes = (100, 1000, 10_000, 60_000)
    lengths = walled_lengths(sizes, seeds=20)
    total = totals(lengths)
    for size in sizes:
        assert shorter(total["combined", size], total["uniform", size])
        assert shorter(total["combined", size], total["online"])
        assert total["combined", size].mean() < 0.75 * total["uniform", size].mean()
    assert (total["combined", 10_000] == total["combined", 60_000]).all()
    # Size matters to both, but only uniform replay gets slower by a larger buffer.
    assert shorter(total["uniform", 100], total["uniform", 1000])
    assert not shorter(total["combined", 100], total["combined", 1000])
    # Over all 60 episodes online is level with uniform replay at M = 1000: it explores less
    # aimlessly at first and is the slowest by far at the end.
    assert total["uniform", 1000].mean() == pytest.approx(total["online"].mean(), rel=0.1)
    last = {kind: found[:, -10:].mean(axis=-1) for kind, found in lengths.items()}
    for kind, found in last.items():
        if kind != "online":
            assert shorter(found, last["online"]), kind


@pytest.mark.slow
def test_a_step_along_the_mean_error_is_slower_than_online():
    # The same alpha for the mean of a batch as for one transition: replay then moves Q no more
    # than online learning does, and by staler errors. Combined still beats uniform.
    total = totals(walled_lengths((100, 1000), seeds=5, step_size=0.1 / 10))
    for size in (100, 1000):
        assert shorter(total["combined", size], total["uniform", size])
        assert shorter(total["online"], total["combined", size])
