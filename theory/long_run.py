"""What whole designs cost in the long run, with a noise scale instead of a spectrum.

Model: U = S_min (1 + Bnoise V) (L0) with V at its long-run value, the limit of Q4 as eta lambda x
goes to 0: what stays correlated for ever is the noise of the R unique rollouts per update, what
averages out is the choice of the batch among the N stored.

Holds where eta lambda x << 1 in the modes that matter. Elsewhere it is too pessimistic for large
buffers, and ``theory.pricing`` gives the exact cost if the spectrum is known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from theory.quantities import FloatOrArray, plain, positive, real_array
from theory.sampling import ReplayDesign, stored_variance
from theory.staleness import Profile, mean_variance


def long_run_variance(design: ReplayDesign, profile: Profile | float = 1.0) -> FloatOrArray:
    """Variance of the gradient of one update as SGD feels it in the long run.

    Formula L5 of this project: sbar2 (1/B - 1/N) + sbar1^2/R without replacement in the batch,
    sbar2 (1 - 1/N)/B + sbar1^2/R with; sbar1 and sbar2 are the means of sigma and of sigma^2 over
    the buffer of arXiv 2604.08706. When R does not divide N some rollouts stay one update longer
    than others and weigh more: f (1 - f) sigma^2(floor(x))/(R x^2) is added, f the fraction of x.
    It is then still the limit of Q4. Never below sbar1^2/R (L4): only fresh rollouts lower it.

    Args:
        design: the designs.
        profile: variance by age, or one number for every age.

    Returns:
        V over the variance of a fresh rollout's gradient, 1/rollouts, shape of ``design``.

    Raises:
        ValueError: if the profile has sigma^2(0) = 0.

    >>> from theory.sampling import replay_design
    >>> round(long_run_variance(replay_design(64, 16, 64)), 6)  # 1/R
    0.0625
    """
    batch, fresh, size, replace = design
    squared = np.asarray(stored_variance(design, profile))
    fresh_variance = float(profile(np.zeros(1))[0]) if callable(profile) else profile
    choice = np.where(replace, (1 - 1 / size) / batch, 1 / batch - 1 / size)
    found = squared * choice + _mean_sigma(design, profile) ** 2 / fresh
    return plain((found + _uneven_stay(design, profile)) / fresh_variance)


def long_run_cost(
    design: ReplayDesign,
    gen_train_ratio: ArrayLike,
    noise_scale: ArrayLike,
    *,
    fixed_cost: float = 0.0,
    profile: Profile | float = 1.0,
    min_updates: float | None = None,
) -> FloatOrArray:
    """Cost to the target of whole designs, (1 + Bnoise V) (fixed_cost + B + mu R), per S_min.

    Formulas L0 and L5 of this project with the cost of an update of P1 (arXiv 2604.08706). With
    ``min_updates`` the first fill is paid for too, mu (N - R) / S_min.

    Args:
        design: the designs.
        gen_train_ratio: mu = cost_gen / cost_train, > 0.
        noise_scale: Bnoise, gradient noise scale, rollouts, >= 0.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units, >= 0.
        profile: variance by age, or one number for every age.
        min_updates: S_min, updates to the target without noise, > 0; None: the fill is left out.

    Returns:
        Cost in training-cost units over S_min, broadcast shape.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> long_run_cost(replay_design(64, [64, 16], 64), 5.0, 32.0).tolist()
    [576.0, 432.0]
    """
    mu = real_array("gen_train_ratio", gen_train_ratio, low=0, above=True)
    scale = real_array("noise_scale", noise_scale, low=0)
    overhead = real_array("fixed_cost", fixed_cost, low=0)
    updates = 1 + scale * np.asarray(long_run_variance(design, profile))
    cost = updates * (overhead + design.batch_size + mu * design.rollouts_per_update)
    if min_updates is not None:
        fill = mu * (design.buffer_size - design.rollouts_per_update)
        cost = cost + fill / positive("min_updates", min_updates)
    return plain(np.asarray(cost))


def _mean_sigma(design: ReplayDesign, profile: Profile | float) -> FloatOrArray:
    if not callable(profile):
        return float(np.sqrt(profile))
    horizon = design.buffer_size / design.rollouts_per_update
    return mean_variance(lambda ages: np.sqrt(profile(ages)), horizon)


def _uneven_stay(design: ReplayDesign, profile: Profile | float) -> FloatOrArray:
    """What the partial oldest row of a buffer adds, 0 where R divides N."""
    fresh, size = design.rollouts_per_update, design.buffer_size
    left = np.mod(size, fresh)
    oldest = np.where(left > 0, (size - left) / fresh, 0.0)
    variance = profile(oldest) if callable(profile) else profile
    return left * (fresh - left) * variance / (fresh * size**2)
