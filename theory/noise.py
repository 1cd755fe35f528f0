"""The noise that SGD feels when its batches are drawn from a replay buffer, in steady state.

Model: the gradient of a rollout is the true gradient plus sigma(age) z, z independent between
rollouts with covariance Sigma, kept for as long as the rollout is stored. Batches are drawn as in
``theory.sampling``, independently at each update; their noise is correlated between updates,
because they share rollouts. All covariances are in units of Sigma. For curvature lambda and step
size eta, a step multiplies the parameter by q = 1 - eta lambda, so noise k updates old is felt
with weight q^k.

The sum over lags needs one pass over the ages, whatever the profile: with cnt(b) rollouts of age b,
``sum_k q^k C_k = (q/N^2) sum_b cnt(b) sigma(b) Y_b``, ``Y_{b+1} = sigma(b) + q Y_b``, ``Y_0 = 0``.

Fails where the noise depends on the parameters, or where the true gradient itself is stale.
``theory.dynamics`` has the start of a run. Formulas of this project, for the buffer of
arXiv 2604.08706.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from theory.quantities import FloatOrArray, plain, positive, real_array
from theory.sampling import (
    Array,
    ReplayDesign,
    oldest_age,
    sampling_variance,
    sigma_by_age,
    stored_at,
    stored_variance,
    whole_array,
)
from theory.staleness import Profile

SERIES_BELOW, SERIES_TERMS = 0.1, 10


def noise_autocovariance(
    design: ReplayDesign, lag: ArrayLike, profile: Profile | float = 1.0
) -> FloatOrArray:
    """Covariance C_k of the noise of batches k updates apart, in steady state.

    C_0 is Q1 or Q2. For k >= 1, Q3: a rollout of rank r has rank r + kR after k updates, so
    C_k = (1/N^2) sum of sigma(a) sigma(a - k) over the rollouts of age a >= k, for either draw;
    with constant sigma (N - kR)/N^2, down to zero.

    Args:
        design: the designs.
        lag: k, whole updates, >= 0, any shape that broadcasts with ``design``.
        profile: variance by age, or one number for every age.

    Returns:
        Covariance in units of Sigma, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> noise_autocovariance(replay_design(32, 8, 32), [0, 1, 4]).tolist()
    [0.03125, 0.0234375, 0.0]
    """
    back = whole_array("lag", lag, low=0)
    sigma = sigma_by_age(profile, oldest_age(design))
    shared = np.zeros(np.broadcast_shapes(back.shape, design.buffer_size.shape))
    for age, scale in enumerate(sigma):
        before = sigma[np.maximum(age - back, 0).astype(int)]
        shared = shared + stored_at(design, age) * scale * np.where(back <= age, before, 0.0)
    same = np.asarray(sampling_variance(design)) * stored_variance(design, profile)
    return plain(np.where(back == 0, same, shared / design.buffer_size**2))


def effective_variance(
    design: ReplayDesign, step_curvature: ArrayLike, profile: Profile | float = 1.0
) -> FloatOrArray:
    """Variance of independent noise that would spread a mode as much, C_0 + 2 sum_k q^k C_k.

    V_eff of Q4. On-policy (B = R = N without replacement) it is sigma^2(0)/B.

    Args:
        design: the designs.
        step_curvature: eta lambda, step size times curvature, above 0 and below 2, any shape that
            broadcasts with ``design``.
        profile: variance by age (one pass over the ages), or one number (closed form).

    Returns:
        Variance in units of Sigma, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> round(effective_variance(replay_design(32, 8, 128), 0.1), 6)
    0.100271
    """
    step = _step_curvature(step_curvature)
    lagged = _lagged_sum if callable(profile) else _constant_lagged_sum
    same = np.asarray(sampling_variance(design)) * stored_variance(design, profile)
    return plain(same + 2 * lagged(design, step, profile) / design.buffer_size**2)


def stationary_variance(
    design: ReplayDesign,
    learning_rate: ArrayLike,
    curvature: ArrayLike,
    profile: Profile | float = 1.0,
) -> FloatOrArray:
    """Variance of a parameter in the long run, eta^2 V_eff / (1 - q^2) with noise of std 1 (Q4).

    Args:
        design: the designs.
        learning_rate: eta, > 0, any shape that broadcasts with ``design``.
        curvature: lambda, > 0, eta lambda < 2, any shape that broadcasts.
        profile: variance by age, or one number for every age.

    Returns:
        Variance over that of one rollout's gradient in this mode, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> round(stationary_variance(replay_design(32, 8, 128), 0.1, 1.0), 5)
    0.00528
    """
    rate = real_array("learning_rate", learning_rate, low=0, above=True)
    step = _step_curvature(rate * real_array("curvature", curvature, low=0, above=True))
    return plain(rate**2 / (step * (2 - step)) * effective_variance(design, step, profile))


def effective_correlation(
    design: ReplayDesign, step_curvature: ArrayLike, profile: Profile | float = 1.0
) -> FloatOrArray:
    """The rho with which P6 gives the noise that SGD feels, R (V_eff/sbar2(x) - 1/B - 1/N) (Q5).

    arXiv 2604.08706 takes rho as one number from 0 to 1; it depends on x and eta lambda, and can be
    below 0.

    Args:
        design: the designs.
        step_curvature: eta lambda, above 0 and below 2, any shape that broadcasts with ``design``.
        profile: variance by age, or one number for every age.

    Returns:
        rho_eff, no unit, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> round(effective_correlation(replay_design(32, 8, 128), 0.1), 3)
    0.49
    """
    excess = effective_variance(design, step_curvature, profile) / stored_variance(design, profile)
    excess = excess - 1 / design.batch_size - 1 / design.buffer_size
    return plain(np.asarray(design.rollouts_per_update * excess))


def long_run_correlation(design: ReplayDesign) -> FloatOrArray:
    """Limit of rho_eff for eta lambda x -> 0 at constant sigma, 1 - (1 + a)/x (Q5).

    a is 1/B with and 1 without replacement. When R does not divide N, f (1 - f)/x^2 is added, f
    the fraction of x.

    Args:
        design: the designs.

    Returns:
        rho_eff, no unit, shape of ``design``.

    >>> from theory.sampling import replay_design
    >>> long_run_correlation(replay_design(32, 8, 128, [False, True])).tolist()
    [0.875, 0.935546875]
    """
    horizon = design.buffer_size / design.rollouts_per_update
    rest = np.mod(design.buffer_size, design.rollouts_per_update) / design.rollouts_per_update
    once = np.where(design.replace, 1 / design.batch_size, 1.0)
    return plain(np.asarray(1 - (1 + once) / horizon + rest * (1 - rest) / horizon**2))


def large_buffer_correlation(design: ReplayDesign, step_curvature: ArrayLike) -> FloatOrArray:
    """Limit of rho_eff for eta lambda x -> infinity at constant sigma, (2q/(1 - q) - a)/x (Q5).

    a is 1/B with and 1 without replacement. When also eta lambda << 1 it is 2/(x eta lambda): a
    large buffer decorrelates.

    Args:
        design: the designs.
        step_curvature: eta lambda, above 0 and below 2, any shape that broadcasts with ``design``.

    Returns:
        rho_eff, no unit, broadcast shape.

    Raises:
        ValueError: if ``step_curvature`` is out of range.

    >>> from theory.sampling import replay_design
    >>> round(large_buffer_correlation(replay_design(32, 4, 4096), 0.5), 6)
    0.000977
    """
    step = _step_curvature(step_curvature)
    once = np.where(design.replace, 1 / design.batch_size, 1.0)
    horizon = design.buffer_size / design.rollouts_per_update
    return plain((2 * (1 - step) / step - once) / horizon)


def _lagged_sum(design: ReplayDesign, step: Array, profile: Profile | float) -> Array:
    """N^2 sum of q^k C_k over k >= 1, in one pass over the ages."""
    keep, memory = 1 - step, np.zeros(step.shape)
    total = np.zeros(np.broadcast_shapes(step.shape, design.buffer_size.shape))
    for age, scale in enumerate(sigma_by_age(profile, oldest_age(design))):
        total = total + stored_at(design, age) * scale * memory
        memory = scale + keep * memory
    return keep * total


def _constant_lagged_sum(design: ReplayDesign, step: Array, profile: Profile | float) -> Array:
    """Sum of (N - kR) q^k over k >= 1, times the variance; summed by parts.

    With S(m) = q + ... + q^m it is (N - KR) S(K) + R (S(1) + ... + S(K-1)), K the last lag.
    """
    fresh, size = design.rollouts_per_update, design.buffer_size
    last = np.ceil(size / fresh) - 1
    keep, shorter = 1 - step, np.maximum(last - 1, 0)
    rows = (keep * _missing(step, shorter)) / step
    return positive("profile", profile) * ((size - last * fresh) * _sum(step, last) + fresh * rows)


def _missing(step: Array, terms: Array) -> Array:
    """Sum of 1 - q^k for k = 1..terms; a binomial series where the difference would cancel."""
    series = term = step * terms * (terms + 1) / 2
    for power in range(1, SERIES_TERMS):
        term = -term * step * (terms - power) / (power + 2)
        series = series + term
    return np.where(step * terms < SERIES_BELOW, series, terms - _geometric(step, terms))


def _sum(step: Array, terms: Array) -> Array:
    """Sum of q^k for k = 1..terms."""
    small = step * terms < SERIES_BELOW
    return np.where(small, terms - _missing(step, terms), _geometric(step, terms))


def _geometric(step: Array, terms: Array) -> Array:
    """The geometric sum q (1 - q^terms) / (1 - q), with log1p so that small steps are kept."""
    small = np.exp(terms * np.log1p(-np.minimum(step, 0.5)))
    power = np.where(step < 0.5, small, np.power(1 - step, terms))
    return (1 - step) * (1 - power) / step


def _step_curvature(step_curvature: ArrayLike) -> Array:
    step = real_array("step_curvature", step_curvature, low=0, above=True)
    if (step >= 2).any():
        raise ValueError(
            f"step_curvature = {step[step >= 2][0]:g} is not allowed: eta lambda must be < 2"
        )
    return step
