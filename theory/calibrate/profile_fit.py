"""A formula for a measured staleness profile: offset power law or exponential, whichever fits.

Model: sigma^2(s)/sigma^2(0) is 1 + scale s^(2 alpha), or exp(rate s). Both are fitted by least
squares of log sigma^2 over the measured ages above 0, each weighted by its count, and compared by
their residual per degree of freedom.

Few ages hardly tell the two apart, and beyond the oldest one they differ without limit: look at
both residuals, and do not use a fit far outside the ages behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theory.calibrate.estimate import Estimate, log_interval, t_quantile
from theory.calibrate.ratio_noise import RatioMoments, relative_moments
from theory.staleness import Exponential, OffsetPowerLaw

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ProfileFit:
    """One fitted formula.

    Attributes:
        profile: the formula, sigma^2(0) = 1.
        parameters: each fitted parameter with its interval, by name.
        residual: weighted root mean square of what is left of log sigma^2, per degree of freedom.
        converged: whether the parameters are inside their range and the solver stopped well.
        message: what to know before using the fit, empty if nothing.
    """

    profile: OffsetPowerLaw | Exponential
    parameters: Mapping[str, Estimate]
    residual: float
    converged: bool
    message: str


@dataclass(frozen=True)
class ProfileFits:
    """Both formulas fitted to one measured profile.

    Attributes:
        offset_power_law: 1 + scale s^(2 alpha).
        exponential: exp(rate s).
        best: the one with the smaller residual.
    """

    offset_power_law: ProfileFit
    exponential: ProfileFit
    best: ProfileFit


def profile_fits(moments: RatioMoments) -> ProfileFits:
    """The offset power law and the exponential closest to measured moments, and the closer one.

    For use in P6 to P9 (arXiv 2604.08706) as a profile that reaches beyond the measured ages.

    Args:
        moments: second moments of the ratio by age; at least three ages above 0.

    Returns:
        The fits.

    Raises:
        ValueError: with fewer than three ages above 0.

    >>> from theory.calibrate.ratio_noise import moments_from_ess
    >>> ages = np.array([0, 1, 2, 4, 8])
    >>> fits = profile_fits(moments_from_ess(ages, 1 / (1 + 0.1 * ages), np.full(5, 400)))
    >>> type(fits.best.profile).__name__, round(fits.best.profile.alpha, 4)
    ('OffsetPowerLaw', 0.5)
    """
    ages, logs, _ = relative_moments(moments)
    if ages.size < 4:
        raise ValueError(f"ages = {moments.ages} is not allowed: a fit needs three ages above 0")
    counts = moments.counts[moments.ages > 0]
    data = ages[1:].astype(float), logs[1:], counts / counts.mean()
    power, growth = _power_fit(*data), _exponential_fit(*data)
    return ProfileFits(power, growth, min(power, growth, key=lambda fit: fit.residual))


def _exponential_fit(ages: Array, logs: Array, weights: Array) -> ProfileFit:
    rate = float(weights @ (ages * logs) / (weights @ ages**2))
    degrees = ages.size - 1
    residual = float(np.sqrt(weights @ (logs - max(rate, 0.0) * ages) ** 2 / degrees))
    width = t_quantile(degrees) * residual / float(np.sqrt(weights @ ages**2))
    estimate = Estimate(max(rate, 0.0), max(rate - width, 0.0), max(rate + width, 0.0))
    message = "" if rate > 0 else "variance does not grow with age: rate is reported as 0"
    profile = Exponential(1.0, estimate.value)
    return ProfileFit(profile, {"rate": estimate}, residual, rate > 0, message)


def _power_fit(ages: Array, logs: Array, weights: Array) -> ProfileFit:
    from scipy.optimize import least_squares

    def rest(parameters: Array) -> Array:
        scale, alpha = parameters
        return np.sqrt(weights) * (np.log1p(scale * (ages / ages[-1]) ** (2 * alpha)) - logs)

    start = max(float(np.expm1(logs[-1])), 1e-3)
    found = least_squares(rest, (start, 0.5), bounds=((0.0, 1e-3), (np.inf, 10.0)), xtol=1e-12)
    last, alpha = found.x.tolist()
    degrees = ages.size - 2
    residual = float(np.sqrt(2 * found.cost / degrees))
    inside = found.active_mask.tolist() == [0, 0] and last > 1e-6
    scale = float(last * ages[-1] ** (-2 * alpha))
    errors = _log_errors(found.jac * found.x, 2 * alpha * np.log(ages[-1])) * residual
    open_end = Estimate(scale, 0.0, np.inf), Estimate(alpha, 0.0, np.inf)
    within = (log_interval(scale, errors[0], degrees), log_interval(alpha, errors[1], degrees))
    ends = within if inside else open_end
    parameters = {"scale": ends[0], "alpha": ends[1]}
    message = "" if found.success else f"the solver stopped early: {found.message}"
    if not inside:
        message = "no power law inside its range fits: alpha is not identified"
    profile = OffsetPowerLaw(1.0, scale, alpha)
    return ProfileFit(profile, parameters, residual, inside and found.success, message)


def _log_errors(slopes: Array, log_age: float) -> Array:
    """Errors of log scale and log alpha per unit residual, from slopes at the oldest age."""
    turn = np.array([[1.0, -log_age], [0.0, 1.0]])
    return np.sqrt(np.diag(turn @ np.linalg.pinv(slopes.T @ slopes) @ turn.T))
