"""A measured number with its 95 % interval, and the two intervals calibration needs.

Model: means over repeated measurements are nearly normal, with a covariance estimated from the
repeats. A ratio of two such means is not normal, and has no finite interval where the lower mean
may be zero; Fieller's set of ratios that the data do not reject covers both cases exactly.

Fails where repeats depend on each other, as successive updates of a drifting run do: intervals are
then too narrow. No random numbers are drawn: the same data always give the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theory.quantities import positive

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and the range the data allow.

    Attributes:
        value: best estimate.
        low: lower end of the 95 % interval.
        high: upper end; infinite where the data set none.
        message: what to know before using it, empty if nothing.
    """

    value: float
    low: float
    high: float
    message: str = ""

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.message)


def t_quantile(degrees: float) -> float:
    """Half width of a 95 % interval in standard errors, by Student's t.

    Args:
        degrees: degrees of freedom, > 0.

    Returns:
        The quantile, no unit.

    Raises:
        ValueError: if ``degrees`` is not a finite number > 0.

    >>> round(t_quantile(9), 4)
    2.2622
    """
    from scipy.special import stdtrit

    return float(stdtrit(positive("degrees", degrees), (1 + LEVEL) / 2))


def ratio_of_means(
    means: NDArray[np.float64], covariance: NDArray[np.float64], degrees: float
) -> Estimate:
    """Ratio of two means, known to be >= 0, with Fieller's interval (Fieller 1954).

    The interval holds every r for which (a - r b)^2 <= t^2 Var(a - r b), cut to r >= 0.

    Args:
        means: a and b, shape (2,); the ratio is a/b.
        covariance: their covariance, shape (2, 2).
        degrees: degrees of freedom of the covariance, > 0.

    Returns:
        The ratio: 0 where a <= 0 and infinite where b <= 0 < a, with a message that says so.

    Raises:
        ValueError: if ``degrees`` is not a finite number > 0.

    >>> found = ratio_of_means(np.array([10.0, 2.0]), np.diag([1.0, 0.04]), 30)
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (5.0, 3.726, 6.709)
    """
    top, bottom = means
    (top_var, mixed), (_, bottom_var) = covariance * t_quantile(degrees) ** 2
    square, cross, rest = bottom**2 - bottom_var, top * bottom - mixed, top**2 - top_var
    root = math.sqrt(max(cross**2 - square * rest, 0.0))
    low = rest / (cross + root) if rest > 0 and cross + root > 0 else 0.0
    high = max((cross + root) / square, 0.0) if square > 0 else math.inf
    if top <= 0:
        return Estimate(0.0, 0.0, high, f"the numerator is {top:.4g}, not above 0: reported as 0")
    if bottom <= 0:
        text = f"the denominator is {bottom:.4g}, not above 0: no finite ratio"
        return Estimate(math.inf, low if square <= 0 else math.inf, math.inf, text)
    message = "" if square > 0 else "the denominator may be 0: no upper limit"
    return Estimate(float(top / bottom), float(low), float(high), message)


def log_interval(value: float, relative_error: float, degrees: float) -> Estimate:
    """A positive number with the interval value exp(-+ t relative_error).

    Args:
        value: best estimate, > 0.
        relative_error: standard error of log(value), >= 0.
        degrees: degrees of freedom of the standard error, > 0.

    Returns:
        The estimate.

    Raises:
        ValueError: if ``degrees`` is not a finite number > 0.

    >>> round(log_interval(5.28, 0.02, 30).high, 3)
    5.5
    """
    with np.errstate(over="ignore"):
        factor = float(np.exp(t_quantile(degrees) * relative_error))
    return Estimate(float(value), float(value / factor), float(value * factor))
