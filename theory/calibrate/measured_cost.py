"""mu as a run shows it: from the counts of an asynchronous run, or from the times of its phases.

Model: mu is a ratio of totals over a run. By counts it is P4 (arXiv 2604.08706), which holds only
where neither side idles; by phase times, idle GPUs are not counted. Groups whose rewards are all
equal teach nothing: where they are dropped, a usable rollout costs 1/keep_rate generated ones.

Assumes windows, or updates, that are independent; successive ones of a drifting run are not, and
the interval is then too narrow: use longer windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.estimate import Estimate, log_interval
from theory.quantities import real_array
from theory.split import gen_train_ratio_from_counts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredRatio:
    """mu as a run shows it.

    Attributes:
        gen_train_ratio: mu per usable rollout, that is mu per generated one over ``keep_rate``.
        per_generated: mu per generated rollout.
        keep_rate: share of generated rollouts that are trained on, e.g. those of groups whose
            rewards differ; 0 to 1.
    """

    gen_train_ratio: Estimate
    per_generated: Estimate
    keep_rate: float


def gen_train_ratio_from_windows(
    rollouts_trained: ArrayLike,
    rollouts_generated: ArrayLike,
    num_generators: int,
    num_trainers: int,
    rollouts_kept: ArrayLike | None = None,
) -> MeasuredRatio:
    """Mu by P4 (arXiv 2604.08706) from counts over several windows of an asynchronous run.

    Args:
        rollouts_trained: rollouts trained on in each window, repeats counted, whole numbers >= 0,
            shape (windows,), at least two windows.
        rollouts_generated: rollouts generated in each window, whole numbers >= 0, same shape.
        num_generators: W, GPUs, >= 1.
        num_trainers: T, GPUs, >= 1.
        rollouts_kept: of the generated ones, those fit for training; None if all are.

    Returns:
        mu with an interval from the scatter of the windows.

    Raises:
        ValueError: if an argument is out of range, or its shape differs.

    >>> gen_train_ratio_from_windows([880, 880], [520, 480], 6, 2).gen_train_ratio.value
    5.28
    """
    trained, generated = _totals(
        rollouts_trained=rollouts_trained, rollouts_generated=rollouts_generated
    )
    for name, counts in (("rollouts_trained", trained), ("rollouts_generated", generated)):
        if (counts != np.floor(counts)).any():
            raise ValueError(f"{name} = {counts} is not allowed: counts must be whole numbers")
    kept = _kept(rollouts_kept, generated)
    value = gen_train_ratio_from_counts(
        int(trained.sum()), int(generated.sum()), num_generators, num_trainers
    )
    return _measured(value, (trained,), (generated,), generated, kept)


def gen_train_ratio_from_times(
    generation_seconds: ArrayLike,
    rollouts_generated: ArrayLike,
    training_seconds: ArrayLike,
    rollouts_trained: ArrayLike,
    rollouts_kept: ArrayLike | None = None,
) -> MeasuredRatio:
    """Mu from phase times: GPU-seconds per generated rollout over GPU-seconds per trained one.

    Holds also where one side idles, as idle time is not counted (setting of P1, arXiv 2604.08706).

    Args:
        generation_seconds: GPU-seconds of generation in each update, >= 0, shape (updates,), at
            least two updates.
        rollouts_generated: rollouts generated in each update, >= 0, same shape.
        training_seconds: GPU-seconds of training in each update, >= 0, same shape.
        rollouts_trained: rollouts trained on in each update, repeats counted, >= 0, same shape.
        rollouts_kept: of the generated ones, those fit for training; None if all are.

    Returns:
        mu with an interval from the scatter of the updates (ratio estimator, delta method).

    Raises:
        ValueError: if an argument is out of range, its shape differs, or its total is 0.

    >>> measured = gen_train_ratio_from_times([50, 56], [10, 10], [20, 20], [20, 20], [8, 8])
    >>> measured.per_generated.value, round(measured.gen_train_ratio.value, 3)
    (5.3, 6.625)
    """
    spent, generated, trained_for, trained = _totals(
        generation_seconds=generation_seconds,
        rollouts_generated=rollouts_generated,
        training_seconds=training_seconds,
        rollouts_trained=rollouts_trained,
    )
    kept = _kept(rollouts_kept, generated)
    value = spent.sum() / generated.sum() / (trained_for.sum() / trained.sum())
    return _measured(value, (spent, trained), (generated, trained_for), generated, kept)


def _totals(**series: ArrayLike) -> list[Array]:
    arrays = {name: real_array(name, values, low=0) for name, values in series.items()}
    shape = next(iter(arrays.values())).shape
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != shape or array.size < 2 or not array.any():
            raise ValueError(
                f"{name} of shape {array.shape} and sum {array.sum():g} is not allowed: give one "
                "value for each of two or more windows, with a sum > 0"
            )
    return list(arrays.values())


def _kept(rollouts_kept: ArrayLike | None, generated: Array) -> Array:
    if rollouts_kept is None:
        return generated
    kept = real_array("rollouts_kept", rollouts_kept, low=0)
    if kept.shape != generated.shape or (kept > generated).any() or not kept.any():
        raise ValueError(
            f"rollouts_kept = {kept} is not allowed: it must be <= rollouts_generated, not all 0"
        )
    return kept


def _measured(
    value: float,
    above: tuple[Array, ...],
    below: tuple[Array, ...],
    generated: Array,
    kept: Array,
) -> MeasuredRatio:
    """Mu and mu over the keep rate, both by linearising the log of their totals."""
    keep_rate = float(kept.sum() / generated.sum())
    sides = [below, tuple(kept if part is generated else part for part in below)]
    raw, usable = (
        log_interval(each, _relative_error(above, side), generated.size - 1)
        for each, side in zip((value, value / keep_rate), sides, strict=True)
    )
    return MeasuredRatio(usable, raw, keep_rate)


def _relative_error(above: tuple[Array, ...], below: tuple[Array, ...]) -> float:
    """Standard error of the log of a product of totals over another."""
    terms = sum(part / part.mean() for part in above) - sum(part / part.mean() for part in below)
    return float(np.std(terms, ddof=1) / math.sqrt(above[0].size))
