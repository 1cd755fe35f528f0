"""Environments are what they say; the trajectory gradient is unbiased, its objective exact."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.estimators import per_decision_corrected, per_decision_ratio
from sim.lanes import run_lanes
from sim.problems import StreamKeys
from sim.problems.mdp import ROOMS, garnet, gridworld, random_layout
from sim.problems.paths import dynamics, path_noise, sampled_paths
from sim.problems.trajectory import cost_residual, trajectory
from sim.problems.trajectory_optimum import Objective, searched
from sim.train import Allocation, Lane

tabular = functools.partial(trajectory, features=0)
UP, RIGHT, DOWN, LEFT = range(4)
RING = ("S..", ".#.", "..G")

PROCESSES = {
    "grid": gridworld(),
    "slippery": gridworld(slip=0.3, step_reward=-0.1, visit_power=1.0),
    "garnet": garnet(),
    "skewed": garnet(states=7, actions=3, successors=1, visit_power=1.5, reward_spread=0.3),
}
each_process = pytest.mark.parametrize("mdp", PROCESSES.values(), ids=PROCESSES)


def stream_keys(seed):
    return StreamKeys(*jax.random.split(jax.random.key(seed), 3))


def some_theta(problem, scale, seed=3):
    rng = np.random.default_rng(seed)
    return jnp.asarray(scale * rng.standard_normal(len(problem.theta0)), jnp.float32)


def table_of(logits):
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True)


def value_forwards(mdp, prob, horizon, discount, kl):
    """J by carrying the distribution of states forwards: no recursion on values."""
    states, actions = prob.shape
    here, total = mdp.start.copy(), 0.0
    for t in range(horizon):
        after = np.zeros(states)
        for s in range(states):
            for a in range(actions):
                mass = here[s] * prob[s, a]
                total -= discount**t * mass * kl * np.log(prob[s, a] * actions) * mdp.alive[s]
                for k, successor in enumerate(mdp.successor[s, a]):
                    share = mass * mdp.probability[s, a, k]
                    total += discount**t * share * mdp.reward[s, a, k]
                    after[successor] += share
        here = after
    return total


@each_process
def test_rows_sum_to_one_and_the_end_is_absorbing(mdp):
    np.testing.assert_allclose(mdp.transition.sum(axis=-1), 1)
    assert (mdp.probability >= 0).all()
    assert mdp.start.sum() == pytest.approx(1)
    assert (mdp.start[~mdp.alive] == 0).all()
    for state in np.flatnonzero(~mdp.alive):
        assert (mdp.successor[state] == state).all()
        assert (mdp.reward[state] == 0).all()


def test_garnet_has_distinct_successors_and_rewards_within_the_spread():
    mdp = garnet(states=9, successors=5, reward_spread=0.4)
    assert all(len(set(row)) == 5 for row in mdp.successor.reshape(-1, 5))
    assert np.abs(mdp.reward).max() <= 0.2
    assert np.abs(mdp.reward).max() > 0.15
    other = garnet(states=9, successors=5, reward_spread=0.4, problem_seed=1)
    assert (other.successor != mdp.successor).any()


def test_walls_and_edges_block():
    # Numbered row by row without the wall: 0 1 2 / 3 # 4 / 5 6 G.
    mdp = gridworld(layout=RING)
    moved = mdp.successor[..., 0]
    assert moved[1, DOWN] == 1
    assert moved[3, RIGHT] == 3
    assert moved[4, LEFT] == 4
    assert moved[6, UP] == 6
    assert (moved[0, [UP, RIGHT, DOWN, LEFT]] == [0, 1, 3, 0]).all()
    assert (mdp.start == np.eye(8)[0]).all()
    assert mdp.reward[4, DOWN, 0] == mdp.reward[6, RIGHT, 0] == 1
    assert mdp.reward.sum() == 2


def test_slip_mixes_the_moves():
    mdp = gridworld(layout=RING, slip=0.4)
    np.testing.assert_allclose(mdp.transition[0, RIGHT, [0, 1, 3]], [0.2, 0.7, 0.1])


def test_random_layouts_leave_every_cell_linked_to_the_goal():
    for seed in range(30):
        layout = random_layout(size=7, walls=0.4, problem_seed=seed)
        mdp = gridworld(layout=layout)
        reach = np.linalg.matrix_power(mdp.transition.mean(axis=1), 49)
        assert (reach[:, ~mdp.alive] > 0).all()
    assert "".join(random_layout(size=5, walls=0.0)).count("#") == 0


def test_visit_power_skews_the_starts():
    assert np.ptp(gridworld().start[gridworld().alive]) == 0
    start = np.sort(gridworld(visit_power=2.0).start)[::-1]
    assert start[0] / start[1] == pytest.approx(4)


@each_process
def test_paths_have_the_distribution_of_the_process(mdp):
    horizon, count = 4, 40_000
    states, actions, branches = mdp.successor.shape
    prob = table_of(np.random.default_rng(0).standard_normal((states, actions)))
    shape = {"horizon": horizon, "branches": branches, "noisy": True}
    noise = path_noise(stream_keys(0), (count,), **shape)
    paths = sampled_paths(dynamics(mdp, 0.5), jnp.float32(prob), noise)
    here = mdp.start
    for t in range(horizon):
        cell, reached = np.asarray(paths.cell[:, t]), np.asarray(paths.reached[:, t])
        joint = (here[:, None] * prob)[..., None] * mdp.transition
        counts = np.zeros_like(joint)
        np.add.at(counts, (cell // actions, cell % actions, reached), 1)
        error = np.sqrt(joint * (1 - joint) / count)
        assert (np.abs(counts / count - joint) < 5 * error + 1e-6).all()
        reward = np.asarray(paths.reward[:, t], np.float64)
        mean = np.sum(here[:, None] * prob * mdp.mean_reward)
        assert abs(reward.mean() - mean) < 4.5 * reward.std() / np.sqrt(count) + 1e-6
        over = ~mdp.alive[cell // actions]
        assert (reward[over] == 0).all()
        if t + 1 < horizon:
            assert (np.asarray(paths.cell[:, t + 1]) // actions == reached).all()
        here = joint.sum(axis=(0, 1))


TRAJECTORIES = {
    # Small: where a reward is met once in 1e5 paths, the spread of batches says nothing.
    "plain": (gridworld(layout=RING), {"horizon": 8, "kl": 0.0}),
    "kl": (PROCESSES["slippery"], {"horizon": 6, "kl": 0.2, "reward_noise": 0.2}),
    "garnet": (PROCESSES["garnet"], {"horizon": 5, "kl": 0.1, "discount": 1.0}),
    "features": (PROCESSES["skewed"], {"horizon": 4, "features": 9, "kl": 0.1}),
    "bandit": (PROCESSES["garnet"], {"horizon": 1, "kl": 0.1}),
}
each_trajectory = pytest.mark.parametrize(("mdp", "knobs"), TRAJECTORIES.values(), ids=TRAJECTORIES)


@each_trajectory
def test_loss_is_exact(mdp, knobs):
    problem = tabular(mdp, **knobs)
    theta = some_theta(problem, 1.0)
    logits = theta if problem.env.features is None else problem.env.features @ theta
    prob = table_of(np.float64(logits).reshape(mdp.mean_reward.shape))
    exact = value_forwards(mdp, prob, knobs["horizon"], knobs.get("discount", 0.95), knobs["kl"])
    found = problem.loss(problem.env, problem.forward(problem.env, theta))
    assert float(found) == pytest.approx(float(problem.env.best) - exact, abs=5e-6)


@each_trajectory
def test_initial_loss_is_the_gap_of_the_uniform_policy(mdp, knobs):
    problem = tabular(mdp, **knobs)
    found = problem.loss(problem.env, problem.forward(problem.env, problem.theta0))
    assert float(found) == pytest.approx(problem.initial_loss, abs=5e-6)


@each_trajectory
@pytest.mark.parametrize("stale", [0.0, 0.4])
def test_gradient_is_unbiased_at_any_age(mdp, knobs, stale):
    problem = tabular(mdp, **knobs)
    env = problem.env
    theta = some_theta(problem, 1.0)
    behaviour = theta + stale * some_theta(problem, 1.0, seed=4)
    view, old = problem.forward(env, theta), problem.forward(env, behaviour)
    batches, size = 400, 256

    @jax.jit
    def estimates(keys):
        rollouts = problem.rollout(env, old, problem.noise(keys, (batches * size,)))
        split = jax.tree.map(lambda leaf: leaf.reshape(batches, size, -1), rollouts)
        weight = jnp.full(size, 1 / size)
        return jax.vmap(
            lambda batch: problem.gradient(env, view, batch, jnp.zeros(size, int), weight)
        )(split)

    found = np.asarray(estimates(stream_keys(0)), np.float64)
    exact = -np.asarray(
        jax.grad(lambda point: problem.loss(env, problem.forward(env, point)))(theta)
    )
    error = found.std(axis=0) / np.sqrt(batches)
    assert (np.abs(found.mean(axis=0) - exact) < 4.5 * error + 1e-6).all()
    assert np.linalg.norm(exact) > 3 * np.linalg.norm(error)


def test_fresh_ratios_are_one_and_residuals_add_up_to_the_advantage():
    mdp, horizon, discount = PROCESSES["slippery"], 6, 0.9
    problem = tabular(mdp, horizon=horizon, discount=discount, kl=0.0)
    env = problem.env
    view = problem.forward(env, some_theta(problem, 1.0))
    noise = problem.noise(stream_keys(1), (64,))
    rollouts = problem.rollout(env, view, noise)
    ratio = per_decision_ratio(view.logp.ravel()[rollouts.cell], rollouts.logp)
    assert (np.asarray(ratio) == 1).all()
    reward = np.asarray(sampled_paths(env.process, view.prob, noise).reward, np.float64)
    state = np.asarray(rollouts.cell) // 4
    for t in range(horizon):
        onward = reward[:, t:] @ discount ** np.arange(t, horizon)
        value = discount**t * np.asarray(view.value)[t, state[:, t]]
        found = np.asarray(per_decision_corrected(ratio, rollouts.residual))[:, t]
        np.testing.assert_allclose(found, onward - value, atol=2e-6)


def test_per_decision_ratio_is_the_product_so_far():
    rng = np.random.default_rng(0)
    now, then = rng.standard_normal((2, 3, 5)).astype(np.float32)
    ratio = per_decision_ratio(jnp.asarray(now), jnp.asarray(then))
    np.testing.assert_allclose(ratio, np.cumprod(np.exp(now - then), axis=-1), rtol=1e-5)
    residual = rng.standard_normal((3, 5)).astype(np.float32)
    onward = [(np.asarray(ratio) * residual)[:, t:].sum(axis=-1) for t in range(5)]
    found = per_decision_corrected(ratio, jnp.asarray(residual))
    np.testing.assert_allclose(found, np.stack(onward, axis=1), rtol=1e-5, atol=1e-6)


def test_time_runs_out_without_value_and_the_goal_costs_nothing():
    problem = tabular(PROCESSES["grid"], horizon=5, kl=0.3)
    view = problem.forward(problem.env, some_theta(problem, 2.0))
    assert (np.asarray(view.value)[-1] == 0).all()
    over = ~PROCESSES["grid"].alive
    assert (np.asarray(view.cost)[over] == 0).all()
    cell = jnp.full((2, 5), int(np.flatnonzero(over)[0]) * 4 + 1)
    assert (np.asarray(cost_residual(problem.env, view, cell)) == 0).all()


def best_with_a_clock(mdp, horizon, discount, kl):
    """The best J of policies that may change with time: no policy without a clock beats it."""
    value = np.zeros(len(mdp.start))
    for _ in range(horizon):
        gain = mdp.mean_reward + discount * mdp.transition @ value
        actions = gain.shape[1]
        if kl:
            soft = kl * (np.logaddexp.reduce(gain / kl, axis=1) - np.log(actions))
        else:
            soft = gain.max(axis=1)
        value = np.where(mdp.alive, soft, 0)
    return mdp.start @ value


@each_process
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_best_lies_between_every_policy_met_and_the_best_with_a_clock(mdp, kl):
    problem = tabular(mdp, horizon=6, kl=kl)
    best = float(problem.env.best)
    clock = best_with_a_clock(mdp, 6, 0.95, kl)
    assert best <= clock + 1e-6
    assert clock - best < 0.3 * problem.initial_loss
    for seed in range(20):
        view = problem.forward(problem.env, some_theta(problem, 0.5 * seed, seed))
        assert float(problem.loss(problem.env, view)) > 0


@pytest.mark.parametrize("mdp", [PROCESSES["grid"], PROCESSES["garnet"]], ids=["grid", "garnet"])
def test_defaults_are_not_trapped_by_a_lower_maximum(mdp):
    problem = trajectory(mdp)
    process = (mdp.transition, mdp.mean_reward, mdp.start, mdp.alive)
    objective = Objective(*process, 20, 0.95, 0.1, np.float64(problem.env.features))
    best, dim = float(problem.env.best), len(problem.theta0)
    from_start, theta = searched(objective, np.zeros(dim))
    assert best - from_start < 1e-3 * problem.initial_loss
    found = problem.loss(problem.env, problem.forward(problem.env, jnp.float32(theta)))
    assert -2e-5 < float(found) < 1e-3 * problem.initial_loss
    for seed in range(5):
        start = 3 * np.random.default_rng(1000 + seed).standard_normal(dim)
        assert searched(objective, start, 300)[0] <= best + 1e-6


def test_one_step_has_a_closed_form_optimum():
    mdp = PROCESSES["garnet"]
    problem = tabular(mdp, horizon=1, kl=0.1)
    assert float(problem.env.best) == pytest.approx(best_with_a_clock(mdp, 1, 0.95, 0.1), abs=1e-6)
    view = problem.forward(problem.env, jnp.float32(mdp.mean_reward.ravel() / 0.1))
    assert float(problem.loss(problem.env, view)) == pytest.approx(0, abs=1e-6)


def lane(batch, new, stored, step, *, target=-1.0, seed=0, setting=1):
    return Lane(batch, new, stored, step, False, False, target, 400, seed, setting)


@pytest.mark.parametrize(("name", "step"), [("grid", 10.0), ("garnet", 2.0)])
def test_on_policy_training_reaches_a_twentieth_of_the_gap(name, step):
    problem = tabular(PROCESSES[name], horizon=12)
    target = 0.05 * problem.initial_loss
    lanes = [lane(16, 16, 16, step, target=target, seed=seed) for seed in range(4)]
    lanes.append(lane(16, 8, 32, step / 2, target=target))
    ended = [one for some in run_lanes(problem, lanes, Allocation(16, 16, 4, 16)) for one in some]
    assert len(ended) == 5
    for one in ended:
        assert one.status == "reached"
        assert -1e-5 <= one.loss <= target
        assert one.updates > 10


def test_compiled_equals_interpreted():
    problem = tabular(gridworld(layout=RING, slip=0.1), horizon=2)
    noise = problem.noise(stream_keys(0), (3,))

    def ascent(theta):
        view = problem.forward(problem.env, theta)
        rollouts = problem.rollout(problem.env, view, noise)
        weight = jnp.full(3, 1 / 3)
        return problem.gradient(problem.env, view, rollouts, jnp.zeros(3, int), weight)

    theta = some_theta(problem, 1.0)
    compiled = jax.jit(ascent)(theta)
    with jax.disable_jit():
        interpreted = ascent(theta)
    np.testing.assert_allclose(compiled, interpreted, rtol=2e-5, atol=1e-6)


def test_names_are_stable():
    assert trajectory(PROCESSES["grid"]).name == "gridworld_trajectory"
    assert trajectory(PROCESSES["garnet"], kl=0.2).name == "garnet_trajectory"


@pytest.mark.parametrize(
    ("build", "knobs", "words"),
    [
        (gridworld, {"slip": 1.5}, r"slip must be in \[0, 1\], got 1.5"),
        (gridworld, {"slip": float("nan")}, "nan"),
        (gridworld, {"goal_reward": float("inf")}, "goal_reward must be finite, got inf"),
        (gridworld, {"step_reward": float("nan")}, "step_reward must be finite, got nan"),
        (gridworld, {"visit_power": -1.0}, "visit_power must be finite and >= 0, got -1.0"),
        (gridworld, {"problem_seed": -1}, "problem_seed must be an integer >= 0, got -1"),
        (gridworld, {"layout": ("..", ".G.")}, "rows of one length"),
        (gridworld, {"layout": ()}, "rows of one length"),
        (gridworld, {"layout": (".x", ".G")}, "x"),
        (gridworld, {"layout": ("..", "..")}, "one G"),
        (gridworld, {"layout": ("G.", ".G")}, "one G"),
        (gridworld, {"layout": ("G#", "##")}, "a cell to start from"),
        (gridworld, {"layout": (".#G", "##.")}, r"\(0, 0\)"),
        (random_layout, {"size": 1}, "size must be an integer >= 2, got 1"),
        (random_layout, {"walls": 1.0}, r"walls must be in \[0, 1\), got 1.0"),
        (random_layout, {"problem_seed": -2}, "-2"),
        (garnet, {"states": 1}, "states must be an integer >= 2, got 1"),
        (garnet, {"actions": 1}, "actions must be an integer >= 2, got 1"),
        (garnet, {"successors": 0}, r"successors must be in \[1, states = 16\], got 0"),
        (garnet, {"successors": 17}, "got 17"),
        (garnet, {"reward_spread": 0.0}, "reward_spread must be finite and > 0, got 0.0"),
        (garnet, {"visit_power": float("inf")}, "inf"),
        (garnet, {"problem_seed": -1}, "-1"),
    ],
)
def test_bad_knobs_of_a_process_are_named(build, knobs, words):
    with pytest.raises(ValueError, match=words):
        build(**knobs)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"horizon": 0}, r"horizon must be an integer in \[1, 1000\], got 0"),
        ({"horizon": 1001}, "got 1001"),
        ({"discount": 0.0}, r"discount must be in \(0, 1\], got 0.0"),
        ({"discount": 1.1}, "got 1.1"),
        ({"kl": -0.1}, "kl must be finite and >= 0, got -0.1"),
        ({"kl": float("nan")}, "nan"),
        ({"reward_noise": -1.0}, "reward_noise must be finite and >= 0, got -1.0"),
        ({"features": -1}, "features must be an integer >= 0, got -1"),
        ({"spectrum_power": -2.0}, "spectrum_power must be finite and >= 0, got -2.0"),
        ({"problem_seed": -1}, "problem_seed must be an integer >= 0, got -1"),
    ],
)
def test_bad_knobs_of_a_trajectory_are_named(knobs, words):
    with pytest.raises(ValueError, match=words):
        tabular(PROCESSES["grid"], **knobs)


def test_default_map_needs_a_detour():
    assert "".join(ROOMS).count("G") == 1
    assert (gridworld().mean_reward > 0).sum() == 2
