"""Policy gradient on paths of fixed length through a tabular Markov decision process.

A rollout is a path of H steps under ``pi(.|s) = softmax(logits[s])``, the same policy at every
step. Objective, finite-horizon and discounted,
``J = E sum_{t<H} gamma^t (r_t - kl log(pi(a_t|s_t) A))``, the KL cost only while the episode lasts.
A rollout keeps its residuals ``gamma^t (r_t + gamma V_{t+1}(s_{t+1}) - V_t(s_t))``, V the exact
value of the policy that generated it: fresh, they add up to the return-to-go minus V_t(s_t). The KL
cost is differentiated at the current policy, with its own exact value in place of V.
Corrected by per-decision ratios the gradient is unbiased at any age.

Conditioning: tabular and without noise, tens of updates are enough. As many features as cells (or
more) with a power-law spectrum keep every policy in reach and need hundreds. Fewer features leave
J with lower maxima, where a run can end short of any target; a large kl removes them.
Staleness: a path's ratio is a product of H, so its noise grows with ``horizon``; small ``kl`` means
sharper policies near the optimum. A factor on the logits would be no knob: it is a step size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.estimators import per_decision_corrected, per_decision_ratio
from sim.problems import Array, Problem
from sim.problems.mdp import MDP
from sim.problems.paths import (
    Dynamics,
    PathNoise,
    dynamics,
    on_device,
    path_noise,
    sampled_paths,
)
from sim.problems.trajectory_optimum import Objective, best_objective

MAX_HORIZON = 1000


class TrajectoryEnv(NamedTuple):
    """Arrays of the problem; S states, A actions, H steps.

    transition (S, A, S); mean_reward (S, A); start (S,); decay (H,), ``gamma^t``; discount ();
    kl (); best (); features (S A, F) or None for one parameter a cell.
    """

    process: Dynamics
    transition: Array
    mean_reward: Array
    start: Array
    decay: Array
    discount: Array
    kl: Array
    best: Array
    features: Array | None


class View(NamedTuple):
    """The policy at theta: logp, prob, cost (S, A); value and cost_value (H + 1, S).

    cost is ``kl log(pi A)``, 0 where the episode is over; values are of the steps from t on.
    """

    logp: Array
    prob: Array
    cost: Array
    value: Array
    cost_value: Array


class Rollouts(NamedTuple):
    """Stored paths, (K, H) each: cell int32, log-probability at generation, residual."""

    cell: Array
    logp: Array
    residual: Array


def forward(env: TrajectoryEnv, theta: Array) -> View:
    """Return the policy of theta (F,) or (S A,) and its exact values."""
    logits = theta if env.features is None else env.features @ theta
    logp = jax.nn.log_softmax(logits.reshape(env.mean_reward.shape), axis=-1)
    prob = jnp.exp(logp)
    cost = env.kl * (logp + jnp.log(float(logp.shape[-1]))) * env.process.alive[:, None]
    now = jnp.stack([jnp.sum(prob * env.mean_reward, -1), jnp.sum(prob * cost, -1)])
    onward = env.discount * jnp.einsum("sa,san->ns", prob, env.transition)

    def back(following, _):
        here = now + following @ onward
        return here, here

    last = jnp.zeros_like(now)
    _, earlier = jax.lax.scan(back, last, None, length=len(env.decay), reverse=True)
    values = jnp.concatenate([earlier, last[None]])
    return View(logp, prob, cost, values[:, 0], values[:, 1])


def loss(env: TrajectoryEnv, view: View) -> Array:
    """Return the gap ``best - J(theta)``, exact."""
    return env.best - env.start @ (view.value[0] - view.cost_value[0])


def rollout(env: TrajectoryEnv, view: View, noise: PathNoise) -> Rollouts:
    """Sample K paths from the policy in view."""
    actions = view.prob.shape[-1]
    paths = sampled_paths(env.process, view.prob, noise)
    state = jnp.arange(len(env.decay)) * len(env.start) + paths.cell // actions
    reached = jnp.arange(1, len(env.decay) + 1) * len(env.start) + paths.reached
    value = view.value.ravel()
    residual = paths.reward + env.discount * value[reached] - value[state]
    return Rollouts(paths.cell, view.logp.ravel()[paths.cell], env.decay * residual)


def cost_residual(env: TrajectoryEnv, view: View, cell: Array) -> Array:
    """Return the discounted residuals of the KL cost at the policy in view, (B, H)."""
    state = jnp.arange(len(env.decay)) * len(env.start) + cell // view.prob.shape[-1]
    here = view.cost_value.ravel()[state]
    following = jnp.pad(here[:, 1:], ((0, 0), (0, 1)))
    return env.decay * (view.cost.ravel()[cell] + env.discount * following - here)


def gradient(
    env: TrajectoryEnv, view: View, rollouts: Rollouts, age: Array, weight: Array
) -> Array:
    """Return the per-decision importance-corrected policy gradient, (F,) or (S A,)."""
    ratio = per_decision_ratio(view.logp.ravel()[rollouts.cell], rollouts.logp)
    residual = rollouts.residual - cost_residual(env, view, rollouts.cell)
    pull = weight[:, None] * per_decision_corrected(ratio, residual)
    cells = jnp.zeros(view.logp.size).at[rollouts.cell].add(pull).reshape(view.logp.shape)
    score = (cells - view.prob * cells.sum(axis=-1, keepdims=True)).ravel()
    return score if env.features is None else score @ env.features


def power_law_features(cells: int, count: int, power: float, problem_seed: int) -> np.ndarray:
    """Return normal features of scale ``j^(-power/2)``, mean squared norm 1, (cells, count)."""
    scale = np.arange(1, count + 1) ** (-power / 2)
    rng = np.random.default_rng(problem_seed)
    return rng.standard_normal((cells, count)) * scale / np.linalg.norm(scale)


def trajectory(
    mdp: MDP,
    *,
    horizon: int = 20,
    discount: float = 0.95,
    kl: float = 0.1,
    reward_noise: float = 0.0,
    features: int = 96,
    spectrum_power: float = 1.5,
    problem_seed: int = 0,
) -> Problem:
    """Build the policy-gradient problem on a process, started at the uniform policy (theta = 0).

    Args:
        mdp: the process, from `sim.problems.mdp.gridworld` or `garnet`.
        horizon: steps of a path H, in [1, 1000]; the longer, the more staleness hurts.
        discount: gamma in (0, 1]; the closer to 1, the further credit has to travel.
        kl: weight of the KL cost to the uniform policy, >= 0; the smaller, the sharper the best
            policy.
        reward_noise: standard deviation of the normal noise of every reward, >= 0.
        features: number of features F of a log-linear policy, or 0: a parameter a cell. With
            F >= S A it can still be any policy.
        spectrum_power: a in the feature scales ``j^(-a/2)``, >= 0; the mean squared norm is 1. The
            larger, the worse the conditioning. No effect without features.
        problem_seed: seed of the features, >= 0.

    Returns:
        The problem; ``initial_loss`` is the gap of the uniform policy to the best objective found
        (`best_objective`), which a run need not be able to reach: see the module's docstring.

    Raises:
        ValueError: for a value outside the ranges above.
    """
    if not 1 <= horizon <= MAX_HORIZON:
        raise ValueError(f"horizon must be an integer in [1, {MAX_HORIZON}], got {horizon}")
    if not 0 < discount <= 1:
        raise ValueError(f"discount must be in (0, 1], got {discount}")
    for name, value in [
        ("kl", kl),
        ("reward_noise", reward_noise),
        ("spectrum_power", spectrum_power),
    ]:
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, got {value}")
    for name, value in [("features", features), ("problem_seed", problem_seed)]:
        if value < 0:
            raise ValueError(f"{name} must be an integer >= 0, got {value}")
    states, actions, branches = mdp.successor.shape
    table = None
    if features:
        table = power_law_features(states * actions, features, spectrum_power, problem_seed)
    dim = features or states * actions
    objective = Objective(
        mdp.transition, mdp.mean_reward, mdp.start, mdp.alive, horizon, discount, kl, table
    )
    best = best_objective(objective, dim)
    env = TrajectoryEnv(
        process=dynamics(mdp, reward_noise),
        transition=on_device(mdp.transition),
        mean_reward=on_device(mdp.mean_reward),
        start=on_device(mdp.start),
        decay=on_device(discount ** np.arange(horizon)),
        discount=on_device(discount),
        kl=on_device(kl),
        best=on_device(best),
        features=None if table is None else on_device(table),
    )
    return Problem(
        name=f"{mdp.name}_trajectory",
        env=env,
        theta0=np.zeros(dim, np.float32),
        forward=forward,
        noise=lambda keys, shape: path_noise(
            keys, shape, horizon=horizon, branches=branches, noisy=reward_noise > 0
        ),
        rollout=rollout,
        gradient=gradient,
        loss=loss,
        initial_loss=best - objective(np.zeros(dim))[0],
    )
