"""Problems the simulator can train on, all with an exact objective.

A problem is a record of pure functions over one lane (one setting, one seed); `sim.train` maps
them over lanes. Shapes below are for one lane, with K rollouts generated and B used.

forward(env, theta)                          -> view, what the other functions need of theta
noise(keys, shape)                           -> random numbers of rollouts, leading axes `shape`
rollout(env, view, noise)                    -> rollouts, a pytree with leading axis K
gradient(env, view, rollouts, age, weight)   -> ascent direction (dim,); weight (B,) sums to 1
loss(env, view)                              -> gap to the best objective, exact, >= 0

`env` holds arrays only, so two environments of one shape share a compiled program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Array = jax.Array


class StreamKeys(NamedTuple):
    """One key for each random stream of a rollout: its start, its actions, its reward."""

    start: Array
    action: Array
    reward: Array


class Problem(NamedTuple):
    """Functions and arrays of one environment; see the module docstring for the shapes."""

    name: str
    env: Any
    theta0: Any
    forward: Callable[..., Any]
    noise: Callable[..., Any]
    rollout: Callable[..., Any]
    gradient: Callable[..., Array]
    loss: Callable[..., Array]
    initial_loss: float
