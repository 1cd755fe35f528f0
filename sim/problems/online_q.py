"""Q-learning along one stream of experience: one transition, one update, the state carried on.

`sim.problems.q_learning` replays whole paths from the start; here the environment goes on where it
stopped, so that an update is one environment step, as in Zhang and Sutton, A Deeper Look at
Experience Replay (arXiv 1712.01275). Each step acts epsilon-greedily, stores its transition in a
FIFO buffer and moves Q by ``step_size`` times the TD error of every transition of a batch, drawn
from the buffer uniformly with replacement, from the first transition on. In a combined batch the
newest transition takes the place of one draw. A buffer and a batch of one transition is online
Q-learning. An episode ends at the goal or after ``cap`` steps; the cap bootstraps, it is no end.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim import buffer as replay
from sim.problems import Array, Problem
from sim.problems.mdp import MDP
from sim.problems.paths import Paths
from sim.problems.q_learning import q_learning
from sim.train import TRAIN, streams

BLOCK = 64


class Learner(NamedTuple):
    """Traced settings of one run: capacity M, batch, step size of a transition, combined, seed."""

    buffer_size: Any
    batch_size: Any
    step_size: Any
    combined: Any
    seed: Any


class Run(NamedTuple):
    """What a run carries from step to step: Q, transitions, state, steps of each episode (E,)."""

    theta: Array
    buffer: replay.Buffer
    state: Array
    episode: Array
    lengths: Array


def stepped(
    problem: Problem, cap: int, tick: Array, learner: Learner, run: Run, numbers: Any
) -> Run:
    """Return the run after one environment step and one update; numbers are noise and ranks."""
    noise, ranks = numbers
    process = problem.env.process
    # A path of one step whose start distribution is all at the state we are in.
    here = (jnp.arange(len(process.start_below)) >= run.state).astype(jnp.float32)
    steps = run.lengths[run.episode]
    here = process._replace(start_below=jnp.where(steps == 0, process.start_below, here))
    view = problem.forward(problem.env, run.theta)
    transition = problem.rollout(problem.env._replace(process=here), view, noise)
    stored = replay.add(run.buffer, tick, transition, tick)

    entry = jnp.arange(len(ranks))
    ranks = jnp.where(learner.combined & (entry == 0), 0, ranks)
    row, column = replay.locate(ranks, jnp.int32(1), tick, len(stored.version))
    batch = replay.take(stored, row, column)
    weight = jnp.where(entry < learner.batch_size, learner.step_size, 0.0)
    move = problem.gradient(problem.env, view, batch, tick - stored.version[row], weight)

    state = transition.reached[0, 0]
    over = (process.alive[state] == 0) | (steps + 1 >= cap)
    return Run(
        theta=run.theta + move,
        buffer=stored,
        state=state,
        episode=jnp.minimum(run.episode + over, len(run.lengths) - 1),
        lengths=run.lengths.at[run.episode].add(1),
    )


def block_numbers(problem: Problem, learners: Learner, tick: Array, width: int) -> Any:
    """Return the noise and the drawn ranks of a block of steps of all runs, (BLOCK, L, ...)."""
    keys = jax.vmap(lambda seed: streams(jax.random.key(seed), TRAIN, tick))(learners.seed)
    noise = jax.vmap(lambda key: problem.noise(key, (BLOCK, 1)), out_axes=1)(keys.rollout)
    stored = tick + 1 + jnp.arange(BLOCK)[:, None]
    capacity = jnp.minimum(stored, learners.buffer_size)
    replace = jnp.ones(len(learners.seed), bool)
    ranks = replay.drawn_ranks(keys.draw, capacity, learners.batch_size, replace, width)
    return noise, ranks


def episode_lengths(
    mdp: MDP,
    learners: Sequence[Learner],
    *,
    episodes: int = 60,
    cap: int = 5000,
    discount: float = 0.999,
    epsilon: float = 0.1,
) -> np.ndarray:
    """Return the environment steps of every episode of every run, (L, episodes).

    Args:
        mdp: the process, its start distribution and its end.
        learners: buffer_size M in [1, 65535], batch_size in [1, 1000], step_size > 0, combined,
            seed >= 0. A step along the batch's mean TD error is ``step_size = alpha / batch_size``.
        episodes: episodes of each run, in [1, 10000].
        cap: largest length of an episode in steps, in [1, 100000].
        discount: gamma in [0, 0.999].
        epsilon: probability of a uniformly random action, in (0, 1].

    Raises:
        ValueError: for a value outside the ranges above.
    """
    check(learners, episodes, cap)
    problem = q_learning(mdp, horizon=1, discount=discount, epsilon=epsilon)
    rows = max(learner.buffer_size for learner in learners)
    width = max(learner.batch_size for learner in learners)
    dtypes = (np.int32, np.int32, np.float32, np.bool_, np.uint32)
    columns = Learner(*map(np.array, zip(*learners, strict=True), dtypes))

    def started(_: Array) -> Run:
        zero, none = jnp.int32(0), jnp.zeros((rows, 1), jnp.int32)
        buffer = replay.filled(Paths(none, jnp.zeros((rows, 1)), none), rows, 1)
        # One place more than there are episodes takes the steps of a run that is over.
        lengths = jnp.zeros(episodes + 1, jnp.int32)
        return Run(jnp.asarray(problem.theta0), buffer, zero, zero, lengths)

    def block(carry: tuple[Array, Run]) -> tuple[Array, Run]:
        first, runs = carry

        def body(runs, xs):
            tick, row_numbers = xs
            step = jax.vmap(lambda *one: stepped(problem, cap, tick, *one))
            return step(columns, runs, row_numbers), None

        numbers = block_numbers(problem, columns, first, width)
        runs, _ = jax.lax.scan(body, runs, (first + jnp.arange(BLOCK), numbers))
        return first + BLOCK, runs

    @jax.jit
    def run_all() -> Array:
        start = (jnp.int32(0), jax.vmap(started)(columns.seed))
        _, runs = jax.lax.while_loop(lambda c: jnp.any(c[1].episode < episodes), block, start)
        return runs.lengths[:, :episodes]

    return np.asarray(run_all())


def check(learners: Sequence[Learner], episodes: int, cap: int) -> None:
    """Raise ValueError, naming value and range, for what cannot be run."""
    limits = [("episodes", episodes, 1, 10_000), ("cap", cap, 1, 100_000)]
    for learner in learners:
        limits += [
            ("buffer_size", learner.buffer_size, 1, replay.MAX_CAPACITY),
            ("batch_size", learner.batch_size, 1, 1000),
            ("seed", learner.seed, 0, 2**32 - 1),
        ]
        if not (np.isfinite(learner.step_size) and learner.step_size > 0):
            raise ValueError(f"step_size must be finite and > 0, got {learner.step_size}")
    for name, value, low, high in limits:
        if not (low <= value <= high and value == int(value)):
            raise ValueError(f"{name} must be a whole number from {low} to {high}, got {value}")
