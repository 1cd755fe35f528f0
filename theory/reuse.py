"""The reuse law: what each further use of a rollout buys, once the gradient noise is known.

Model: updates to a target grow as U = S_min (1 + Bnoise V), with V the variance of one update's
gradient in units of a single rollout's and Bnoise the gradient noise scale. In a long run V = 1/R
where the buffer holds one batch (N = B) drawn without replacement, and 1/B + 1/R where it holds
many. ``noise_to_batch`` is beta = Bnoise / B.

Holds while eta lambda x << 1 in the modes that matter. Elsewhere large buffers decorrelate and can
pay where this says no; staleness noise is left out and can make it say yes where replay loses.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.cost import gen_train_ratio as generation_ratio
from theory.optimum import DEFAULT_ALPHA, DEFAULT_RHO, power_law_optimum
from theory.quantities import (
    FloatOrArray,
    fraction,
    non_negative,
    plain,
    positive,
    real_array,
    whole,
)


def reuse_replay_ratio(gen_train_ratio: float, noise_to_batch: float) -> float:
    """Cheapest replay ratio at a fixed batch with N = B, y* = max(1, sqrt(mu / beta)).

    Formula L1 of this project: replay pays exactly where mu > beta. It answers in the setting of
    arXiv 2604.08706, with a measured noise scale in place of its rho and alpha.

    Args:
        gen_train_ratio: mu, > 0.
        noise_to_batch: beta, gradient noise scale over batch size, > 0.

    Returns:
        y* = B/R, mean uses per rollout, >= 1.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> round(reuse_replay_ratio(5.28, 0.33), 6)
    4.0
    """
    mu = positive("gen_train_ratio", gen_train_ratio)
    return max(1.0, math.sqrt(mu) / math.sqrt(positive("noise_to_batch", noise_to_batch)))


def reuse_cost_ratio(
    replay_ratio: ArrayLike, gen_train_ratio: ArrayLike, noise_to_batch: ArrayLike
) -> FloatOrArray:
    """Cost to target over on-policy, (1 + mu/y) (1 + beta y) / ((1 + mu) (1 + beta)).

    Formula L1 of this project, for N = B without replacement in the long run; on-policy uses the
    same batch, each rollout once. Setting of arXiv 2604.08706.

    Args:
        replay_ratio: y = B/R, mean uses per rollout, >= 1.
        gen_train_ratio: mu, > 0.
        noise_to_batch: beta, gradient noise scale over batch size, >= 0.

    Returns:
        Cost ratio, no unit, broadcast shape; below 1 replay is cheaper.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(reuse_cost_ratio(4.0, 5.28, 0.33), 4)
    0.6444
    """
    uses = real_array("replay_ratio", replay_ratio, low=1)
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    beta = real_array("noise_to_batch", noise_to_batch, low=0)
    updates = (1 + beta * uses) / (1 + beta)
    return plain(np.asarray(updates * (1 + mu / uses) / (1 + mu)))


def reuse_pays(gen_train_ratio: ArrayLike, noise_to_batch: ArrayLike) -> bool | NDArray[np.bool_]:
    """Whether reusing one batch is cheaper than on-policy at the same batch: mu > beta.

    Formula L2 of this project, the sign of L1 in the setting of arXiv 2604.08706.

    Args:
        gen_train_ratio: mu, > 0.
        noise_to_batch: beta, gradient noise scale over batch size, >= 0.

    Returns:
        True where it pays; at equality it does not.

    Raises:
        ValueError: if an argument is out of range.

    >>> reuse_pays(5.28, [0.33, 5.28, 18]).tolist()
    [True, False, False]
    """
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    pays = mu > real_array("noise_to_batch", noise_to_batch, low=0)
    return bool(pays) if pays.ndim == 0 else pays


def large_buffer_replay_ratio(gen_train_ratio: float, noise_to_batch: float) -> float:
    """Cheapest replay ratio with N >> B, y* = max(1, sqrt(mu (1 + beta) / beta)).

    Formula L3 of this project, in the setting of arXiv 2604.08706. At y* > 1 it may still cost
    more than on-policy: it pays where mu > 4 beta (1 + beta).

    Args:
        gen_train_ratio: mu, > 0.
        noise_to_batch: beta, gradient noise scale over batch size, > 0.

    Returns:
        y* = B/R, mean uses per rollout, >= 1.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> round(large_buffer_replay_ratio(5.28, 0.33), 4)
    4.613
    """
    mu, beta = (
        positive("gen_train_ratio", gen_train_ratio),
        positive("noise_to_batch", noise_to_batch),
    )
    return max(1.0, math.sqrt(mu) * math.sqrt(1 / beta + 1))


def large_buffer_cost_ratio(
    replay_ratio: ArrayLike, gen_train_ratio: ArrayLike, noise_to_batch: ArrayLike
) -> FloatOrArray:
    """Cost to target over on-policy with N >> B, (1 + mu/y) (1 + beta (1 + y)) / ((1+mu) (1+beta)).

    Formula L3 of this project, in the long run (eta lambda x << 1). Never below L1 at the same y.
    Setting of arXiv 2604.08706.

    Args:
        replay_ratio: y = B/R, mean uses per rollout, >= 1.
        gen_train_ratio: mu, > 0.
        noise_to_batch: beta, gradient noise scale over batch size, >= 0.

    Returns:
        Cost ratio, no unit, broadcast shape; below 1 replay is cheaper.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(large_buffer_cost_ratio(4.0, 5.28, 0.33), 4)
    0.7361
    """
    uses = real_array("replay_ratio", replay_ratio, low=1)
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    beta = real_array("noise_to_batch", noise_to_batch, low=0)
    updates = (1 + beta * (1 + uses)) / (1 + beta)
    return plain(np.asarray(updates * (1 + mu / uses) / (1 + mu)))


def uncorrected_step_limit(staleness_horizon: int) -> float:
    """Largest stable eta lambda without importance ratios, 2 x sin^2(pi / (2 x)).

    Formula L6 of this project: an estimator that does not correct for age follows the mean of the
    last x gradients, theta' = theta - (eta lambda / x) sum of the last x thetas, which oscillates
    with period 2x at the limit. It is 2 at x = 1 and pi^2 / (2 x) for a long horizon, so the
    step size must fall as 1/x there. Buffer of arXiv 2604.08706.

    Args:
        staleness_horizon: x = N/R, whole updates, >= 1.

    Returns:
        eta lambda, step size times curvature.

    Raises:
        ValueError: if ``staleness_horizon`` is not a whole number >= 1.

    >>> [round(uncorrected_step_limit(x), 4) for x in (1, 2, 3, 100)]
    [2.0, 2.0, 1.5, 0.0493]
    """
    horizon = whole("staleness_horizon", staleness_horizon)
    return 2 * horizon * math.sin(math.pi / (2 * horizon)) ** 2


def optimal_replay_ratio(
    cost_gen: float,
    cost_train: float,
    *,
    rho: float = DEFAULT_RHO,
    alpha: float = DEFAULT_ALPHA,
    noise_to_batch: float | None = None,
) -> float:
    """Mean uses per rollout that cost least, from P10 (arXiv 2604.08706) or, with beta, from L1.

    Args:
        cost_gen: cost of generating one rollout, any unit, > 0.
        cost_train: cost of training on it once, same unit, > 0.
        rho: correlation of the noise of rollouts, 0 to 1.
        alpha: exponent of sigma(s), >= 0.
        noise_to_batch: beta, gradient noise scale over batch size, > 0; selects L1, which knows
            neither rho nor alpha.

    Returns:
        y* = B/R. With ``noise_to_batch`` at least 1. Without, 1.0 where P10 says on-policy
        (alpha >= 1/2 or x* < 1), else the formula's value, which may be below 1.

    Raises:
        ValueError: if an argument is out of range, if rho or alpha is set beside
            ``noise_to_batch``, or if no finite ratio is best, as for rho = alpha = 0.

    >>> round(optimal_replay_ratio(5.28, 1), 6)
    1.957669
    """
    mu = generation_ratio(cost_gen, cost_train)
    rho, alpha = fraction("rho", rho), non_negative("alpha", alpha)
    if noise_to_batch is not None:
        for name, value, default in (("rho", rho, DEFAULT_RHO), ("alpha", alpha, DEFAULT_ALPHA)):
            if value != default:
                raise ValueError(
                    f"{name} = {value} is not allowed with noise_to_batch: L1 does not use it"
                )
        return reuse_replay_ratio(mu, noise_to_batch)
    optimum = power_law_optimum(mu, rho, alpha)
    if not np.isfinite(optimum.replay_ratio):
        raise ValueError(
            f"rho = {rho} with alpha = {alpha} is not allowed: no finite ratio is best, raise one"
        )
    return float(optimum.replay_ratio) if optimum.staleness_horizon >= 1 else 1.0
