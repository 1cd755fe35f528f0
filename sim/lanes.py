"""Run many lanes through one compiled program, replacing each lane as it finishes.

Each worker thread drives its own set of lanes through a compiled block: on a CPU one worker a core,
all through the same executable (XLA releases the interpreter lock, so two threads use two cores),
on accelerators one worker a device. A lane's result depends on its settings and seed alone: not on
its neighbours, its position or the worker that ran it. On an accelerator that holds up to rounding:
the order of the additions of a scatter is not fixed there.
"""

import collections
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sim.problems import Problem
from sim.train import (
    DIVERGED,
    OUT_OF_UPDATES,
    REACHED,
    RUNNING,
    Allocation,
    Lane,
    blank_state,
    block_runner,
    check_lanes,
    stack_lanes,
)

# Lanes of one worker. Rounding may differ between widths: a fixed one resumes bit for bit.
WIDTH = 64
# An accelerator takes about as long for this many as for one.
ACCELERATOR_WIDTH = 1024
IDLE = Lane(1, 1, 1, 0.0, False, False, np.inf, 1, 0, 0)
STATUS_NAMES = {REACHED: "reached", OUT_OF_UPDATES: "not_reached", DIVERGED: "diverged"}


class Runner(NamedTuple):
    """Compiled block of ``width`` lanes on one device, and the problem's arrays there."""

    block: Callable[..., Any]
    env: Any
    width: int


class Finished(NamedTuple):
    """End of one lane: its place in the input, how it ended, updates run, last gap."""

    index: int
    status: str
    updates: int
    loss: float


def allocation_for(lanes: Sequence[Lane], num_generations: int = 1, steps: int = 64) -> Allocation:
    """Return the smallest allocation that holds every lane.

    Args:
        lanes: settings to run.
        num_generations: the width is rounded up to a multiple of it.
        steps: updates a block.
    """
    width = max(lane.rollouts_per_update for lane in lanes)
    return Allocation(
        batch=max(lane.batch_size for lane in lanes),
        width=-(-width // num_generations) * num_generations,
        rows=max(-(-lane.buffer_size // lane.rollouts_per_update) for lane in lanes),
        steps=steps,
    )


def run_lanes(
    problem: Problem,
    lanes: Sequence[Lane],
    allocation: Allocation,
    *,
    workers: int | None = None,
    runner: Runner | None = None,
) -> Iterator[list[Finished]]:
    """Yield the ends of all lanes as they come, those of one block together.

    Args:
        problem: the problem.
        lanes: settings and seeds; those expected to run longest are best put first.
        allocation: sizes that hold every lane.
        workers: threads, >= 1; None: one a core, or one an accelerator.
        runner: what ``compiled_runner`` returned for this problem and allocation; None: compile
            for every device.

    Raises:
        ValueError: if workers is below 1, or a lane does not fit the allocation.
    """
    check_lanes(lanes, allocation)
    devices = jax.local_devices()
    if workers is None:
        workers = (os.cpu_count() or 1) if devices[0].platform == "cpu" else len(devices)
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    if not lanes:
        return
    if runner is None:
        runners = [compiled_runner(problem, allocation, device) for device in devices[:workers]]
    else:
        runners = [runner]
    pending = collections.deque(enumerate(lanes))
    results: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    threads = []
    for worker in range(workers):
        arguments = (runners[worker % len(runners)], problem, allocation, pending, results, stop)
        threads.append(threading.Thread(target=_work, args=arguments, daemon=True))
        threads[-1].start()
    try:
        missing = len(lanes)
        while missing:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            missing -= len(result)
            yield result
    finally:
        stop.set()
        # A thread that is still inside XLA when the interpreter ends would abort the process.
        for thread in threads:
            thread.join()


def compiled_runner(
    problem: Problem, allocation: Allocation, device: Any = None, width: int | None = None
) -> Runner:
    """Return the compiled block for a device (None: the first), to be shared by its workers.

    Args:
        problem: the problem.
        allocation: sizes that hold every lane.
        device: of JAX.
        width: lanes that run together; None: as many as keep the device busy. One lane at a time
            is cheapest with a width of 1.
    """
    device = jax.local_devices()[0] if device is None else device
    if width is None:
        width = WIDTH if device.platform == "cpu" else ACCELERATOR_WIDTH
    env = jax.device_put(problem.env, device)
    lanes = stack_lanes([IDLE] * width)
    state = blank_state(problem, allocation, width)
    runner = block_runner(problem, allocation)
    # Accelerators may multiply float32 matrices with fewer bits unless told not to.
    with jax.default_matmul_precision("highest"):
        lowered = runner.lower(env, lanes, state, np.zeros(width, bool), np.int32(0))
    return Runner(lowered.compile(), env, width)


def _work(runner, problem, allocation, pending, results, stop) -> None:
    """Advance one set of lanes until nothing is pending; any error ends the run through results."""
    try:
        lanes = stack_lanes([IDLE] * runner.width)
        state = blank_state(problem, allocation, runner.width)
        running: list[int | None] = [None] * runner.width
        tick = 0
        while not stop.is_set():
            fresh = np.zeros(runner.width, bool)
            for place in range(runner.width):
                if running[place] is None and (job := _next(pending)) is not None:
                    running[place], lane = job
                    for column, value in zip(lanes, lane, strict=True):
                        column[place] = value
                    fresh[place] = True
            if all(index is None for index in running):
                return
            # The arguments are copied: a device may alias or still read memory that changes above.
            arguments = jax.tree.map(np.copy, lanes)
            state, _ = runner.block(runner.env, arguments, state, fresh, np.int32(tick))
            tick = (tick + allocation.steps) % (allocation.rows * allocation.steps)
            status = np.asarray(state.status)
            if np.all(status == RUNNING):
                continue
            updates, loss = np.asarray(state.updates_used), np.asarray(state.loss)
            ended = []
            for place, index in enumerate(running):
                if index is not None and status[place] != RUNNING:
                    name = STATUS_NAMES[int(status[place])]
                    ended.append(Finished(index, name, int(updates[place]), float(loss[place])))
                    running[place] = None
            if ended:
                results.put(ended)
    except BaseException as error:
        results.put(error)


def _next(pending: collections.deque) -> tuple[int, Lane] | None:
    try:
        return pending.popleft()
    except IndexError:
        return None
