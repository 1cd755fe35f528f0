"""What a training run costs.

Model: one rollout costs ``cost_gen`` to generate and ``cost_train`` to train on once. Only their
ratio mu (``gen_train_ratio``) matters; costs are in training-cost units: training once on one
rollout costs 1. Costs add up over updates, and the first fill of the buffer is paid for.

Fails where mu depends on the batch or on the split (see ``theory.split``), or where an update has
a cost of its own that ``fixed_cost`` does not cover.

Formulas from arXiv 2604.08706.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from theory.quantities import FloatOrArray, plain, positive, real_array, whole


def gen_train_ratio(cost_gen: float, cost_train: float) -> float:
    """Cost of generating a rollout over the cost of training on it once: mu.

    Source: arXiv 2604.08706 (setting of P1).

    Args:
        cost_gen: cost of generating one rollout, any unit, > 0.
        cost_train: cost of one forward and backward pass on it, same unit, > 0.

    Returns:
        mu = cost_gen / cost_train, no unit.

    Raises:
        ValueError: if a cost is not a finite number > 0, or their ratio is not.

    >>> gen_train_ratio(10.56, 2.0)
    5.28
    """
    costs = positive("cost_gen", cost_gen), positive("cost_train", cost_train)
    return positive(f"cost_gen / cost_train of {cost_gen} and {cost_train}", costs[0] / costs[1])


def update_cost(
    batch_size: ArrayLike,
    rollouts_per_update: ArrayLike,
    gen_train_ratio: ArrayLike,
    fixed_cost: ArrayLike = 0.0,
) -> FloatOrArray:
    """Cost of one synchronous update, c = fixed_cost + B + mu R.

    Formula P1, arXiv 2604.08706; the paper has no fixed cost.

    Args:
        batch_size: B, rollouts per update, > 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        gen_train_ratio: mu, > 0.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units, >= 0.

    Returns:
        Cost in training-cost units, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> update_cost(60, 30, 5.28)
    218.4
    """
    batch = real_array("batch_size", batch_size, low=0, above=True)
    fresh = real_array("rollouts_per_update", rollouts_per_update, low=0, above=True)
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    return plain(real_array("fixed_cost", fixed_cost, low=0) + batch + mu * fresh)


def async_cost_without_buffer(training_cost: float, gen_train_ratio: float) -> float:
    """Cost of one asynchronous update that uses each rollout once, C (1 + mu).

    Formula P2, arXiv 2604.08706.

    Args:
        training_cost: C, cost of training on one batch, any unit, > 0.
        gen_train_ratio: mu, > 0.

    Returns:
        Cost in the unit of ``training_cost``.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> round(async_cost_without_buffer(60, 5.28), 1)
    376.8
    """
    return positive("training_cost", training_cost) * (
        1 + positive("gen_train_ratio", gen_train_ratio)
    )


def async_cost_with_buffer(training_cost: float, num_generators: int, num_trainers: int) -> float:
    """Cost of one asynchronous update that draws from a buffer, C (1 + W/T).

    Formula P2, arXiv 2604.08706: the generators run for as long as the trainers do.

    Args:
        training_cost: C, cost of training on one batch, any unit, > 0.
        num_generators: W, GPUs, >= 1.
        num_trainers: T, GPUs, >= 1.

    Returns:
        Cost in the unit of ``training_cost``.

    Raises:
        ValueError: if an argument is out of range.

    >>> async_cost_with_buffer(60, 6, 2)
    240.0
    """
    generators = whole("num_generators", num_generators)
    trainers = whole("num_trainers", num_trainers)
    return positive("training_cost", training_cost) * (1 + generators / trainers)


def cost_to_target(
    updates: ArrayLike,
    batch_size: ArrayLike,
    rollouts_per_update: ArrayLike,
    buffer_size: ArrayLike,
    gen_train_ratio: ArrayLike,
    fixed_cost: ArrayLike = 0.0,
    start: Literal["full", "growing"] = "full",
) -> FloatOrArray:
    """Cost of reaching a target, U (fixed_cost + B) + mu (N + (U - 1) R).

    P1 (arXiv 2604.08706) summed over U updates, with the first fill of the buffer paid for:
    N rollouts, of which the first update's R are part. With B = R = N it is the on-policy cost
    U (fixed_cost + B (1 + mu)).

    Args:
        updates: U, updates to the target, >= 1; infinity where it was not reached.
        batch_size: B, rollouts per update, > 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        buffer_size: N, rollouts, >= R.
        gen_train_ratio: mu = cost_gen / cost_train, > 0.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units, >= 0.
        start: ``"full"`` fills N before the first update; ``"growing"`` trains as soon as
            max(B, R) are stored, and pays for these instead of N.

    Returns:
        Cost in training-cost units, broadcast shape; infinite where ``updates`` is.

    Raises:
        ValueError: if an argument is out of range.

    >>> cost_to_target(200, 60, 30, 120, 5.0)
    42450.0
    """
    horizon = real_array("updates", updates, low=1, infinite=True)
    cost_per_update = update_cost(batch_size, rollouts_per_update, gen_train_ratio, fixed_cost)
    fresh = real_array("rollouts_per_update", rollouts_per_update, low=0, above=True)
    stored = _first_fill(batch_size, fresh, buffer_size, start)
    return plain(
        horizon * cost_per_update + np.asarray(gen_train_ratio, dtype=float) * (stored - fresh)
    )


def _first_fill(
    batch_size: ArrayLike, fresh: FloatOrArray, buffer_size: ArrayLike, start: str
) -> FloatOrArray:
    if start not in ("full", "growing"):
        raise ValueError(f"start = {start!r} is not allowed: it must be 'full' or 'growing'")
    size = real_array("buffer_size", buffer_size, low=0, above=True)
    needed = fresh if start == "full" else np.maximum(np.asarray(batch_size, dtype=float), fresh)
    short = np.less(size, needed)
    if short.any():
        size, needed = (np.broadcast_to(a, short.shape)[short][0] for a in (size, needed))
        raise ValueError(f"buffer_size = {size:g} is not allowed: it must be >= {needed:g}")
    return size if start == "full" else needed
