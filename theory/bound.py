"""The convergence bound for SGD on a replay buffer, and the design objective it leads to.

Model (arXiv 2604.08706, Theorem 4.4): F >= 0 is L-smooth; the gradient of a rollout made at
theta_i and used at theta_t has bias at most kappa |theta_t - theta_i|, variance sigma^2(age), and
correlation at most rho |age difference| / N with the others. T updates of step size eta.

P7 and P8 drop kappa, in the limit of a large budget and small steps. There the noise of successive
updates is correlated, which the bound does not see, so it can favour replay too much. Its baseline
draws with replacement, so it overstates the cost of strictly on-policy training 2 + rho times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from theory.quantities import (
    FloatOrArray,
    fraction,
    non_negative,
    plain,
    positive,
    real_array,
    whole,
)
from theory.staleness import PowerLaw, Profile, mean_variance, power_law_mean_variance


def horizon_variance(profile: Profile, staleness_horizon: ArrayLike) -> FloatOrArray:
    """sbar2(x) as P8 uses it: P10's integral for ``PowerLaw``, the exact average otherwise.

    Source: arXiv 2604.08706.

    Args:
        profile: variance by age.
        staleness_horizon: x = N/R, updates; > 0 for ``PowerLaw``, else >= 1; any shape.

    Returns:
        Variance in the profile's unit, shape of ``staleness_horizon``.

    Raises:
        ValueError: if x is out of range, or another profile has sigma^2(0) = 0.

    >>> round(horizon_variance(PowerLaw(0.1), 2.0), 6)
    0.957249
    """
    if isinstance(profile, PowerLaw):
        return power_law_mean_variance(staleness_horizon, profile.alpha, profile.tau)
    return mean_variance(profile, staleness_horizon)


def update_variance(
    profile: Profile,
    batch_size: ArrayLike,
    rollouts_per_update: ArrayLike,
    buffer_size: ArrayLike,
    rho: float = 1.0,
) -> FloatOrArray:
    """Variance of one update's gradient, V = sbar2(N/R) (1/B + 1/N + rho/R).

    Formula P6, arXiv 2604.08706, for draws with replacement. At B = R = N it is 2 + rho times the
    sigma^2(0)/B of on-policy training that uses each rollout once.

    Args:
        profile: variance by age.
        batch_size: B, rollouts per update, > 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        buffer_size: N, rollouts, >= R.
        rho: correlation of the noise of rollouts, 0 to 1.

    Returns:
        Variance in the profile's unit, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.staleness import Tabulated
    >>> update_variance(Tabulated((1.0,)), 60, 60, 60)
    0.05
    """
    batch = real_array("batch_size", batch_size, low=0, above=True)
    fresh = real_array("rollouts_per_update", rollouts_per_update, low=0, above=True)
    size = real_array("buffer_size", buffer_size, low=0, above=True)
    average = horizon_variance(profile, size / fresh)
    return plain(average * (1 / batch + 1 / size + fraction("rho", rho) / fresh))


def step_size_limit(
    smoothness: float, bias_rate: float, rollouts_per_update: float, buffer_size: float
) -> float:
    """Largest step size P5 holds for, min(R / (2 sqrt2 kappa N), 1 / (2 L)).

    Condition of P5, arXiv 2604.08706; its Theorem 4.4 misprints the second term as L/2.

    Args:
        smoothness: L of the objective, > 0.
        bias_rate: kappa, bias per distance moved since generation, >= 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        buffer_size: N, rollouts, > 0.

    Returns:
        Largest eta.

    Raises:
        ValueError: if an argument is out of range.

    >>> step_size_limit(1.0, 0.5, 30, 120)
    0.17677669529663687
    """
    curvature_limit = 1 / (2 * positive("smoothness", smoothness))
    kappa = non_negative("bias_rate", bias_rate)
    horizon = positive("buffer_size", buffer_size) / positive(
        "rollouts_per_update", rollouts_per_update
    )
    if kappa == 0:
        return curvature_limit
    return min(1 / (2 * np.sqrt(2.0) * kappa * horizon).item(), curvature_limit)


def gradient_bound(
    objective: float,
    learning_rate: float,
    updates: int,
    variance: float,
    *,
    smoothness: float,
    bias_rate: float,
    rollouts_per_update: float,
    buffer_size: float,
) -> float:
    """Bound on the mean squared gradient, 12 F / (eta T) + 8 eta (4 N^2 kappa^2 eta / R^2 + L) V.

    Formula P5, arXiv 2604.08706 (Theorem 4.4).

    Args:
        objective: F at the start, above its infimum of 0, >= 0.
        learning_rate: eta, > 0 and at most ``step_size_limit``.
        updates: T, >= 1.
        variance: V of one update's gradient (P6), >= 0.
        smoothness: L of the objective, > 0.
        bias_rate: kappa, bias per distance moved since generation, >= 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        buffer_size: N, rollouts, > 0.

    Returns:
        Bound in units of the squared gradient.

    Raises:
        ValueError: if an argument is out of range, the step size above its limit included.

    >>> round(gradient_bound(1.0, 0.1, 1000, 0.05, smoothness=1.0, bias_rate=0.5,
    ...                      rollouts_per_update=30, buffer_size=120), 6)
    0.224
    """
    limit = step_size_limit(smoothness, bias_rate, rollouts_per_update, buffer_size)
    eta = positive("learning_rate", learning_rate)
    if eta > limit:
        raise ValueError(f"learning_rate = {eta} is not allowed: P5 needs it <= {limit:g}")
    start = 12 * non_negative("objective", objective) / (eta * whole("updates", updates))
    drift = 4 * (bias_rate * buffer_size / rollouts_per_update) ** 2 * eta
    return start + 8 * eta * (drift + smoothness) * non_negative("variance", variance)


def optimised_bound(
    objective: float, smoothness: float, budget: float, cost_per_update: float, variance: float
) -> float:
    """The bound at its best step size for a large budget, 8 sqrt(6 L F / C) sqrt((B + mu R) V).

    Formula P7, arXiv 2604.08706, which misprints the 8 as 4; the kappa term of P5 is dropped.

    Args:
        objective: F at the start, above its infimum of 0, >= 0.
        smoothness: L of the objective, > 0.
        budget: C, training-cost units, > 0.
        cost_per_update: B + mu R (P1), training-cost units, > 0.
        variance: V of one update's gradient (P6), >= 0.

    Returns:
        Bound in units of the squared gradient.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(optimised_bound(1.0, 1.0, 1e6, 200.0, 0.05), 6)
    0.061968
    """
    curvature = positive("smoothness", smoothness) * non_negative("objective", objective)
    noise = positive("cost_per_update", cost_per_update) * non_negative("variance", variance)
    return 8 * float(np.sqrt(6 * curvature / positive("budget", budget) * noise))


def bound_objective(
    staleness_horizon: ArrayLike,
    replay_ratio: ArrayLike,
    gen_train_ratio: ArrayLike,
    *,
    profile: Profile,
    rho: ArrayLike = 1.0,
) -> FloatOrArray:
    """What a design costs up to a constant, J(x, y) = sbar2(x) (1 + y/mu) (1/y + 1/x + rho).

    Formula P8, arXiv 2604.08706: mu J = (B + mu R) V, what P7 depends on. Only ratios of J to the
    J(1, 1) of B = R = N mean anything; that baseline draws with replacement, so strictly on-policy
    training costs sbar2(1) (1 + 1/mu), 2 + rho times less than J(1, 1).

    Args:
        staleness_horizon: x = N/R, updates; > 0 for ``PowerLaw``, else >= 1.
        replay_ratio: y = B/R, mean uses per rollout, > 0.
        gen_train_ratio: mu, > 0.
        profile: variance by age.
        rho: correlation of the noise of rollouts, 0 to 1.

    Returns:
        J in the profile's unit, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(bound_objective(2.647583, 1.957669, 5.28, profile=PowerLaw(0.1)), 6)
    2.621041
    """
    horizon = real_array("staleness_horizon", staleness_horizon, low=0, above=True)
    uses = real_array("replay_ratio", replay_ratio, low=0, above=True)
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    correlation = real_array("rho", rho, low=0, high=1)
    noise = 1 / uses + 1 / horizon + correlation
    return plain(horizon_variance(profile, horizon) * (1 + uses / mu) * noise)
