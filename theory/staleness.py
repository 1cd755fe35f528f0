"""How gradient noise grows with the age of a rollout: variance profiles and buffer averages.

Model: a gradient from a rollout of age s (updates since its generation, fresh = 0) has variance
sigma^2(s). A FIFO buffer with horizon x = N/R averages this over the ages it holds.

Assumes, with arXiv 2604.08706, that the variance depends on age alone. The paper's own power law
has sigma^2(0) = 0, no noise on fresh rollouts, so its exact average is refused here: ask for its
integral by ``power_law_mean_variance``, or use ``OffsetPowerLaw``. A variance beyond the largest
float is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.quantities import FloatOrArray, non_negative, plain, positive, real_array

LARGEST_HORIZON = 10_000_000


class Profile(Protocol):
    """Variance by age: takes ages (updates, >= 0, any shape), returns sigma^2 of that shape."""

    def __call__(self, ages: ArrayLike, /) -> NDArray[np.float64]:
        """Variance at these ages."""
        ...


@dataclass(frozen=True)
class PowerLaw:
    """sigma^2(s) = (s / tau)^(2 alpha), the profile of P10 (arXiv 2604.08706).

    Zero at age 0 unless alpha is 0, where it is 1 at every age.

    Attributes:
        alpha: exponent of sigma, >= 0.
        tau: age at which sigma is 1, updates, > 0.

    Raises:
        ValueError: if an attribute is out of range.

    >>> PowerLaw(0.5, tau=4.0)([0, 1, 4]).tolist()
    [0.0, 0.25, 1.0]
    """

    alpha: float
    tau: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        non_negative("alpha", self.alpha)
        positive("tau", self.tau)

    def __call__(self, ages: ArrayLike, /) -> NDArray[np.float64]:
        """Variance at these ages (updates, >= 0)."""
        return _power(_ages(ages) / self.tau, 2 * self.alpha)


@dataclass(frozen=True)
class OffsetPowerLaw:
    """sigma^2(s) = sigma2_0 + scale s^(2 alpha): a power law with noise on fresh rollouts.

    For use in P6 to P9 (arXiv 2604.08706), which need sigma^2(0) > 0.

    Attributes:
        sigma2_0: variance of a fresh rollout, > 0.
        scale: variance added at age 1, >= 0, unit of ``sigma2_0``.
        alpha: exponent of the added sigma, > 0.

    Raises:
        ValueError: if an attribute is out of range.

    >>> OffsetPowerLaw(0.2, 0.25, 0.5)([0, 4]).tolist()
    [0.2, 1.2]
    """

    sigma2_0: float
    scale: float
    alpha: float

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("sigma2_0", self.sigma2_0)
        non_negative("scale", self.scale)
        positive("alpha", self.alpha)

    def __call__(self, ages: ArrayLike, /) -> NDArray[np.float64]:
        """Variance at these ages (updates, >= 0)."""
        return self.sigma2_0 + self.scale * _power(_ages(ages), 2 * self.alpha)


@dataclass(frozen=True)
class Exponential:
    """sigma^2(s) = sigma2_0 exp(rate s), at most ``cap`` where one is given.

    For use in P6 to P9 (arXiv 2604.08706).

    Attributes:
        sigma2_0: variance of a fresh rollout, > 0.
        rate: growth per update, >= 0.
        cap: largest variance, >= sigma2_0, e.g. from ratio clipping; None for no limit.

    Raises:
        ValueError: if an attribute is out of range.

    >>> Exponential(1.0, 0.5, cap=2.0)([0, 1, 2]).round(4).tolist()
    [1.0, 1.6487, 2.0]
    """

    sigma2_0: float
    rate: float
    cap: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("sigma2_0", self.sigma2_0)
        non_negative("rate", self.rate)
        if self.cap is not None and positive("cap", self.cap) < self.sigma2_0:
            allowed = f"it must be >= sigma2_0 = {self.sigma2_0}"
            raise ValueError(f"cap = {self.cap} is not allowed: {allowed}")

    def __call__(self, ages: ArrayLike, /) -> NDArray[np.float64]:
        """Variance at these ages (updates, >= 0)."""
        with np.errstate(over="ignore"):
            growth = self.sigma2_0 * np.exp(self.rate * _ages(ages))
        return np.asarray(growth if self.cap is None else np.minimum(growth, self.cap))


@dataclass(frozen=True)
class Tabulated:
    """Measured sigma^2(0), sigma^2(1), ..., constant after the last value.

    For use in P6 to P9 (arXiv 2604.08706). The paper assumes a non-decreasing sigma; measured
    values are noisy, so a table may decrease, and is used as it is.

    Attributes:
        values: variances at ages 0, 1, 2, ..., finite and >= 0, at least one.

    Raises:
        ValueError: if a value is out of range or there is none.

    >>> Tabulated((1.0, 1.5, 2.0))([0, 1, 7]).tolist()
    [1.0, 1.5, 2.0]
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the values, and keep them as a tuple of floats."""
        table = real_array("values", self.values, low=0)
        if table.ndim != 1:
            raise ValueError(f"values of shape {table.shape} are not allowed: give one row")
        object.__setattr__(self, "values", tuple(table.tolist()))

    def __call__(self, ages: ArrayLike, /) -> NDArray[np.float64]:
        """Variance at these ages (whole updates, >= 0)."""
        whole_ages = _ages(ages)
        broken = whole_ages != np.floor(whole_ages)
        if broken.any():
            age = whole_ages[broken][0]
            raise ValueError(f"age = {age} is not allowed: a table needs whole ages")
        last = len(self.values) - 1
        return np.asarray(self.values)[np.minimum(whole_ages, last).astype(int)]


def mean_variance(profile: Profile, staleness_horizon: ArrayLike) -> FloatOrArray:
    """Mean variance of the rollouts in a buffer, sbar2(x) = (1/x) sum_{s<x} sigma^2(s).

    The average of P6 (arXiv 2604.08706, which misprints it as the mean of sigma over 1..H). When R
    does not divide N, the part of a buffer row left over has age floor(x), so the sum runs
    linearly between whole numbers of updates.

    Args:
        profile: variance by age, with sigma^2(0) > 0.
        staleness_horizon: x = N/R, updates, 1 to 10,000,000, any shape.

    Returns:
        Variance in the profile's unit, shape of ``staleness_horizon``.

    Raises:
        ValueError: if x is out of range, or sigma^2(0) = 0 as for the plain power law.

    >>> mean_variance(Tabulated((1.0, 2.0, 4.0)), 2.5)
    2.0
    """
    horizon = real_array("staleness_horizon", staleness_horizon, low=1, high=LARGEST_HORIZON)
    rows = np.floor(horizon).astype(int)
    variances = profile(np.arange(rows.max() + 1))
    if not variances[0] > 0:
        raise ValueError(
            f"{profile} is not allowed: sigma^2(0) must be > 0 (power_law_mean_variance is P10's "
            "integral for a power law)"
        )
    with np.errstate(over="ignore"):
        sums = np.concatenate(([0.0], np.cumsum(variances)))[rows]
    rest = horizon - rows
    partial = rest * np.where(rest > 0, variances[rows], 0.0)
    return plain((sums + partial) / horizon)


def power_law_mean_variance(
    staleness_horizon: ArrayLike, alpha: ArrayLike, tau: float = 1.0
) -> FloatOrArray:
    """Mean variance of a power law by an integral, sbar2(x) = (x/tau)^(2 alpha) / (2 alpha + 1).

    The approximation of P10, arXiv 2604.08706: the sum over ages 0..x-1 becomes an integral from
    0 to x.

    Args:
        staleness_horizon: x = N/R, updates, > 0, any shape.
        alpha: exponent of sigma, >= 0, any shape that broadcasts.
        tau: age at which sigma is 1, updates, > 0.

    Returns:
        Variance, in units of sigma^2(tau), broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> power_law_mean_variance(4.0, 0.25)
    1.3333333333333333
    """
    horizon = real_array("staleness_horizon", staleness_horizon, low=0, above=True)
    exponent = 2 * real_array("alpha", alpha, low=0)
    return plain((horizon / positive("tau", tau)) ** exponent / (exponent + 1))


def _ages(ages: ArrayLike) -> NDArray[np.float64]:
    return real_array("age", ages, low=0)


def _power(ages: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(ages**exponent)
