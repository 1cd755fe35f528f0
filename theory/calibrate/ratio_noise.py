"""The staleness profile of a run, from the second moments of its importance ratios by age.

Model: the estimator weighs the score of a rollout by its ratio r = pi_now/pi_then. Where score and
ratio are nearly independent, sigma^2(s)/sigma^2(0) = E[r^2 at age s]/E[r^2 at age 0]. As E[r] = 1,
the effective sample fraction (sum r)^2/(n sum r^2) of the rollouts of one age estimates 1/E[r^2].

E[r^2] at age 0 is 1 unless sampler and trainer disagree on probabilities; a mismatch is divided out
and reported. Give the ratios as the loss uses them: clipping lowers their moments and adds bias,
which no profile shows. Fails for heavy-tailed ratios, whose second moment a sample understates:
where E[r^2] is above 2, intervals need a thousand ratios an age. Rollouts of one group are not
independent: then count groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.estimate import Estimate, log_interval, t_quantile
from theory.quantities import real_array
from theory.staleness import LARGEST_HORIZON, Tabulated

Array = NDArray[np.float64]

LARGEST_LOG = float(np.log(np.finfo(np.float64).max))


class RatioMoments(NamedTuple):
    """Second moments of the importance ratio, one entry for each age measured.

    Attributes:
        ages: updates, ascending, whole numbers >= 0.
        values: E[r^2], > 0.
        errors: standard errors of log E[r^2], >= 0.
        counts: ratios behind each, >= 2.
    """

    ages: NDArray[np.int64]
    values: Array
    errors: Array
    counts: Array


@dataclass(frozen=True)
class MeasuredProfile:
    """sigma^2(s)/sigma^2(0) at every whole age up to the oldest measured.

    Attributes:
        profile: the table, constant after its last age; 1 at age 0.
        low: lower end of the 95 % interval, age by age.
        high: upper end, age by age.
        fresh: E[r^2] at age 0, which was divided out; 1 where age 0 was not measured.
        interpolated: ages that were not measured, filled in linearly in log sigma^2.
        message: what to know before using the profile, empty if nothing.
    """

    profile: Tabulated
    low: Tabulated
    high: Tabulated
    fresh: Estimate
    interpolated: tuple[int, ...]
    message: str


def moments_from_ratios(ages: ArrayLike, ratios: ArrayLike) -> RatioMoments:
    """Second moments by age from single ratios.

    Source: the ratio-weighted estimator of arXiv 2604.08706. The scatter of a heavy-tailed sample
    understates its error, so that of log-normal ratios with the same E[r^2] is used where larger.

    Args:
        ages: age of each rollout at use, updates, whole numbers >= 0, shape (rollouts,).
        ratios: importance ratio of each, >= 0, same shape; at least two at every age.

    Returns:
        The moments.

    Raises:
        ValueError: if an argument is out of range, or an age has one ratio only.

    >>> moments_from_ratios([0, 0, 2, 2], [1.0, 1.0, 0.5, 1.5]).values.tolist()
    [1.0, 1.25]
    """
    squares = real_array("ratios", ratios, low=0) ** 2
    each = _whole_ages(ages, squares.shape)
    kinds = np.unique(each)
    by_age = [squares[each == age] for age in kinds]
    counts = np.array([len(part) for part in by_age], dtype=float)
    values = np.array([part.mean() for part in by_age])
    if not values.all():
        raise ValueError(
            f"ratios at age {kinds[values == 0][0]} are not allowed: all of them are 0"
        )
    if (counts < 2).any():
        raise ValueError(
            f"one ratio at age {kinds[counts < 2][0]} is not allowed: give two or more"
        )
    scatter = np.array([part.std(ddof=1) for part in by_age]) / values / np.sqrt(counts)
    log_normal = np.sqrt(np.maximum(values**4 - 1, 0.0) / counts)
    errors = np.maximum(scatter, log_normal)
    return RatioMoments(kinds, values, errors, counts)


def moments_from_means(
    ages: ArrayLike, second_moments: ArrayLike, standard_errors: ArrayLike, counts: ArrayLike
) -> RatioMoments:
    """Second moments by age from logged means of r^2 and their standard errors.

    Source: the ratio-weighted estimator of arXiv 2604.08706. Where no errors were logged, use
    ``moments_from_ess``: dividing by the squared mean ratio removes most of the error.

    Args:
        ages: ages measured, updates, whole numbers >= 0, all different, shape (ages,).
        second_moments: mean of r^2 at each age, > 0, same shape.
        standard_errors: of each mean, >= 0, same shape.
        counts: ratios behind each mean, >= 2, same shape.

    Returns:
        The moments.

    Raises:
        ValueError: if an argument is out of range, or its shape differs.

    >>> moments_from_means([0, 4], [1.0, 1.25], [0.0, 0.05], [100, 100]).errors.tolist()
    [0.0, 0.04]
    """
    m = real_array("second_moments", second_moments, low=0, above=True)
    spread = real_array("standard_errors", standard_errors, low=0)
    sizes = real_array("counts", counts, low=0)
    return _moments(ages, m, spread, sizes)


def moments_from_ess(ages: ArrayLike, ess_fractions: ArrayLike, counts: ArrayLike) -> RatioMoments:
    """Second moments by age from effective sample fractions, E[r^2] = 1/ess_fraction.

    Source: the ratio-weighted estimator of arXiv 2604.08706. A fraction does not show its error;
    that of log-normal ratios with mean 1 is used: for m = E[r^2], the variance of the estimate is
    (m^6 - 4 m^4 + 4 m^3 - m^2)/count.

    Args:
        ages: ages measured, updates, whole numbers >= 0, all different, shape (ages,).
        ess_fractions: (sum r)^2 / (n sum r^2) of the rollouts of each age, above 0, at most 1.
        counts: rollouts n behind each fraction, >= 2, same shape.

    Returns:
        The moments.

    Raises:
        ValueError: if an argument is out of range, or its shape differs.

    >>> moments_from_ess([0, 4], [1.0, 0.8], [100, 100]).values.tolist()
    [1.0, 1.25]
    """
    m = 1 / real_array("ess_fractions", ess_fractions, low=0, high=1, above=True)
    sizes = real_array("counts", counts, low=0)
    if sizes.shape != m.shape:
        raise ValueError(f"counts of shape {sizes.shape} are not allowed beside {m.shape} ages")
    spread = np.maximum(m**6 - 4 * m**4 + 4 * m**3 - m**2, 0.0)
    return _moments(ages, m, np.sqrt(spread / np.maximum(sizes, 1)), sizes)


def staleness_profile(moments: RatioMoments) -> MeasuredProfile:
    """The measured profile sigma^2(s)/sigma^2(0), for P6 to P9 (arXiv 2604.08706).

    Args:
        moments: second moments by age.

    Returns:
        The profile with its interval. Ages between measured ones are filled in and listed; without
        age 0, sigma^2(0) is taken as E[r^2] = 1, which the message says.

    Raises:
        ValueError: if an upper end is beyond the largest float.

    >>> found = staleness_profile(moments_from_ess([0, 2], [1.0, 0.64], [500, 500]))
    >>> found.profile.values, found.interpolated
    ((1.0, 1.25, 1.5625), (1,))
    """
    fresh = _fresh(moments)
    ages, logs, errors = relative_moments(moments)
    widths = [t_quantile(count - 1) for count in moments.counts[moments.ages > 0]]
    shifts = np.concatenate(([0.0], widths)) * errors
    if (logs + shifts > LARGEST_LOG).any():
        age = ages[logs + shifts > LARGEST_LOG][0]
        raise ValueError(f"counts at age {age} are not allowed: too few to limit E[r^2] from above")
    every = np.arange(ages[-1] + 1)
    low, middle, high = (
        Tabulated(tuple(np.exp(np.interp(every, ages, logs + shift)).tolist()))
        for shift in (-shifts, 0.0, shifts)
    )
    missing = tuple(np.setdiff1d(every, moments.ages).tolist())
    return MeasuredProfile(middle, low, high, fresh, missing, _message(fresh, missing))


def relative_moments(moments: RatioMoments) -> tuple[NDArray[np.int64], Array, Array]:
    """Log of sigma^2(s)/sigma^2(0) by age, for profiles of P6 (arXiv 2604.08706).

    Args:
        moments: second moments by age.

    Returns:
        Ages from 0 on, the logs, and their standard errors; at age 0 both are 0.

    >>> relative_moments(moments_from_ess([0, 4], [0.9, 0.45], [50, 50]))[1].round(4).tolist()
    [0.0, 0.6931]
    """
    stale = moments.ages > 0
    base, base_error = (1.0, 0.0) if stale[0] else (moments.values[0], moments.errors[0])
    logs = np.log(moments.values[stale] / base)
    errors = np.hypot(moments.errors[stale], base_error)
    zero = np.zeros(1)
    return (
        np.concatenate((zero.astype(np.int64), moments.ages[stale])),
        np.concatenate((zero, logs)),
        np.concatenate((zero, errors)),
    )


def _fresh(moments: RatioMoments) -> Estimate:
    if moments.ages[0] > 0:
        return Estimate(1.0, 1.0, 1.0, "age 0 was not measured: E[r^2] is taken as 1 there")
    found = log_interval(moments.values[0], moments.errors[0], moments.counts[0] - 1)
    if found.low <= 1 <= found.high:
        return found
    text = f"E[r^2] at age 0 is {found.value:.4g}, not 1: sampler and trainer disagree"
    return Estimate(found.value, found.low, found.high, text)


def _message(fresh: Estimate, missing: tuple[int, ...]) -> str:
    between = [age for age in missing if age > 0]
    filled = f"{len(between)} ages not measured, filled in between neighbours" if between else ""
    return "; ".join(part for part in (fresh.message, filled) if part)


def _whole_ages(ages: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    each = real_array("ages", ages, low=0, high=LARGEST_HORIZON)
    if each.ndim != 1 or each.shape != shape:
        raise ValueError(f"ages of shape {each.shape} are not allowed beside values of {shape}")
    if (each != np.floor(each)).any():
        raise ValueError(f"ages = {each[each != np.floor(each)][0]} is not allowed: whole numbers")
    return each.astype(np.int64)


def _moments(ages: ArrayLike, values: Array, standard_errors: Array, counts: Array) -> RatioMoments:
    each = _whole_ages(ages, values.shape)
    if np.unique(each).size < each.size:
        raise ValueError(f"ages = {each} is not allowed: all must differ")
    if not values.shape == standard_errors.shape == counts.shape:
        shapes = values.shape, standard_errors.shape, counts.shape
        raise ValueError(f"values, errors and counts of shapes {shapes} are not allowed: one each")
    if (counts < 2).any():
        raise ValueError(f"counts = {counts[counts < 2][0]:g} is not allowed: it must be >= 2")
    order = np.argsort(each)
    return RatioMoments(
        each[order], values[order], (standard_errors / values)[order], counts[order]
    )
