"""The noise scale and the least number of updates, fitted to on-policy runs at several batch sizes.

Model: U(B) = S_min (1 + Bnoise/B) updates to a target on average (L0), a straight line in 1/B.

Assumes independent seeds that all reached the target. L0 is the long-run law: batch sizes that it
does not describe show in ``misfit``. The noise scale at one moment of a run, from gradients, is in
``theory.calibrate.noise_scale``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.estimate import Estimate, ratio_of_means, t_quantile
from theory.quantities import FloatOrArray, plain, real_array

PRIOR_SEEDS = 16.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UpdatesFit:
    """The two constants of L0, fitted.

    Attributes:
        noise_scale: Bnoise, rollouts.
        min_updates: S_min, updates needed without noise.
        misfit: chance of a worse fit if the law holds, 0 to 1; None without scatter between seeds.
        converged: whether both constants lie inside their range and the law is not rejected at 1 %.
        message: what to know before using the fit, empty if nothing.
    """

    noise_scale: Estimate
    min_updates: Estimate
    misfit: float | None
    converged: bool
    message: str


class _BatchMeans(NamedTuple):
    """Mean updates at each batch size, its weight, and its variance with degrees of freedom.

    The degrees are one number where one scatter stands behind all variances.
    """

    values: Array
    weights: Array
    variances: Array
    degrees: Array | float


def long_run_updates(
    min_updates: ArrayLike, noise_scale: ArrayLike, variance: ArrayLike
) -> FloatOrArray:
    """Updates to a target, U = S_min (1 + Bnoise V).

    Formula L0 of this project; on-policy, V = 1/B.

    Args:
        min_updates: S_min, updates needed without noise, > 0.
        noise_scale: Bnoise, rollouts, >= 0.
        variance: V of one update's gradient over that of a single rollout's, 1/rollouts, >= 0.

    Returns:
        U, updates, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> long_run_updates(100, 64, 1 / 32)
    300.0
    """
    scale = real_array("noise_scale", noise_scale, low=0)
    noise = real_array("variance", variance, low=0)
    return plain(real_array("min_updates", min_updates, low=0, above=True) * (1 + scale * noise))


def noise_scale_from_updates(batch_sizes: ArrayLike, updates: Sequence[ArrayLike]) -> UpdatesFit:
    """Bnoise and S_min from on-policy runs at three or more batch sizes.

    Least squares for L0. The weight of a batch size is its number of seeds over the variance
    between them, shrunk towards a common relative scatter worth sixteen seeds; the intervals use
    the unshrunk variances, with Fieller's set for Bnoise. Without any scatter between seeds they
    come from the scatter about the line.

    Args:
        batch_sizes: B, rollouts per update, all different, > 0, shape (sizes,).
        updates: for each batch size the updates each seed needed, > 0; seeds may differ in number.

    Returns:
        The fit. A constant that would be negative is reported as 0, and Bnoise as infinite where
        S_min is 0, with the interval the data allow and a message.

    Raises:
        ValueError: with fewer than three batch sizes, or if a value is out of range.

    >>> fit = noise_scale_from_updates([16, 64, 256], [[490, 510], [198, 202], [125, 125]])
    >>> round(fit.noise_scale.value, 1), round(fit.min_updates.value, 1)
    (64.0, 100.0)
    """
    sizes, seeds = _runs(batch_sizes, updates)
    counts = np.array([runs.size for runs in seeds], dtype=float)
    means = np.array([runs.mean() for runs in seeds])
    spread = np.array([runs.var(ddof=1) if runs.size > 1 else 0.0 for runs in seeds])
    line = np.stack([1 / sizes, np.ones_like(sizes)])
    data = _batch_means(counts, means, spread, line)
    solve = _solution(line, data.weights)
    rest = means - line.T @ (solve @ means)
    lack = float(rest**2 @ data.weights) / (sizes.size - 2)
    misfit = _misfit(lack, sizes.size - 2, float((counts - 1).sum())) if spread.any() else None
    return _fit(solve, data, misfit)


def _runs(batch_sizes: ArrayLike, updates: Sequence[ArrayLike]) -> tuple[Array, list[Array]]:
    sizes = real_array("batch_sizes", batch_sizes, low=0, above=True)
    if sizes.ndim != 1 or np.unique(sizes).size < max(3, sizes.size):
        raise ValueError(f"batch_sizes = {sizes} is not allowed: give three or more, all different")
    return sizes, checked_runs(sizes.size, updates)


def checked_runs(designs: int, updates: Sequence[ArrayLike]) -> list[Array]:
    """The updates of each design's seeds, checked (for L0).

    Args:
        designs: how many designs are due.
        updates: for each the updates each seed needed, > 0.

    Returns:
        One row of updates a design.

    Raises:
        ValueError: for another number of designs, or a value out of range.

    >>> [runs.tolist() for runs in checked_runs(2, [[200, 210], 150])]
    [[200.0, 210.0], [150.0]]
    """
    if len(updates) != designs:
        raise ValueError(f"updates of {len(updates)} designs are not allowed: {designs} due")
    return [real_array("updates", runs, low=0, above=True).ravel() for runs in updates]


def _solution(line: Array, weights: Array) -> Array:
    """The matrix that turns means into constants, by weighted least squares."""
    scaled = line * weights
    return np.asarray(np.linalg.solve(scaled @ line.T, scaled), dtype=np.float64)


def _batch_means(counts: Array, means: Array, spread: Array, line: Array) -> _BatchMeans:
    own = counts - 1
    if not spread.any():
        weights = counts / means**2
        rest = means - line.T @ (_solution(line, weights) @ means)
        left = means.size - 2.0
        return _BatchMeans(means, weights, rest**2 @ weights / left / weights, left)
    pooled = own @ (spread / means**2) / own.sum() * means**2
    shrunk = (own * spread + PRIOR_SEEDS * pooled) / (own + PRIOR_SEEDS)
    variances = np.where(own > 0, spread, pooled) / counts
    return _BatchMeans(means, counts / shrunk, variances, np.where(own > 0, own, own.sum()))


def _misfit(lack: float, sizes_left: int, degrees: float) -> float:
    from scipy.special import fdtrc

    return float(fdtrc(sizes_left, degrees, lack))


def _degrees(row: Array, data: _BatchMeans) -> float:
    """Degrees of freedom of the variance of a weighted sum of the means (Satterthwaite)."""
    if isinstance(data.degrees, float):
        return data.degrees
    parts = row**2 * data.variances
    return float(parts.sum() ** 2 / (parts**2 / data.degrees).sum()) if parts.any() else 1.0


def _fit(solve: Array, data: _BatchMeans, misfit: float | None) -> UpdatesFit:
    slope, start = constants = solve @ data.values
    row = solve[0] - max(slope, 0.0) / start * solve[1] if start > 0 else solve[1]
    covariance = (solve * data.variances) @ solve.T
    scale = ratio_of_means(constants, covariance, _degrees(row, data))
    # with Bnoise at 0 the least squares left for S_min are the weighted mean
    row = solve[1] if slope > 0 else data.weights / data.weights.sum()
    width = t_quantile(_degrees(row, data)) * math.sqrt(row**2 @ data.variances)
    middle = float(row @ data.values)
    shortest = Estimate(max(middle, 0.0), max(middle - width, 0.0), max(middle + width, 0.0))
    notes = []
    if slope <= 0:
        notes.append("updates do not fall with the batch size: Bnoise is reported as 0")
    if start <= 0:
        notes.append("S_min is reported as 0: every batch is far below Bnoise, add larger ones")
    if misfit is not None and misfit < 0.01:
        notes.append(f"U(B) does not follow S_min (1 + Bnoise/B): p = {misfit:.2g}")
    return UpdatesFit(scale, shortest, misfit, not notes, "; ".join(notes) or scale.message)
