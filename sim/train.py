"""One training lane: generate, store, draw, update; then a scan over updates, mapped over lanes.

Update t of a lane (one setting, one seed), with policy version t:
generate R rollouts, push them, evict the oldest beyond N, draw B uniformly, take one gradient step.
Start: the buffer is filled to N at theta_0, update 0's R rollouts are part of the fill.
``start="growing"`` draws from the rollouts stored so far instead, from max(B, R) on.
The exact objective is evaluated before every update; a lane is over at the first update count at
which it is within the target, when it runs out of updates, or when the objective is not finite.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim import buffer as replay
from sim.problems import Array, Problem, StreamKeys

RUNNING, REACHED, OUT_OF_UPDATES, DIVERGED = range(4)
FILL, TRAIN = 0, 1


class Lane(NamedTuple):
    """Traced settings of one lane, scalars each (or one array an entry over lanes)."""

    batch_size: Any
    rollouts_per_update: Any
    buffer_size: Any
    step_size: Any
    replace: Any
    growing: Any
    target: Any
    max_updates: Any
    seed: Any
    setting: Any


class State(NamedTuple):
    """What one lane carries from update to update."""

    theta: Array
    buffer: replay.Buffer
    updates: Array
    status: Array
    updates_used: Array
    loss: Array


class Allocation(NamedTuple):
    """Fixed sizes of one program: batch >= B, width >= R, rows >= ceil(N/R), updates a block."""

    batch: int
    width: int
    rows: int
    steps: int = 64


class Step(NamedTuple):
    """What one update did, for recording: theta and loss before it, the drawn rollouts."""

    theta: Array
    loss: Array
    age: Array
    row: Array
    column: Array
    in_batch: Array


class Streams(NamedTuple):
    """Keys of the four random streams of a block of updates."""

    rollout: StreamKeys
    draw: Array


def lane_key(lane: Lane) -> Array:
    """Return the key of a lane: a seed shares no stream with another seed or another setting."""
    return jax.random.fold_in(jax.random.key(lane.seed), lane.setting)


def streams(key: Array, phase: int, block: Array) -> Streams:
    """Return the stream keys of a block of updates (or of the initial fill)."""
    start, action, reward, draw = jax.random.split(
        jax.random.fold_in(jax.random.fold_in(key, phase), block), 4
    )
    return Streams(StreamKeys(start, action, reward), draw)


def started(problem: Problem, allocation: Allocation, env: Any, lane: Lane) -> State:
    """Return the state before update 0, the buffer filled at theta_0."""
    slots = allocation.rows * allocation.width
    keys = streams(lane_key(lane), FILL, jnp.int32(0)).rollout
    theta = jnp.asarray(problem.theta0)
    items = problem.rollout(env, problem.forward(env, theta), problem.noise(keys, (slots,)))
    zero = jnp.int32(0)
    return State(
        theta=theta,
        buffer=replay.filled(items, allocation.rows, allocation.width),
        updates=zero,
        status=jnp.int32(RUNNING),
        updates_used=zero,
        loss=jnp.float32(jnp.inf),
    )


def block_numbers(problem: Problem, allocation: Allocation, lanes: Lane, updates: Array) -> Any:
    """Return the random numbers of the next block of all lanes.

    Args:
        problem: gives the rollouts' noise.
        allocation: fixed sizes.
        lanes: settings, (L,) each.
        updates: updates each lane has done, (L,).

    Returns:
        Rollout noise, leading axes (steps, L, width), and drawn ranks, (steps, L, batch).
    """
    keys = jax.vmap(lambda lane, done: streams(lane_key(lane), TRAIN, done // allocation.steps))(
        lanes, updates
    )
    shape = (allocation.steps, allocation.width)
    noise = jax.vmap(lambda key: problem.noise(key, shape), out_axes=1)(keys.rollout)
    stored = jnp.maximum(lanes.batch_size, lanes.rollouts_per_update)
    done = updates + jnp.arange(allocation.steps)[:, None]
    grown = jnp.minimum(stored + done * lanes.rollouts_per_update, lanes.buffer_size)
    capacity = jnp.where(lanes.growing, grown, lanes.buffer_size)
    ranks = replay.drawn_ranks(
        keys.draw, capacity, lanes.batch_size, lanes.replace, allocation.batch
    )
    return noise, ranks


def outcome(lane: Lane, state: State, loss: Array) -> State:
    """Return the state with its end recorded if this loss, at ``state.updates``, ends the lane."""
    status = jnp.where(
        loss <= lane.target,
        REACHED,
        jnp.where(
            ~jnp.isfinite(loss),
            DIVERGED,
            jnp.where(state.updates >= lane.max_updates, OUT_OF_UPDATES, RUNNING),
        ),
    )
    running = state.status == RUNNING
    return state._replace(
        status=jnp.where(running, status, state.status),
        updates_used=jnp.where(running, state.updates, state.updates_used),
        loss=jnp.where(running, loss, state.loss),
    )


def update(
    problem: Problem, env: Any, tick: Array, lane: Lane, state: State, numbers: Any
) -> tuple[State, Step]:
    """Return the state after one update, and what it did."""
    noise, ranks = numbers
    view = problem.forward(env, state.theta)
    loss = problem.loss(env, view)
    state = outcome(lane, state, loss)
    fresh = problem.rollout(env, view, noise)
    stored = replay.add(state.buffer, tick, fresh, state.updates)
    rows = stored.version.shape[0]
    row, column = replay.locate(ranks, lane.rollouts_per_update, tick, rows)
    in_batch = jnp.arange(ranks.shape[-1]) < lane.batch_size
    age = state.updates - stored.version[row]
    ascent = problem.gradient(
        env, view, replay.take(stored, row, column), age, in_batch / lane.batch_size
    )
    step = Step(state.theta, loss, age, row, column, in_batch)
    after = state._replace(
        theta=state.theta + lane.step_size * ascent, buffer=stored, updates=state.updates + 1
    )
    return after, step


def block_runner(
    problem: Problem, allocation: Allocation, record: Callable[[Step], Any] = lambda step: None
) -> Callable[..., tuple[State, Any]]:
    """Return the compiled function that advances all lanes by ``allocation.steps`` updates.

    Args:
        problem: its functions are compiled in, its env is an argument.
        allocation: fixed sizes.
        record: what to keep of each update; None keeps nothing.

    Returns:
        ``(env, lanes, state or None, fresh (L,) bool, tick) -> (state, records (steps, L, ...))``.
        Lanes marked fresh start anew; state None starts all. State is donated. tick is the
        number of updates run so far by the caller, a multiple of ``allocation.steps``.
    """

    def run(env, lanes, state, fresh, tick):
        def restart(old):
            new = jax.vmap(lambda lane: started(problem, allocation, env, lane))(lanes)
            pick = jax.vmap(jnp.where, in_axes=(0, 0, 0))
            return jax.tree.map(lambda a, b: pick(fresh, a, b), new, old)

        state = jax.lax.cond(fresh.any(), restart, lambda old: old, state)
        numbers = block_numbers(problem, allocation, lanes, state.updates)

        def body(carry, xs):
            now, row_numbers = xs
            carry, step = jax.vmap(
                lambda lane, one, nums: update(problem, env, now, lane, one, nums)
            )(lanes, carry, row_numbers)
            return carry, record(step)

        ticks = tick + jnp.arange(allocation.steps)
        return jax.lax.scan(body, state, (ticks, numbers))

    return jax.jit(run, donate_argnums=2)


def blank_state(problem: Problem, allocation: Allocation, lanes: int) -> State:
    """Return a NumPy state of the right shapes, to be started by marking every lane fresh."""
    lane = Lane(*[np.zeros((), dtype) for dtype in LANE_DTYPES])
    shape = jax.eval_shape(
        lambda env, lane: started(problem, allocation, env, lane), problem.env, lane
    )
    return jax.tree.map(lambda leaf: np.zeros((lanes, *leaf.shape), leaf.dtype), shape)


LANE_DTYPES = Lane(
    batch_size=np.int32,
    rollouts_per_update=np.int32,
    buffer_size=np.int32,
    step_size=np.float32,
    replace=np.bool_,
    growing=np.bool_,
    target=np.float32,
    max_updates=np.int32,
    seed=np.uint32,
    setting=np.uint32,
)


def stack_lanes(lanes: Sequence[Lane]) -> Lane:
    """Return one Lane of NumPy arrays, (L,) each, from L lanes."""
    columns = zip(*lanes, strict=True)
    return Lane(*map(np.array, columns, LANE_DTYPES))


def check_lanes(lanes: Sequence[Lane], allocation: Allocation) -> None:
    """Check that every lane is a possible run and fits the allocation.

    Args:
        lanes: settings and seeds.
        allocation: fixed sizes.

    Raises:
        ValueError: if one is not, naming the value and what is allowed.

    >>> check_lanes([Lane(8, 4, 6, 0.1, False, False, 0.0, 10, 0, 0)], Allocation(8, 8, 8))
    Traceback (most recent call last):
    ValueError: buffer_size must be >= batch_size = 8 to draw without replacement, got 6
    """
    for lane in lanes:
        batch, new, stored = lane.batch_size, lane.rollouts_per_update, lane.buffer_size
        limits = [
            ("batch_size", batch, 1, allocation.batch, "the allocated batch"),
            ("rollouts_per_update", new, 1, allocation.width, "the allocated width"),
            ("buffer_size", stored, new, allocation.rows * new, "the allocated rows times R"),
            ("buffer_size", stored, new, replay.MAX_CAPACITY, "the largest buffer"),
            ("seed", lane.seed, 0, 2**32 - 1, "the largest uint32"),
        ]
        for name, value, low, high, what in limits:
            if not (low <= value <= high and value == int(value)):
                raise ValueError(
                    f"{name} must be a whole number from {low} to {high}, {what}, got {value}"
                )
        if stored < batch and not lane.replace:
            raise ValueError(
                f"buffer_size must be >= batch_size = {batch} to draw without replacement, "
                f"got {stored}"
            )
        if lane.growing and stored < max(batch, new):
            raise ValueError(
                f"buffer_size must be >= max(B, R) = {max(batch, new)} for a growing start, "
                f"got {stored}"
            )
        if not (np.isfinite(lane.step_size) and lane.step_size > 0):
            raise ValueError(f"step_size must be finite and > 0, got {lane.step_size}")


def recorded_run(
    problem: Problem,
    allocation: Allocation,
    lanes: list[Lane],
    updates: int,
    record: Callable[[Step], Any],
) -> tuple[State, Any]:
    """Run all lanes for a number of updates and return what was recorded of each.

    Args:
        problem: the problem.
        allocation: fixed sizes; updates is rounded up to whole blocks of ``steps``.
        lanes: settings and seeds.
        updates: updates to run.
        record: what to keep of each update.

    Returns:
        The last state and the records with leading axes (updates, L).

    Raises:
        ValueError: if a lane is not a possible run or does not fit the allocation.
    """
    check_lanes(lanes, allocation)
    runner = block_runner(problem, allocation, record)
    state = blank_state(problem, allocation, len(lanes))
    stacked = stack_lanes(lanes)
    records = []
    for tick in range(0, updates, allocation.steps):
        fresh = np.full(len(lanes), tick == 0)
        state, out = runner(problem.env, stacked, state, fresh, np.int32(tick))
        records.append(jax.device_get(out))
    joined = jax.tree.map(lambda *parts: np.concatenate(parts)[:updates], *records)
    return state, joined
