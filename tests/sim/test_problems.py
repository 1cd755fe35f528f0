"""The problems' gradients are unbiased and their objectives exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.problems import StreamKeys
from sim.problems.bandit import BanditEnv, bandit, objective
from sim.problems.quadratic import quadratic


def stream_keys(seed):
    return StreamKeys(*jax.random.split(jax.random.key(seed), 3))


def some_theta(problem, scale, seed=3):
    rng = np.random.default_rng(seed)
    return jnp.asarray(scale * rng.standard_normal(len(problem.theta0)), jnp.float32)


BANDITS = {
    "plain": {},
    "kl": {"kl": 0.2},
    "tabular": {"features": 0, "kl": 0.1},
    "groups": {"num_generations": 4, "kl": 0.1},
}


@pytest.mark.parametrize("knobs", BANDITS.values(), ids=BANDITS)
def test_bandit_objective_and_its_gradient(knobs):
    problem = bandit(**knobs)
    env: BanditEnv = problem.env
    theta = some_theta(problem, 1.0)
    features = None if env.features is None else np.float64(env.features)
    value, slope = objective(
        np.float64(theta), features, np.float64(env.reward_mean), float(env.kl)
    )

    def gap(parameters):
        return problem.loss(env, problem.forward(env, parameters))

    assert float(gap(theta)) == pytest.approx(float(env.best) - value, abs=2e-6)
    np.testing.assert_allclose(-jax.grad(gap)(theta), slope, atol=2e-6)
    assert float(gap(problem.theta0)) == pytest.approx(problem.initial_loss, abs=2e-6)


@pytest.mark.parametrize("knobs", BANDITS.values(), ids=BANDITS)
@pytest.mark.parametrize("stale", [0.0, 0.7])
def test_bandit_gradient_is_unbiased_at_any_age(knobs, stale):
    problem = bandit(**knobs)
    env = problem.env
    theta = some_theta(problem, 1.0)
    behaviour = theta + stale * some_theta(problem, 1.0, seed=4)
    view, old = problem.forward(env, theta), problem.forward(env, behaviour)
    batches, size = 400, 512

    @jax.jit
    def estimates(keys):
        rollouts = problem.rollout(env, old, problem.noise(keys, (batches * size,)))
        split = jax.tree.map(lambda leaf: leaf.reshape(batches, size), rollouts)
        weight = jnp.full(size, 1 / size)
        return jax.vmap(
            lambda batch: problem.gradient(env, view, batch, jnp.zeros(size, int), weight)
        )(split)

    found = np.asarray(estimates(stream_keys(0)), np.float64)
    features = None if env.features is None else np.float64(env.features)
    _, exact = objective(np.float64(theta), features, np.float64(env.reward_mean), float(env.kl))
    error = found.std(axis=0) / np.sqrt(batches)
    assert (np.abs(found.mean(axis=0) - exact) < 4.5 * error + 1e-6).all()
    assert np.linalg.norm(exact) > 3 * np.linalg.norm(error)


def test_regularised_optimum_beats_every_other_policy():
    problem = bandit(kl=0.1)
    for seed in range(20):
        view = problem.forward(problem.env, some_theta(problem, 2.0, seed))
        assert problem.loss(problem.env, view) > 0


def test_tabular_optimum_is_the_closed_form():
    problem = bandit(features=0, kl=0.3)
    logits = jnp.ravel(problem.env.reward_mean) / 0.3
    view = problem.forward(problem.env, logits)
    assert float(problem.loss(problem.env, view)) == pytest.approx(0, abs=1e-6)


def test_groups_share_a_prompt_and_advantages_of_equal_rewards_vanish():
    problem = bandit(num_generations=4)
    view = problem.forward(problem.env, problem.theta0)
    rollouts = problem.rollout(problem.env, view, problem.noise(stream_keys(1), (400,)))
    prompt = np.asarray(rollouts.cell).reshape(-1, 4) // 4
    assert (prompt == prompt[:, :1]).all()
    assert len(np.unique(prompt)) == 12
    advantage = np.asarray(rollouts.advantage).reshape(-1, 4)
    np.testing.assert_allclose(advantage.sum(axis=1), 0, atol=1e-6)
    assert (np.ptp(advantage, axis=1) == 0).any()


def test_quadratic_gradient_and_noise_by_age():
    problem = quadratic(
        dim=3, spectrum_power=1.0, noise_std=2.0, noise_power=1.0, sigma2=lambda s: 1.0 + s
    )
    theta = jnp.array([1.0, -2.0, 3.0])
    rollouts = jnp.eye(3)[:2]
    weight = jnp.array([0.5, 0.5])
    found = problem.gradient(problem.env, theta, rollouts, jnp.array([0, 3]), weight)
    curvature = np.array([1, 1 / 2, 1 / 3])
    noise = 2.0 * np.sqrt(curvature) * np.array([0.5 * 1, 0.5 * 2, 0])
    np.testing.assert_allclose(found, -(curvature * np.asarray(theta) + noise), rtol=1e-6)
    assert float(problem.loss(problem.env, theta)) == pytest.approx(0.5 * (1 + 2 + 3))


@pytest.mark.parametrize(
    ("build", "knobs", "word"),
    [
        (bandit, {"prompts": 0}, "0"),
        (bandit, {"arms": 1}, "1"),
        (bandit, {"features": -1}, "-1"),
        (bandit, {"reward_spread": 0.0}, "0.0"),
        (bandit, {"reward_spread": 1.5}, "1.5"),
        (bandit, {"kl": -0.1}, "-0.1"),
        (bandit, {"kl": float("nan")}, "nan"),
        (bandit, {"num_generations": 0}, "0"),
        (quadratic, {"dim": 0}, "0"),
        (quadratic, {"noise_std": float("inf")}, "inf"),
        (quadratic, {"spectrum_power": -2.0}, "-2.0"),
    ],
)
def test_bad_knobs_are_named(build, knobs, word):
    with pytest.raises(ValueError, match=word):
        build(**knobs)
