"""Log-linear softmax bandit with power-law features and Bernoulli rewards.

A rollout draws a prompt uniformly, an arm from ``pi(.|p) = softmax(features[p] @ theta)`` and a
reward in {0, 1}. Objective ``J = mean_p sum_a pi(a|p) r(p, a) - kl * KL(pi || uniform)``.
The advantage is frozen at generation, as in GRPO: reward minus the prompt's value then
(num_generations = 1), or minus the mean reward of the other rollouts of its group.
The KL term is differentiated at the current policy with its exact mean as baseline.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.estimators import importance_corrected, importance_ratio
from sim.problems import Array, Problem, StreamKeys
from sim.streams import uniforms


class BanditEnv(NamedTuple):
    """Arrays of a bandit; a cell is a (prompt, arm) pair, C = P * A of them.

    features (C, F) or None for one parameter a cell; reward_mean (P, A); kl (); best ().
    """

    features: Array | None
    reward_mean: Array
    kl: Array
    best: Array


class View(NamedTuple):
    """The policy at theta: log-probabilities and probabilities (P, A)."""

    logp: Array
    prob: Array


class Rollouts(NamedTuple):
    """Stored rollouts: cell (K,) int32, log-probability at generation (K,), advantage (K,)."""

    cell: Array
    logp: Array
    advantage: Array


class Uniforms(NamedTuple):
    """Uniform numbers in [0, 1) that decide a rollout; start has one a group."""

    start: Array
    action: Array
    reward: Array


def forward(env: BanditEnv, theta: Array) -> View:
    """Return the policy table of theta (F,) or (C,)."""
    logits = theta if env.features is None else env.features @ theta
    logp = jax.nn.log_softmax(logits.reshape(env.reward_mean.shape), axis=-1)
    return View(logp, jnp.exp(logp))


def regularised(env: BanditEnv, view: View) -> Array:
    """Return the KL cost of each cell, ``kl * log(pi * A)``, (P, A)."""
    return env.kl * (view.logp + jnp.log(float(env.reward_mean.shape[-1])))


def loss(env: BanditEnv, view: View) -> Array:
    """Return the gap ``best - J(theta)``, exact."""
    return env.best - jnp.mean(
        jnp.sum(view.prob * (env.reward_mean - regularised(env, view)), axis=-1)
    )


def noise(keys: StreamKeys, shape: tuple[int, ...], *, num_generations: int) -> Uniforms:
    """Return the uniforms of rollouts with leading axes ``shape``."""
    *lead, width = shape
    return Uniforms(
        start=uniforms(keys.start, (*lead, width // num_generations)),
        action=uniforms(keys.action, shape),
        reward=uniforms(keys.reward, shape),
    )


def rollout(env: BanditEnv, view: View, noise: Uniforms, *, num_generations: int) -> Rollouts:
    """Sample K rollouts, (K,) each, from the policy in view."""
    prompts, arms = env.reward_mean.shape
    prompt = jnp.repeat((noise.start * prompts).astype(jnp.int32), num_generations, axis=-1)
    below = jnp.cumsum(view.prob, axis=-1)[:, :-1]
    arm = jnp.sum(noise.action[..., None] >= below[prompt], axis=-1, dtype=jnp.int32)
    cell = prompt * arms + arm
    reward = (noise.reward < env.reward_mean.ravel()[cell]).astype(jnp.float32)
    if num_generations == 1:
        baseline = jnp.sum(view.prob * env.reward_mean, axis=-1)[prompt]
    else:
        groups = reward.reshape(*reward.shape[:-1], -1, num_generations)
        others = groups.sum(axis=-1, keepdims=True) - groups
        baseline = (others / (num_generations - 1)).reshape(reward.shape)
    return Rollouts(cell, view.logp.ravel()[cell], reward - baseline)


def gradient(env: BanditEnv, view: View, rollouts: Rollouts, age: Array, weight: Array) -> Array:
    """Return the importance-corrected policy gradient, (F,) or (C,).

    Summed per cell first: ``sum_i w_i (features[c_i] - sum_a pi features[p_i, a])`` needs only
    the total weight of every cell, so a batch costs one scatter and one small product.
    """
    ratio = importance_ratio(view.logp.ravel()[rollouts.cell], rollouts.logp)
    cost = regularised(env, view)
    cost = cost - jnp.sum(view.prob * cost, axis=-1, keepdims=True)
    advantage = rollouts.advantage - cost.ravel()[rollouts.cell]
    pull = weight * importance_corrected(ratio, advantage)
    cells = jnp.zeros(view.logp.size).at[rollouts.cell].add(pull).reshape(view.logp.shape)
    score = (cells - view.prob * cells.sum(axis=-1, keepdims=True)).ravel()
    return score if env.features is None else score @ env.features


def objective(theta: np.ndarray, features: np.ndarray | None, reward: np.ndarray, kl: float):
    """Return J and its gradient in float64, for the search of the best objective."""
    logits = (theta if features is None else features @ theta).reshape(reward.shape)
    logp = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    prob = np.exp(logp)
    gain = reward - kl * (logp + np.log(reward.shape[-1]))
    value = np.sum(prob * gain, axis=-1, keepdims=True)
    score = (prob * (gain - value) / len(reward)).ravel()
    return value.mean(), score if features is None else score @ features


def best_objective(features: np.ndarray | None, reward: np.ndarray, kl: float, dim: int) -> float:
    """Return the largest J: in closed form when tabular, else what L-BFGS-B reaches.

    With kl = 0 the supremum lies at infinity; parameters are then searched within +-50.
    """
    if features is None:
        arms = reward.shape[-1]
        if kl == 0:
            return float(reward.max(axis=-1).mean())
        return float(np.mean(kl * (np.logaddexp.reduce(reward / kl, axis=-1) - np.log(arms))))
    from scipy.optimize import minimize

    def negative(theta):
        value, slope = objective(theta, features, reward, kl)
        return -value, -slope

    bounds = None if kl > 0 else [(-50.0, 50.0)] * dim
    found = minimize(
        negative,
        np.zeros(dim),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return float(-found.fun)


def bandit(
    *,
    prompts: int = 12,
    arms: int = 4,
    features: int = 16,
    spectrum_power: float = 1.0,
    reward_spread: float = 1.0,
    kl: float = 0.0,
    num_generations: int = 1,
    problem_seed: int = 0,
) -> Problem:
    """Build a bandit, started at the uniform policy (theta = 0).

    Args:
        prompts: number of prompts P, >= 1.
        arms: arms of each prompt A, >= 2.
        features: number of features F, or 0 for one parameter a (prompt, arm) cell (tabular).
        spectrum_power: a in the feature scales ``j^(-a/2)``, >= 0; the mean squared norm is 1.
        reward_spread: mean rewards are uniform within ``1/2 +- reward_spread/2``, in (0, 1].
            The smaller, the larger the noise scale.
        kl: weight of the KL term, >= 0.
        num_generations: rollouts of one prompt that share a group baseline; 1: exact value.
        problem_seed: seed of features and rewards, apart from the seeds of runs.

    Returns:
        The problem; ``initial_loss`` is the gap of the uniform policy.

    Raises:
        ValueError: for a value outside the ranges above.
    """
    for name, value, least in [
        ("prompts", prompts, 1),
        ("arms", arms, 2),
        ("features", features, 0),
        ("num_generations", num_generations, 1),
        ("problem_seed", problem_seed, 0),
    ]:
        if value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    for name, value in [("spectrum_power", spectrum_power), ("kl", kl)]:
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, got {value}")
    if not 0 < reward_spread <= 1:
        raise ValueError(f"reward_spread must be in (0, 1], got {reward_spread}")
    rng = np.random.default_rng(problem_seed)
    reward = 0.5 + reward_spread * (rng.random((prompts, arms)) - 0.5)
    table = None
    if features:
        scale = np.arange(1, features + 1) ** (-spectrum_power / 2)
        table = rng.standard_normal((prompts * arms, features)) * scale / np.linalg.norm(scale)
    dim = features or prompts * arms
    best = best_objective(table, reward, kl, dim)
    start, _ = objective(np.zeros(dim), table, reward, kl)
    env = BanditEnv(
        features=None if table is None else jax.device_put(np.float32(table)),
        reward_mean=jax.device_put(np.float32(reward)),
        kl=jax.device_put(np.float32(kl)),
        best=jax.device_put(np.float32(best)),
    )
    return Problem(
        name="bandit",
        env=env,
        theta0=np.zeros(dim, np.float32),
        forward=forward,
        noise=lambda keys, shape: noise(keys, shape, num_generations=num_generations),
        rollout=lambda env, view, noise: rollout(env, view, noise, num_generations=num_generations),
        gradient=gradient,
        loss=loss,
        initial_loss=float(best - start),
    )
