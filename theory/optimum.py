"""The replay ratio and staleness horizon that minimise the convergence bound.

Model: minimise J(x, y) of P8 (``theory.bound``) over x = N/R > 0 and y = B/R > 0, real numbers. A
power law with P10's integral has a closed form. Any other profile has y* in closed form given x,
and its x* is a whole number: between whole numbers the buffer sum is linear, which makes log J
concave in 1/x, so the least value lies at an end.

Fails where the bound does: see ``theory.bound``. Formulas from arXiv 2604.08706.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.quantities import (
    FloatOrArray,
    fraction,
    plain,
    positive,
    real_array,
    whole,
)
from theory.staleness import Profile, Tabulated, mean_variance

DEFAULT_RHO = 1.0
DEFAULT_ALPHA = 0.1
LONGEST_SEARCH = 65_536


@dataclass(frozen=True)
class Optimum:
    """Where the bound is least; scalars, or arrays of one shape.

    Attributes:
        replay_ratio: y*, mean uses per rollout.
        staleness_horizon: x*, updates; below 1 the paper calls the design on-policy.
        cost_ratio: J(x*, y*) / J(1, 1), no unit.
        converged: whether these values are the minimiser of J.
        message: what the values are, and what to do where they are not the minimiser.
    """

    replay_ratio: FloatOrArray
    staleness_horizon: FloatOrArray
    cost_ratio: FloatOrArray
    converged: bool | NDArray[np.bool_]
    message: str


def power_law_optimum(
    gen_train_ratio: ArrayLike, rho: ArrayLike = DEFAULT_RHO, alpha: ArrayLike = DEFAULT_ALPHA
) -> Optimum:
    """Optimum for sigma(s) = (s/tau)^alpha: root of rho y^2 + 2 alpha y + mu (2 alpha - 1) = 0.

    Formula P10, arXiv 2604.08706, in a form that is stable at rho -> 0, mu rho = 1 and
    alpha -> 0: y* = mu (1 - 2 alpha) / (alpha + sqrt(alpha^2 + mu rho (1 - 2 alpha))) and
    x* = y*^2 / (2 alpha (mu + y*)). The printed form is 0/0 at mu rho = 1, and the appendix
    misprints its discriminant, which is 16 alpha^2 (alpha^2/mu + rho (1 - 2 alpha)) / mu.

    Args:
        gen_train_ratio: mu, > 0, any shape.
        rho: correlation of the noise of rollouts, 0 to 1, any shape that broadcasts.
        alpha: exponent of sigma, >= 0, any shape that broadcasts.

    Returns:
        The optimum. alpha = 0 gives x* infinite. alpha >= 1/2 has no interior optimum (J does not
        grow without bound at the border, as the paper says it does): x = y = 1, not converged.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(power_law_optimum(5.28).replay_ratio, 6)
    1.957669
    """
    mu, correlation, exponent = np.broadcast_arrays(
        real_array("gen_train_ratio", gen_train_ratio, low=0, above=True),
        real_array("rho", rho, low=0, high=1),
        real_array("alpha", alpha, low=0),
    )
    interior = exponent < 0.5
    room = np.where(interior, 1 - 2 * exponent, 1.0)
    slope = np.where(interior, exponent, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        train_share = (slope + np.hypot(slope, np.sqrt(mu) * np.sqrt(correlation * room))) / room
        uses = mu / train_share
        horizon = uses / (1 + train_share) / (2 * slope)
    ratio = _growth(mu, train_share, slope) * (1 + train_share) ** 2 / (1 + mu) / (2 + correlation)
    return Optimum(
        replay_ratio=plain(np.where(interior, uses, 1.0)),
        staleness_horizon=plain(np.where(interior, horizon, 1.0)),
        cost_ratio=plain(np.where(interior, ratio, 1.0)),
        converged=bool(interior) if interior.ndim == 0 else interior,
        message=_message(interior, horizon),
    )


def profile_optimum(
    profile: Profile,
    gen_train_ratio: float,
    rho: float = DEFAULT_RHO,
    longest_horizon: int = LONGEST_SEARCH,
) -> Optimum:
    """Optimum for any profile with sigma^2(0) > 0, by evaluating every whole horizon.

    Formula P9, arXiv 2604.08706 (its appendix misprints the square as (1/mu + sqrt(...))^2):
    x* = argmin sbar2(x) (1/sqrt(mu) + sqrt(rho + 1/x))^2, y* = sqrt(mu / (rho + 1/x*)). The
    objective may have several minima; the search sees all of them.

    Args:
        profile: variance by age, constant or non-decreasing from ``longest_horizon`` on.
        gen_train_ratio: mu, > 0.
        rho: correlation of the noise of rollouts, 0 to 1.
        longest_horizon: largest x tried, updates, >= 1; the length of a longer table is used.

    Returns:
        The optimum over x >= 1. Not converged where a horizon beyond the search may be better.

    Raises:
        ValueError: if an argument is out of range, or sigma^2(0) = 0.

    >>> from theory.staleness import OffsetPowerLaw
    >>> profile_optimum(OffsetPowerLaw(1.0, 0.1, 0.5), 5.28).staleness_horizon
    4.0
    """
    mu, correlation = positive("gen_train_ratio", gen_train_ratio), fraction("rho", rho)
    horizons = searched_horizons(profile, longest_horizon)
    averages = np.asarray(mean_variance(profile, horizons))
    objective = averages * (mu**-0.5 + np.sqrt(correlation + 1 / horizons)) ** 2
    best = int(np.argmin(objective))
    uses = float(np.sqrt(mu / (correlation + 1 / horizons[best])))
    beyond = beyond_search(profile, averages, mu, correlation)
    certain = bool(objective[best] < beyond)
    doubt = "" if certain else "; a longer horizon may be better"
    return Optimum(
        replay_ratio=uses,
        staleness_horizon=float(horizons[best]),
        cost_ratio=float(objective[best] / (averages[0] * (1 + 1 / mu) * (2 + correlation))),
        converged=certain,
        message=f"least J over whole x from 1 to {horizons.size}{doubt}",
    )


def searched_horizons(
    profile: Profile, longest_horizon: int = LONGEST_SEARCH
) -> NDArray[np.float64]:
    """Whole horizons that the search of P9 (arXiv 2604.08706) tries, 1, 2, ..., in updates.

    Args:
        profile: variance by age; all of a ``Tabulated`` one is searched.
        longest_horizon: largest x, updates, >= 1.

    Returns:
        The horizons, shape (number tried,).

    Raises:
        ValueError: if ``longest_horizon`` is not a whole number >= 1.

    >>> searched_horizons(Tabulated((1.0,)), 3).tolist()
    [1.0, 2.0, 3.0]
    """
    longest = whole("longest_horizon", longest_horizon)
    if isinstance(profile, Tabulated):
        longest = max(longest, len(profile.values))
    return np.arange(1.0, longest + 1)


def beyond_search(
    profile: Profile, averages: NDArray[np.float64], gen_train_ratio: float, rho: float
) -> float:
    """A value that J of P8 (arXiv 2604.08706) exceeds at every horizon longer than the search.

    Beyond the search no average is below both the last one found and the variance at that age, and
    by P9 no y brings the rest below (1/sqrt(mu) + sqrt(rho))^2.

    Args:
        profile: variance by age, constant or non-decreasing beyond the search.
        averages: sbar2(1), ..., sbar2(longest x), shape (longest x,).
        gen_train_ratio: mu, > 0.
        rho: correlation of the noise of rollouts, 0 to 1.

    Returns:
        Lower bound on J, in the profile's unit.

    >>> beyond_search(Tabulated((1.0,)), np.ones(3), 4.0, 0.25)
    1.0
    """
    least = min(averages[-1], profile(averages.size).item())
    return float(least * (gen_train_ratio**-0.5 + rho**0.5) ** 2)


def _growth(
    mu: NDArray[np.float64], train_share: NDArray[np.float64], alpha: NDArray[np.float64]
) -> NDArray[np.float64]:
    """x*^(2 alpha) by logarithms: x* may overflow where its power does not."""
    share, slope = (np.where(alpha > 0, values, 1.0) for values in (train_share, alpha))
    log_horizon = np.log(mu) - np.log(share) - np.log1p(share) - np.log(2 * slope)
    return np.exp(2 * alpha * log_horizon)


def _message(interior: NDArray[np.bool_], horizon: NDArray[np.float64]) -> str:
    cases = (
        (~interior, "no interior optimum (alpha >= 1/2): train on-policy"),
        (interior & (horizon < 1), "x* below 1: train on-policy"),
        (interior & np.isinf(horizon), "x* infinite: no finite buffer is best"),
    )
    found = [(int(mask.sum()), text) for mask, text in cases if mask.any()]
    if interior.ndim == 0:
        return found[0][1] if found else "least J over all x and y"
    return "; ".join(f"{count} of {interior.size}: {text}" for count, text in found) or (
        "least J over all x and y"
    )
