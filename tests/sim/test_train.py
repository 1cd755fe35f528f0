"""One lane does what the conventions say: ages, horizon, replay ratio, streams, determinism."""

import jax
import numpy as np
import pytest

from sim.lanes import run_lanes
from sim.problems.bandit import bandit
from sim.problems.quadratic import quadratic
from sim.train import (
    FILL,
    TRAIN,
    Allocation,
    Lane,
    lane_key,
    recorded_run,
    streams,
)


def lane(batch, new, stored, step=0.1, *, replace=False, growing=False, seed=0, setting=1):
    return Lane(batch, new, stored, step, replace, growing, -1.0, 10**9, seed, setting)


def recorded(problem, lanes, updates, record=lambda step: step, steps=16):
    allocation = Allocation(
        batch=max(one.batch_size for one in lanes),
        width=max(one.rollouts_per_update for one in lanes),
        rows=max(-(-one.buffer_size // one.rollouts_per_update) for one in lanes),
        steps=steps,
    )
    return recorded_run(problem, allocation, lanes, updates, record)[1]


def expected_age_shares(new, stored):
    """Share of the buffer at each age: R a row, the rest in the oldest one."""
    ages = np.arange(-(-stored // new))
    return np.minimum(new, stored - ages * new) / stored


@pytest.mark.parametrize("replace", [False, True])
def test_horizon_replay_ratio_and_age_histogram(replace):
    settings = [(12, 4, 40), (12, 3, 12), (12, 12, 12), (12, 5, 33), (12, 12, 60)]
    lanes = [lane(*setting, replace=replace) for setting in settings]
    updates = 3000
    steps = recorded(quadratic(dim=1, max_age=64), lanes, updates)
    for i, (batch, new, stored) in enumerate(settings):
        warm = slice(64, None)
        age = steps.age[warm, i, :batch]
        shares = expected_age_shares(new, stored)
        assert age.min() == 0
        assert age.max() == len(shares) - 1
        # Every use of every rollout: made at update t - age, in the slot drawn.
        made = np.arange(64, updates)[:, None] - age
        rollout = made * 100 + steps.column[warm, i, :batch]
        complete = (made > 64 + stored / new) & (made < updates - 1 - stored / new)
        uses = np.unique(rollout[complete], return_counts=True)[1]
        born = len(np.unique(made[complete])) * new
        assert uses.sum() / born == pytest.approx(batch / new, rel=0.02)
        counts = np.bincount(age.ravel(), minlength=len(shares))
        share = counts / counts.sum()
        error = np.sqrt(shares * (1 - shares) / counts.sum())
        assert (np.abs(share - shares) <= 4.5 * error + 1e-12).all()
        # Membership is exact whatever the draw: the oldest that can be drawn is N/R updates old.
        assert share @ np.ones_like(share) == pytest.approx(1)
        if batch == stored and not replace:
            assert (np.sort(age, axis=1) == np.repeat(np.arange(len(shares)), new)).all()


def test_identities_of_the_whole_buffer_are_exact():
    """B = N: every member is seen at every update, so nothing here is a matter of chance."""
    stored, updates, fresh = 12, 60, (12, 6, 4, 3, 1)
    steps = recorded(
        quadratic(dim=1, max_age=64), [lane(12, new, stored) for new in fresh], updates
    )
    for i, new in enumerate(fresh):
        horizon = stored // new
        age, column = steps.age[horizon:, i], steps.column[horizon:, i]
        made = np.arange(horizon, updates)[:, None] - age
        # New rollouts each update, 1/R = x/N; mean age (x - 1)/2; every age has R members.
        assert ((age == 0).sum(axis=1) == new).all()
        assert (age.mean(axis=1) == (horizon - 1) / 2).all()
        for one in age:
            assert np.bincount(one).tolist() == [new] * horizon
        # A rollout is a member of x updates and used B x/N = B/R times.
        whole = (made >= horizon) & (made <= updates - horizon)
        found, uses = np.unique(made[whole] * 100 + column[whole], return_counts=True)
        assert len(found) == new * (updates - 2 * horizon + 1)
        assert (uses == horizon).all()


def test_identities_of_a_random_draw_hold_in_the_mean():
    batch, updates, seeds = 12, 2000, 4
    settings = [(4, 48, False), (12, 48, False), (2, 24, True), (4, 48, True)]
    lanes = [
        lane(batch, new, stored, replace=replace, seed=seed)
        for new, stored, replace in settings
        for seed in range(seeds)
    ]
    steps = recorded(quadratic(dim=1, max_age=64), lanes, updates)
    for i, (new, stored, replace) in enumerate(settings):
        horizon, some = stored // new, slice(seeds * i, seeds * (i + 1))
        age, column = steps.age[horizon:, some], steps.column[horizon:, some]
        of_update = age.mean(axis=-1)
        error = of_update.std() / np.sqrt(of_update.size)
        assert abs(of_update.mean() - (horizon - 1) / 2) < 4.5 * error
        made = np.arange(horizon, updates)[:, None, None] - age
        whole = (made >= horizon) & (made <= updates - horizon)
        rollout = (made * 100 + column) * seeds + np.arange(seeds)[:, None]
        uses = np.unique(rollout[whole], return_counts=True)[1]
        born = seeds * new * (updates - 2 * horizon + 1)
        uses = np.append(uses, np.zeros(born - len(uses)))
        # Uses of different rollouts are negatively correlated: the error is an upper bound.
        assert abs(uses.mean() - batch * horizon / stored) < 4.5 * uses.std() / np.sqrt(born)
        assert uses.max() <= (batch if replace else 1) * horizon


def test_fill_has_the_age_of_the_run():
    steps = recorded(quadratic(dim=1, max_age=64), [lane(8, 4, 32)], 20)
    age = steps.age[:, 0, :8]
    for t in range(20):
        assert age[t].max() <= min(t, 7)
    assert (age[0] == 0).all()
    assert (age[1] <= 1).all()


def test_growing_start_draws_only_what_is_stored():
    lanes = [lane(8, 4, 64, growing=True), lane(8, 4, 64)]
    steps = recorded(quadratic(dim=1, max_age=64), lanes, 40)
    back = (np.arange(40)[:, None, None] - steps.row) % 16
    rank = back * 4 + steps.column
    stored = np.minimum(8 + 4 * np.arange(40), 64)
    assert (rank[:, 0] < stored[:, None]).all()
    assert set(rank[0, 0].tolist()) == set(range(8))
    assert rank[:5, 1].max() > 24


def test_on_policy_uses_each_rollout_once():
    steps = recorded(quadratic(dim=1, max_age=64), [lane(8, 8, 8)], 30)
    assert (steps.age == 0).all()
    assert (np.sort(steps.column[:, 0], axis=1) == np.arange(8)).all()


def test_streams_change_with_seed_and_setting_each_alone():
    problem = bandit()

    def drawn(seed, setting, phase):
        keys = streams(lane_key(lane(1, 1, 1, seed=seed, setting=setting)), phase, 0)
        noise = problem.noise(keys.rollout, (3, 16))
        return {
            "start": noise.start,
            "action": noise.action,
            "reward": noise.reward,
            "draw": jax.random.bits(keys.draw, (16,)),
        }

    base = drawn(0, 0, TRAIN)
    for other in [drawn(1, 0, TRAIN), drawn(0, 1, TRAIN), drawn(0, 0, FILL)]:
        for name, values in base.items():
            assert (np.asarray(other[name]) != np.asarray(values)).mean() > 0.99, name
    names = list(base)
    for i, first in enumerate(names[:3]):
        for second in names[i + 1 : 3]:
            assert (np.asarray(base[first]) != np.asarray(base[second])).all()
    again = drawn(0, 0, TRAIN)
    assert all((np.asarray(again[name]) == np.asarray(base[name])).all() for name in names)


def test_compiled_equals_interpreted():
    problem = bandit(prompts=3, features=4)
    lanes = [lane(2, 1, 3, 1.0)]
    allocation = Allocation(batch=2, width=1, rows=3, steps=3)

    def thetas():
        return recorded_run(problem, allocation, lanes, 3, lambda step: step.theta)[1]

    compiled = thetas()
    with jax.disable_jit():
        interpreted = thetas()
    np.testing.assert_allclose(compiled, interpreted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"buffer_size": 6}, "buffer_size must be >= batch_size = 8 .* got 6"),
        ({"rollouts_per_update": 0}, "rollouts_per_update must be a whole number .* got 0"),
        ({"rollouts_per_update": 9, "buffer_size": 18}, "allocated width, got 9"),
        ({"rollouts_per_update": 2.5}, "got 2.5"),
        ({"batch_size": 0}, "batch_size must be a whole number .* got 0"),
        ({"batch_size": -8}, "got -8"),
        ({"batch_size": 9}, "allocated batch, got 9"),
        ({"buffer_size": 3}, "got 3"),
        ({"buffer_size": 33}, "allocated rows times R, got 33"),
        ({"buffer_size": float("nan")}, "got nan"),
        ({"step_size": 0.0}, "step_size must be finite and > 0, got 0.0"),
        ({"step_size": float("inf")}, "got inf"),
        ({"seed": -1}, "got -1"),
        ({"buffer_size": 6, "replace": True, "growing": True}, "growing start, got 6"),
    ],
)
def test_impossible_lanes_are_refused(changes, words):
    problem, allocation = quadratic(), Allocation(batch=8, width=8, rows=8)
    bad = [lane(8, 4, 16)._replace(**changes)]
    with pytest.raises(ValueError, match=words):
        recorded_run(problem, allocation, bad, 1, lambda step: None)
    with pytest.raises(ValueError, match=words):
        next(run_lanes(problem, bad, allocation))
