"""Q-learning: exact Q*, the mean TD step, time-outs that bootstrap, training, bad knobs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.lanes import run_lanes
from sim.problems import StreamKeys
from sim.problems.mdp import garnet, gridworld
from sim.problems.paths import Paths
from sim.problems.q_learning import best_table, q_learning, td_error
from sim.train import Allocation, Lane

PROCESSES = {"grid": gridworld(), "slippery": gridworld(slip=0.2), "garnet": garnet()}
each_process = pytest.mark.parametrize("mdp", PROCESSES.values(), ids=PROCESSES)


def stream_keys(seed):
    return StreamKeys(*jax.random.split(jax.random.key(seed), 3))


def some_view(problem, seed=0):
    theta = np.random.default_rng(seed).standard_normal(len(problem.theta0))
    return problem.forward(problem.env, jnp.float32(theta))


@each_process
def test_best_table_is_the_value_of_its_greedy_policy_and_improves_on_none(mdp):
    best = best_table(mdp, 0.9)
    greedy = best.argmax(axis=1)
    states = np.arange(len(greedy))
    onward = mdp.transition[states, greedy] * mdp.alive
    value = np.linalg.solve(np.eye(len(greedy)) - 0.9 * onward, mdp.mean_reward[states, greedy])
    np.testing.assert_allclose(value[mdp.alive], best.max(axis=1)[mdp.alive], atol=1e-12)
    once_more = mdp.mean_reward + 0.9 * mdp.transition @ (value * mdp.alive)
    np.testing.assert_allclose(once_more[mdp.alive], best[mdp.alive], atol=1e-12)


def test_best_of_a_corridor_by_hand():
    best = best_table(gridworld(layout=("S..G",)), 0.5)
    np.testing.assert_allclose(best.max(axis=1), [0.25, 0.5, 1, 0])


@each_process
def test_loss_vanishes_at_the_best_table_alone(mdp):
    problem = q_learning(mdp, discount=0.9)
    start = problem.loss(problem.env, problem.forward(problem.env, problem.theta0))
    assert float(start) == pytest.approx(problem.initial_loss, rel=1e-5)
    best = problem.forward(problem.env, problem.env.best.ravel())
    assert float(problem.loss(problem.env, best)) == 0
    view = some_view(problem)
    error = np.float64(view.q) - best_table(mdp, 0.9)
    exact = 0.5 * np.mean(error[mdp.alive] ** 2)
    assert float(problem.loss(problem.env, view)) == pytest.approx(exact, rel=1e-5)


def test_greed_is_shared_by_equals():
    problem = q_learning(gridworld(), epsilon=0.2)
    q = np.zeros((22, 4), np.float32)
    q[0, [1, 3]] = 1
    prob = np.asarray(problem.forward(problem.env, jnp.asarray(q.ravel())).prob)
    np.testing.assert_allclose(prob[0], [0.05, 0.45, 0.05, 0.45], rtol=1e-6)
    np.testing.assert_allclose(prob[1], 0.25, rtol=1e-6)


@each_process
def test_mean_step_is_the_expected_td_error_at_the_cells_visited(mdp):
    horizon, discount = 3, 0.9
    problem = q_learning(mdp, horizon=horizon, discount=discount, reward_noise=0.1)
    env, view = problem.env, some_view(problem, 1)
    batches, size = 400, 64

    @jax.jit
    def estimates(keys):
        paths = problem.rollout(env, some_view(problem, 2), problem.noise(keys, (batches * size,)))
        split = jax.tree.map(lambda leaf: leaf.reshape(batches, size, horizon), paths)
        weight = jnp.full(size, 1 / size)
        return jax.vmap(
            lambda batch: problem.gradient(env, view, batch, jnp.zeros(size, int), weight)
        )(split)

    found = np.asarray(estimates(stream_keys(0)), np.float64)
    q = np.float64(view.q)
    expected = mdp.mean_reward + discount * mdp.transition @ (q.max(axis=1) * mdp.alive) - q
    prob = np.float64(some_view(problem, 2).prob)
    here, visits = mdp.start, np.zeros_like(q)
    for _ in range(horizon):
        visits += here[:, None] * prob / horizon
        here = np.einsum("sa,san->n", here[:, None] * prob, mdp.transition)
    exact = (visits * expected * mdp.alive[:, None]).ravel()
    error = found.std(axis=0) / np.sqrt(batches)
    assert (np.abs(found.mean(axis=0) - exact) < 4.5 * error + 1e-6).all()
    assert np.linalg.norm(exact) > 3 * np.linalg.norm(error)


def test_time_out_bootstraps_and_the_goal_does_not():
    mdp = gridworld(layout=("S..G",))
    q = np.arange(16, dtype=np.float32).reshape(4, 4)
    rollouts = Paths(
        cell=jnp.array([[1, 5], [9, 13]]),  # 0 -> 1 -> 2, cut there; 2 -> goal, then over
        reward=jnp.array([[0.0, 0.0], [1.0, 0.0]]),
        reached=jnp.array([[1, 2], [3, 3]]),
    )
    cut_at = {}
    for bootstrap in (True, False):
        problem = q_learning(mdp, horizon=2, discount=0.5, bootstrap_timeouts=bootstrap)
        view = problem.forward(problem.env, jnp.asarray(q.ravel()))
        cut_at[bootstrap] = np.asarray(td_error(problem.env, view, rollouts))
    np.testing.assert_allclose(cut_at[True], [[0.5 * 7 - 1, 0.5 * 11 - 5], [1 - 9, 0]])
    np.testing.assert_allclose(cut_at[False], [[0.5 * 7 - 1, 0 - 5], [1 - 9, 0]])


def lane(batch, new, stored, step, *, target=-1.0, updates=1500, seed=0, setting=1):
    return Lane(batch, new, stored, step, False, False, target, updates, seed, setting)


def ends(problem, target, step, updates):
    lanes = [lane(16, 16, 16, step, target=target, updates=updates, seed=i) for i in range(3)]
    lanes.append(lane(16, 4, 64, step, target=target, updates=updates))
    some = run_lanes(problem, lanes, Allocation(16, 16, 16, 16))
    return [one for batch in some for one in batch]


@pytest.mark.parametrize(("name", "step"), [("grid", 20.0), ("garnet", 10.0)])
def test_training_reaches_a_tenth_of_the_gap(name, step):
    problem = q_learning(PROCESSES[name], horizon=8, discount=0.9, epsilon=0.3)
    target = 0.1 * problem.initial_loss
    for one in ends(problem, target, step, 1500):
        assert one.status == "reached"
        assert 0 <= one.loss <= target


def test_time_outs_taken_for_ends_learn_a_biased_table():
    mdp = PROCESSES["garnet"]
    for bootstrap, status in [(True, "reached"), (False, "not_reached")]:
        problem = q_learning(
            mdp, horizon=2, discount=0.9, epsilon=1.0, bootstrap_timeouts=bootstrap
        )
        for one in ends(problem, 0.1 * problem.initial_loss, 10.0, 200):
            assert one.status == status


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"horizon": 0}, r"horizon must be an integer in \[1, 1000\], got 0"),
        ({"horizon": 1001}, "got 1001"),
        ({"discount": 1.0}, r"discount must be in \[0, 0.999\], got 1.0"),
        ({"discount": -0.1}, "got -0.1"),
        ({"epsilon": 0.0}, r"epsilon must be in \(0, 1\], got 0.0"),
        ({"epsilon": 1.5}, "got 1.5"),
        ({"reward_noise": float("nan")}, "reward_noise must be finite and >= 0, got nan"),
    ],
)
def test_bad_knobs_are_named(knobs, words):
    with pytest.raises(ValueError, match=words):
        q_learning(PROCESSES["grid"], **knobs)


def test_a_process_without_rewards_is_refused():
    with pytest.raises(ValueError, match="all 0"):
        q_learning(gridworld(goal_reward=0.0))
