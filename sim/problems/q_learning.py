"""Tabular Q-learning from replayed paths, the time limit bootstrapped.

theta is the Q table. A rollout is a path of H steps from the start distribution under the
epsilon-greedy policy of its time, at most one episode; H = 1 is single transitions. Every stored
step gives the TD error ``r + gamma max_a Q(s', a) - Q(s, a)``, with 0 for the maximum only where
the episode is over. A path cut by the limit H is not over: its last step bootstraps too (partial-
episode bootstrapping), unless ``bootstrap_timeouts`` is False, which learns another, biased Q.

The ascent direction is the semi-gradient ``sum_i w_i sum_t TD_it / H`` at the cells visited, not
the gradient of any objective. The loss is ``mean over living cells of (Q - Q*)^2 / 2``, smooth in
theta where the greedy policy's value jumps. One-step TD needs no importance ratio: staleness only
changes how often a cell is visited. A batch that must hold the newest rollout (combined replay)
needs nothing more of the problem: the weights of a batch are an argument, and the newest rollout
is rank 0 of the buffer. `td_error` gives priorities.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sim.problems import Array, Problem
from sim.problems.mdp import MDP
from sim.problems.paths import (
    Dynamics,
    PathNoise,
    Paths,
    dynamics,
    on_device,
    path_noise,
    sampled_paths,
)

MAX_HORIZON = 1000


class QLearningEnv(NamedTuple):
    """Arrays of the problem; S states, A actions, H steps.

    best (S, A), Q*; discount (); epsilon (); cut (H,), 0 where reaching the limit ends the
    episode without bootstrapping, else 1.
    """

    process: Dynamics
    best: Array
    discount: Array
    epsilon: Array
    cut: Array


class View(NamedTuple):
    """Q (S, A), its maximum where alive and 0 elsewhere (S,), and epsilon-greedy prob (S, A)."""

    q: Array
    value: Array
    prob: Array


def forward(env: QLearningEnv, theta: Array) -> View:
    """Return the table of theta (S A,) and its policy; equally good actions share the greed."""
    q = theta.reshape(env.best.shape)
    highest = q.max(axis=-1, keepdims=True)
    greedy = q == highest
    share = greedy / greedy.sum(axis=-1, keepdims=True)
    prob = env.epsilon / q.shape[-1] + (1 - env.epsilon) * share
    return View(q, highest[:, 0] * env.process.alive, prob)


def loss(env: QLearningEnv, view: View) -> Array:
    """Return half the mean squared error of Q over the cells of living states."""
    error = (view.q - env.best) * env.process.alive[:, None]
    return 0.5 * jnp.sum(error**2) / (env.process.alive.sum() * error.shape[-1])


def rollout(env: QLearningEnv, view: View, noise: PathNoise) -> Paths:
    """Sample K paths from the epsilon-greedy policy in view."""
    return sampled_paths(env.process, view.prob, noise)


def td_error(env: QLearningEnv, view: View, rollouts: Paths) -> Array:
    """Return the TD errors of stored paths at the table in view, (B, H); 0 after the end."""
    here = view.q.ravel()[rollouts.cell]
    target = rollouts.reward + env.discount * env.cut * view.value[rollouts.reached]
    return (target - here) * env.process.alive[rollouts.cell // view.q.shape[-1]]


def gradient(env: QLearningEnv, view: View, rollouts: Paths, age: Array, weight: Array) -> Array:
    """Return the semi-gradient TD direction, (S A,)."""
    pull = weight[:, None] * td_error(env, view, rollouts) / len(env.cut)
    return jnp.zeros(view.q.size).at[rollouts.cell].add(pull)


def best_table(mdp: MDP, discount: float) -> np.ndarray:
    """Return Q*, (S, A), by value iteration in float64 until it is exact to rounding.

    Args:
        mdp: the process.
        discount: gamma in [0, 1).
    """
    reward, transition = mdp.mean_reward, mdp.transition
    table = np.zeros_like(reward)
    for _ in range(int(np.ceil(40 / (1 - discount)))):
        table = reward + discount * transition @ (table.max(axis=-1) * mdp.alive)
    return table


def q_learning(
    mdp: MDP,
    *,
    horizon: int = 20,
    discount: float = 0.95,
    epsilon: float = 0.1,
    reward_noise: float = 0.0,
    bootstrap_timeouts: bool = True,
) -> Problem:
    """Build Q-learning on a process, started at Q = 0.

    Args:
        mdp: the process, from `sim.problems.mdp.gridworld` or `garnet`.
        horizon: time limit H of a path, in [1, 1000]; with 1 states are visited as they start.
        discount: gamma in [0, 0.999]; the closer to 1, the worse the conditioning.
        epsilon: probability of a uniformly random action, in (0, 1]. The smaller, the more the
            visits follow the policy: worse conditioning and more staleness.
        reward_noise: standard deviation of the normal noise of every reward, >= 0.
        bootstrap_timeouts: False: the time limit counts as an end; the loss cannot then reach 0.

    Returns:
        The problem; ``initial_loss`` is half the mean square of Q*.

    Raises:
        ValueError: for a value outside the ranges above, or a process whose Q* is 0.
    """
    if not 1 <= horizon <= MAX_HORIZON:
        raise ValueError(f"horizon must be an integer in [1, {MAX_HORIZON}], got {horizon}")
    if not 0 <= discount <= 0.999:
        raise ValueError(f"discount must be in [0, 0.999], got {discount}")
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must be in (0, 1], got {epsilon}")
    if not (np.isfinite(reward_noise) and reward_noise >= 0):
        raise ValueError(f"reward_noise must be finite and >= 0, got {reward_noise}")
    best = best_table(mdp, discount)
    initial_loss = float(0.5 * np.mean(best[mdp.alive] ** 2))
    if initial_loss == 0:
        raise ValueError("the best Q must differ from 0, the start, got rewards that are all 0")
    branches = mdp.successor.shape[-1]
    env = QLearningEnv(
        process=dynamics(mdp, reward_noise),
        best=on_device(best),
        discount=on_device(discount),
        epsilon=on_device(epsilon),
        cut=on_device([1.0] * (horizon - 1) + [float(bootstrap_timeouts)]),
    )
    return Problem(
        name=f"{mdp.name}_q_learning",
        env=env,
        theta0=np.zeros(best.size, np.float32),
        forward=forward,
        noise=lambda keys, shape: path_noise(
            keys, shape, horizon=horizon, branches=branches, noisy=reward_noise > 0
        ),
        rollout=rollout,
        gradient=gradient,
        loss=loss,
        initial_loss=initial_loss,
    )
