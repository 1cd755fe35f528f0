"""The gradient noise scale at one moment of a run, from gradients or from their squared norms.

Model: the mean gradient of B independent rollouts is G plus noise of covariance Sigma/B, so that
Bnoise = tr Sigma / |G|^2 is the batch at which noise equals signal. Both parts are estimated
without bias and averaged before their ratio is taken (McCandlish et al., arXiv 1812.06162).

Rollouts of one prompt share their prompt and their baseline, so the independent unit of GRPO is a
group of ``num_generations`` rollouts: noise is measured per group and converted to rollouts.

Fails where the gradient is lost in noise: the interval then has no upper end, and more rollouts or
measurements are needed. Measurements far apart in training average over a changing noise scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.estimate import Estimate, ratio_of_means
from theory.quantities import positive, real_array, whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseScale:
    """Bnoise in both units, and the two parts of it.

    Attributes:
        noise_scale_rollouts: Bnoise, rollouts.
        noise_scale_groups: the same in groups of ``num_generations`` rollouts.
        noise_trace: tr Sigma of one group's gradient, unit of the squared gradient; an unbiased
            estimate, which may be negative.
        squared_gradient: |G|^2, same unit; an unbiased estimate, which may be negative.
        message: what to know before using it, empty if nothing.
    """

    noise_scale_rollouts: Estimate
    noise_scale_groups: Estimate
    noise_trace: float
    squared_gradient: float
    message: str


def noise_scale_from_gradients(gradients: ArrayLike, num_generations: int = 1) -> NoiseScale:
    """Noise scale from the gradients of one batch, one row for each independent unit.

    |G|^2 is the mean of g_i . g_j over i != j and tr Sigma the sample variance, both U-statistics;
    their covariance comes from leaving out one row at a time, the interval from Fieller's set.
    Where noise hides the gradient (Bnoise >> n) the interval is wider than its 95 %.

    Args:
        gradients: shape (n, parameters), n >= 4; gradients of single rollouts, or with
            ``num_generations`` > 1 the mean gradient of each group.
        num_generations: G, rollouts in each row, >= 1.

    Returns:
        The noise scale.

    Raises:
        ValueError: if an argument is out of range, or the gradients are all zero.

    >>> found = noise_scale_from_gradients([[3, 1], [1, 1], [3, -1], [1, -1]], num_generations=8)
    >>> round(found.noise_scale_groups.value, 6), round(found.noise_scale_rollouts.value, 6)
    (0.8, 6.4)
    """
    rows = real_array("gradients", gradients, low=-np.inf)
    if rows.ndim != 2 or len(rows) < 4 or not rows.any():
        raise ValueError(f"gradients of shape {rows.shape} are not allowed: 4 or more rows, not 0")
    n = len(rows)
    total, squares = rows.sum(axis=0), np.einsum("ij,ij->i", rows, rows)
    norm = total @ total
    parts = _parts(norm, squares.sum(), n)
    left_out = _parts(norm - 2 * rows @ total + squares, squares.sum() - squares, n - 1)
    scatter = np.cov(left_out, bias=True) * (n - 1)
    return _noise_scale(parts, scatter, n - 1, num_generations)


def noise_scale_from_batches(
    batch_small: float,
    squared_norms_small: ArrayLike,
    batch_big: float,
    squared_norms_big: ArrayLike,
    num_generations: int = 1,
) -> NoiseScale:
    """Noise scale from squared gradient norms at two batch sizes, measured several times.

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b) and tr Sigma = (|g_b|^2 - |g_B|^2) / (1/b - 1/B) are
    averaged over the measurements; the interval of their ratio is Fieller's.

    Args:
        batch_small: b, rollouts, > 0.
        squared_norms_small: |g_b|^2 at each measurement, >= 0, shape (measurements,), two or more.
        batch_big: B, rollouts, > b.
        squared_norms_big: |g_B|^2 at each measurement, >= 0, same shape.
        num_generations: G, rollouts per group; both batches hold whole groups.

    Returns:
        The noise scale.

    Raises:
        ValueError: if an argument is out of range, or the norms are all zero.

    >>> found = noise_scale_from_batches(8, [3.0, 3.5], 64, [1.25, 1.35])
    >>> round(found.noise_scale_rollouts.value, 4), round(found.squared_gradient, 4)
    (17.4545, 1.0214)
    """
    small, big = positive("batch_small", batch_small), positive("batch_big", batch_big)
    group = whole("num_generations", num_generations)
    if small >= big or small % group or big % group:
        raise ValueError(
            f"batch_small = {small:g} with batch_big = {big:g} is not allowed: the second must be "
            f"larger, and both multiples of num_generations = {group}"
        )
    norms_small = real_array("squared_norms_small", squared_norms_small, low=0)
    norms_big = real_array("squared_norms_big", squared_norms_big, low=0)
    shapes = norms_small.shape, norms_big.shape
    if norms_small.ndim != 1 or shapes[0] != shapes[1] or norms_small.size < 2:
        raise ValueError(f"squared norms of shapes {shapes} are not allowed: two or more pairs")
    parts = np.stack(
        [
            (norms_small - norms_big) / (1 / small - 1 / big) / group,
            (big * norms_big - small * norms_small) / (big - small),
        ]
    )
    if not parts.any():
        raise ValueError("squared norms of 0 are not allowed: no gradient was measured")
    count = norms_small.size
    return _noise_scale(parts.mean(axis=1), np.cov(parts) / count, count - 1, group)


def _parts(norm: Array, squares: Array, count: int) -> Array:
    """Tr Sigma and |G|^2 from |sum g|^2 and sum |g|^2."""
    return np.stack(
        [(squares - norm / count) / (count - 1), (norm - squares) / count / (count - 1)]
    )


def _noise_scale(parts: Array, covariance: Array, degrees: int, num_generations: int) -> NoiseScale:
    groups = ratio_of_means(parts, covariance, degrees)
    rollouts = groups.scaled(whole("num_generations", num_generations))
    return NoiseScale(rollouts, groups, float(parts[0]), float(parts[1]), groups.message)
