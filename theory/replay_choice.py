"""The cheapest whole design once noise is known: which R, N and GPU split, and does it pay at all?

Every design of a stated finite set is priced, so the answer is the best of the set. The set: R in
multiples of the step (lcm of group size and trainers) up to B, all of them or, where they are many
and each is costly to price, one of every few per cent; N = B, or 2, 4, 8 and 16 B for a large
buffer. With GPUs, every split W + T, with B moved to the next multiple of its step, or left out
where that is more than a tenth away.

On-policy uses each rollout once at the job's batch; with GPUs it alternates the phases on all of
them, C (1 + mu) as in P2 of arXiv 2604.08706.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from theory.gpu_pool import GpuPool
from theory.noise_models import NoiseModel, prices
from theory.sampling import Array, ReplayDesign, replay_design

SMALLER_BATCHES = (2, 4, 8)
LARGE_BUFFERS = (2, 4, 8, 16)
LARGEST_SHIFT = 0.1
MANY = {"reuse_law": 20_000, "exact": 24}


@dataclass(frozen=True, eq=False)
class Job:
    """A job to plan: costs, batch, the step of whole numbers, noise, and GPUs if any.

    Attributes:
        gen_train_ratio: mu, > 0.
        batch_size: B, a multiple of ``num_generations``.
        num_generations: G.
        fixed_cost: c0, training-cost units.
        model: predicts updates.
        large_buffer: N of 2 to 16 batches instead of one.
        pool: the GPUs; None to plan rollouts alone.
    """

    gen_train_ratio: float
    batch_size: int
    num_generations: int
    fixed_cost: float
    model: NoiseModel
    large_buffer: bool = False
    pool: GpuPool | None = None


class Priced(NamedTuple):
    """Designs of one split with their updates, step sizes and costs, arrays of one shape."""

    split: tuple[int, int] | None
    design: ReplayDesign
    updates: Array
    learning_rate: Array
    cost: Array


def whole_rollouts(job: Job, batch: int, step: int) -> ReplayDesign | None:
    """The replay designs of the set for one batch, R < B in multiples of the step.

    Args:
        job: the model decides how many R are priced, the buffer kind which N.
        batch: B, a multiple of ``step``.
        step: the multiple, rollouts.

    Returns:
        Designs drawn without replacement, shape (designs,); None where B is one step.

    >>> from theory.noise_models import ReuseLaw
    >>> job = Job(5.0, 8, 2, 0.0, ReuseLaw(1.0, 8))
    >>> whole_rollouts(job, 8, 2).rollouts_per_update.tolist()
    [2.0, 4.0, 6.0]
    """
    most = batch // step - 1
    if most < 1:
        return None
    counts = np.arange(1, most + 1)
    if most > MANY[job.model.name]:
        counts = np.unique(np.geomspace(1, most, MANY[job.model.name]).round().astype(int))
    buffers = np.array(LARGE_BUFFERS if job.large_buffer else (1,)) * batch
    fresh, size = np.meshgrid(counts * step, buffers)
    return replay_design(batch, fresh.ravel(), size.ravel())


def moved_batch(batch_size: int, step: int) -> int | None:
    """The multiple of the step nearest to B, or None if it is more than a tenth away.

    Args:
        batch_size: B, rollouts.
        step: lcm(G, T), rollouts, so that every trainer gets whole groups (P4's T).

    Returns:
        The batch to use, rollouts.

    >>> [moved_batch(60, step) for step in (16, 48, 7)]
    [64, None, 63]
    """
    near = max(1, round(batch_size / step)) * step
    return near if abs(near - batch_size) <= LARGEST_SHIFT * batch_size else None


def batch_notes(given: int, used: int) -> tuple[str, ...]:
    """What to say of a batch that moved to a multiple of P4's trainers and groups: one sentence.

    Args:
        given: B of the job, rollouts.
        used: B of the design, rollouts.

    Returns:
        The sentence; nothing if the batch did not move.

    >>> batch_notes(64, 64)
    ()
    """
    if used == given:
        return ()
    return (f"the batch moves from {given} to {used}, so that each trainer gets whole groups",)


def priced_splits(job: Job) -> list[Priced]:
    """Every replay design of the set with its price, split by split.

    Args:
        job: what to plan.

    Returns:
        One entry a usable split; without GPUs one with split None, or nothing to replay.

    >>> from theory.noise_models import ReuseLaw
    >>> job = Job(5.0, 8, 1, 0.0, ReuseLaw(1.0, 8))
    >>> priced_splits(job)[0].cost.round(1).tolist()
    [26.0, 27.0, 30.9, 35.0, 40.2, 45.1, 49.7]
    """
    if job.pool is None:
        design = whole_rollouts(job, job.batch_size, job.num_generations)
        if design is None:
            return []
        updates, rate = job.model.updates(design)
        cost = prices(job.model, updates, design, job.gen_train_ratio, job.fixed_cost)
        return [Priced(None, design, updates, rate, cost)]
    found: dict[int, tuple[ReplayDesign, Array, Array] | None] = {}
    priced = []
    for split in job.pool.splits():
        step = math.lcm(job.num_generations, split[1])
        if step not in found:
            batch = moved_batch(job.batch_size, step)
            design = None if batch is None else whole_rollouts(job, batch, step)
            found[step] = None if design is None else (design, *job.model.updates(design))
        if (known := found[step]) is not None:
            priced.append(Priced(split, *known, split_cost(job, split, known[0], known[1])))
    return priced


def split_cost(
    job: Job,
    split: tuple[int, int],
    design: ReplayDesign,
    updates: Array,
    ratio_factor: float | Array = 1.0,
) -> Array:
    """Cost of designs on a split: all its GPUs for as long as the slower side takes.

    Args:
        job: what to plan, with GPUs.
        split: (W, T).
        design: the designs.
        updates: U of each.
        ratio_factor: multiplies mu at every split, > 0.

    Returns:
        Training-cost units, broadcast shape; the first fill, generated while the trainers
        wait, is included where the model counts a whole run.

    >>> from theory.noise_models import ReuseLaw
    >>> job = Job(6.0, 60, 1, 0.0, ReuseLaw(0.0, 60), pool=GpuPool(8, 6.0))
    >>> split_cost(job, (6, 2), replay_design(60, 30, 60), np.ones(())).item()
    240.0
    """
    pool = job.pool
    if pool is None:
        raise ValueError("pool = None is not allowed: a split needs GPUs")
    batch, fresh = design.batch_size, design.rollouts_per_update
    time = updates * pool.update_time(split, batch, fresh * ratio_factor, job.fixed_cost)
    if job.model.counts_fill:
        fill = ratio_factor * (design.buffer_size - fresh)
        time = time + pool.ratio(split) * fill / split[0]
    return sum(split) * time


def on_policy(job: Job, batch_sizes: list[int]) -> Priced:
    """On-policy training at several batches, each rollout used once.

    Args:
        job: what to plan.
        batch_sizes: B of each.

    Returns:
        Updates and prices, shape (batches,).

    >>> from theory.noise_models import ReuseLaw
    >>> job = Job(5.0, 8, 1, 0.0, ReuseLaw(8.0, 8))
    >>> on_policy(job, [8, 4]).cost.tolist()
    [96.0, 72.0]
    """
    design = replay_design(batch_sizes, batch_sizes, batch_sizes)
    updates, rate = job.model.updates(design)
    cost = prices(job.model, updates, design, job.gen_train_ratio, job.fixed_cost)
    return Priced(None, design, updates, rate, cost)


def smaller_batches(job: Job) -> list[int]:
    """B/2, B/4 and B/8 where they are whole groups: what L4 says to compare with.

    Args:
        job: the batch and the group size.

    Returns:
        Batch sizes, largest first.

    >>> from theory.noise_models import ReuseLaw
    >>> smaller_batches(Job(5.0, 48, 8, 0.0, ReuseLaw(8.0, 48)))
    [24]
    """
    unit = job.num_generations
    return [job.batch_size // p for p in SMALLER_BATCHES if job.batch_size % (p * unit) == 0]


def break_even_ratio(job: Job, replay: Priced, base: Priced) -> float:
    """The mu above which some replay design of the set is cheaper than on-policy.

    Updates do not depend on mu and costs are linear in it (P1 of arXiv 2604.08706), so every
    design has its own, and this is the smallest.

    Args:
        job: what to plan, without GPUs.
        replay: its replay designs.
        base: on-policy, the job's own batch first.

    Returns:
        mu; infinite if replay pays at none.

    >>> from theory.noise_models import ReuseLaw
    >>> job = Job(5.0, 64, 1, 0.0, ReuseLaw(64 * 2.0, 64))
    >>> round(break_even_ratio(job, priced_splits(job)[0], on_policy(job, [64])), 3)
    4.0
    """
    fresh, size = replay.design.rollouts_per_update, replay.design.buffer_size
    fill = size - fresh if job.model.counts_fill else 0.0
    with np.errstate(invalid="ignore"):
        saved = base.updates[0] * job.batch_size - fill - replay.updates * fresh
        more = (replay.updates - base.updates[0]) * (job.fixed_cost + job.batch_size)
    pays = (saved > 0) & np.isfinite(more)
    return float(np.min(np.maximum(more[pays] / saved[pays], 0.0), initial=np.inf))
