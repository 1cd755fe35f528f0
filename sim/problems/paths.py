"""Paths of a tabular Markov decision process, sampled on the device.

A path takes H steps from a state of the start distribution, each with the same table of action
probabilities. Once the episode is over it stays where it is: the steps left earn nothing.
Sizes: S states, A actions, b successors, K paths; cell ``s * A + a`` is action a in state s.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.problems import Array, StreamKeys
from sim.problems.mdp import MDP


class Dynamics(NamedTuple):
    """What sampling needs: distributions as cumulative sums without their last entry.

    successor (S A, b) int32; arrival_below (S A, b - 1); reward (S A, b); start_below (S - 1,);
    alive (S,), 1 or 0; reward_noise (), standard deviation added to rewards of living states.
    """

    successor: Array
    arrival_below: Array
    reward: Array
    start_below: Array
    alive: Array
    reward_noise: Array


class PathNoise(NamedTuple):
    """Random numbers of K paths: start (K,), action and arrival (K, H) uniform, reward normal.

    arrival is None when every cell has one successor, reward is None without reward noise.
    """

    start: Array
    action: Array
    arrival: Array | None
    reward: Array | None


class Paths(NamedTuple):
    """K sampled paths, (K, H) each: cell, reward, and the state reached after each step."""

    cell: Array
    reward: Array
    reached: Array


def on_device(values, dtype: type[np.generic] = np.float32) -> Array:
    """Return values as a device array; nothing is compiled."""
    return jax.device_put(np.asarray(values, dtype))


def dynamics(mdp: MDP, reward_noise: float) -> Dynamics:
    """Return the process as arrays on the device."""
    states, actions, branches = mdp.successor.shape
    below = np.cumsum(mdp.probability, axis=-1)[..., :-1]
    return Dynamics(
        successor=on_device(mdp.successor.reshape(-1, branches), np.int32),
        arrival_below=on_device(below.reshape(states * actions, branches - 1)),
        reward=on_device(mdp.reward.reshape(-1, branches)),
        start_below=on_device(np.cumsum(mdp.start)[:-1]),
        alive=on_device(mdp.alive),
        reward_noise=on_device(reward_noise),
    )


def path_noise(
    keys: StreamKeys, shape: tuple[int, ...], *, horizon: int, branches: int, noisy: bool
) -> PathNoise:
    """Return the random numbers of paths with leading axes ``shape``."""
    steps = (*shape, horizon)
    reward, arrival = jax.random.split(keys.reward)
    return PathNoise(
        start=jax.random.uniform(keys.start, shape),
        action=jax.random.uniform(keys.action, steps),
        arrival=jax.random.uniform(arrival, steps) if branches > 1 else None,
        reward=jax.random.normal(reward, steps) if noisy else None,
    )


def sampled_paths(process: Dynamics, prob: Array, noise: PathNoise) -> Paths:
    """Return K paths of H steps drawn with the action probabilities ``prob`` (S, A)."""
    actions = prob.shape[-1]
    branches = process.successor.shape[-1]
    action_below = jnp.cumsum(prob, axis=-1)[:, :-1]

    def step(state, uniforms):
        action_uniform, arrival_uniform = uniforms
        action = jnp.sum(action_uniform[:, None] >= action_below[state], -1, dtype=jnp.int32)
        cell = state * actions + action
        slot = cell * branches
        if arrival_uniform is not None:
            below = process.arrival_below[cell]
            slot += jnp.sum(arrival_uniform[:, None] >= below, -1, dtype=jnp.int32)
        return process.successor.ravel()[slot], (cell, slot)

    first = jnp.sum(noise.start[:, None] >= process.start_below, axis=-1, dtype=jnp.int32)
    uniforms = jax.tree.map(jnp.transpose, (noise.action, noise.arrival))
    _, by_step = jax.lax.scan(step, first, uniforms)
    cell, slot = jax.tree.map(jnp.transpose, by_step)
    reward = process.reward.ravel()[slot]
    if noise.reward is not None:
        alive = process.alive[cell // actions]
        reward += process.reward_noise * alive * noise.reward
    return Paths(cell, reward, process.successor.ravel()[slot])
