"""Updates to a target when noise is remembered for part of the run only.

Model: one mode that matters, with the noise of ``theory.noise`` (Q4). The long-run law L0 with L5
lets the optimizer remember noise for ever, so that every shared rollout counts; a run of U updates
forgets it ``lifetimes`` = K times, q = exp(-K/U) an update, so rollouts shared by batches that are
farther apart than U/K count as independent.

- L8, step size tuned for each design: a noisier design takes smaller steps and more updates in the
  same proportion, so K is a constant of the job while U solves
  ``U = S_min (1 + Bnoise V_eff(1 - exp(-K/U)))``. K -> 0 is L0 with L5.
- L9, one step size for every design: q is a constant of the job. The expected gap is
  ``g_t = F + (g_0 - F) q^(2t)`` with the floor F in proportion to V_eff (Q4), so with F << g_0
  ``U = U_0 - tau ln(1 - V_eff/V_max)``, tau = 1/(2 ln(1/q)) updates, and a design with V_eff at or
  above V_max never arrives.

- L10, the same where the noise is not additive: in training, noise shrinks with the gap and the
  target is often met by a lucky dip, so runs slow down ever more with V_eff but do not stop at a
  V_max. ``U = S_min (1 + b (V_eff/V_ref)^p)`` with p about 2 is what the simulator measures; the
  form is empirical.

Ages enter through the variance profile. One mode stands for a whole spectrum: K and tau are fitted
(``theory.calibrate.memory_fit``), and a design far from those behind the fit may do otherwise.
Fails where the target is met by luck before the mean gap arrives (plateaus), and where stale
gradients are biased. Formulas of this project.
"""

from __future__ import annotations

import numpy as np

from theory.long_run import long_run_variance
from theory.noise import effective_variance
from theory.quantities import FloatOrArray, non_negative, plain, positive
from theory.sampling import Array, ReplayDesign
from theory.staleness import Profile

SWEEPS = 200
TOLERANCE = 1e-10


def tuned_updates(
    design: ReplayDesign,
    min_updates: float,
    noise_scale: float,
    lifetimes: float,
    profile: Profile | float = 1.0,
) -> FloatOrArray:
    """Updates to the target, each design at its best step size (L8).

    Args:
        design: the designs.
        min_updates: S_min, updates needed without noise, > 0.
        noise_scale: Bnoise, rollouts, >= 0.
        lifetimes: K, how many times a run forgets its noise, >= 0; 0: never, L0 with L5.
        profile: variance by age, or one number for every age.

    Returns:
        U, updates, shape of ``design``: the largest solution.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> designs = replay_design(64, [64, 16], 64)
    >>> tuned_updates(designs, 100, 64, 0).tolist()
    [200.0, 500.0]
    >>> tuned_updates(designs, 100, 64, 50).round(1).tolist()
    [200.0, 450.1]
    """
    least, scale = positive("min_updates", min_updates), non_negative("noise_scale", noise_scale)
    forgets = non_negative("lifetimes", lifetimes)
    found = least * (1 + scale * np.asarray(_long_run(design, profile)))
    if forgets == 0:
        return plain(found)
    # V_eff grows with U, so that iterates from above fall to the largest solution.
    for _ in range(SWEEPS):
        step = -np.expm1(-forgets / found)
        after = least * (1 + scale * np.asarray(effective_variance(design, step, profile)))
        if np.all(np.abs(after - found) <= TOLERANCE * found):
            break
        found = after
    return plain(found)


def fixed_step_updates(
    design: ReplayDesign,
    noiseless_updates: float,
    time_constant: float,
    largest_variance: float,
    profile: Profile | float = 1.0,
) -> FloatOrArray:
    """Updates to the target, every design at the same step size (L9).

    Args:
        design: the designs.
        noiseless_updates: U_0, updates this step size would need without noise, > 0.
        time_constant: tau = 1/(2 ln(1/q)), updates in which the gap falls by e, > 0.
        largest_variance: V_max, the V_eff whose floor is the target, 1/rollouts, > 0.
        profile: variance by age, or one number for every age.

    Returns:
        U, updates, shape of ``design``; infinite where the target is never met.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> fixed_step_updates(replay_design(64, [64, 16], 64), 100, 50, 0.05).round(1).tolist()
    [118.7, inf]
    """
    start, tau = (
        positive("noiseless_updates", noiseless_updates),
        positive("time_constant", time_constant),
    )
    step = -np.expm1(-1 / (2 * tau))
    noise = np.asarray(effective_variance(design, step, profile))
    share = noise / positive("largest_variance", largest_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = start - tau * np.log1p(-share)
    return plain(np.where(share < 1, found, np.inf))


def slowed_updates(
    design: ReplayDesign,
    min_updates: float,
    noise_share: float,
    exponent: float,
    forgetting: float,
    reference_batch: float,
    profile: Profile | float = 1.0,
) -> FloatOrArray:
    """Updates to the target, every design at the same step size, noise not additive (L10).

    Args:
        design: the designs.
        min_updates: S_min, updates this step size would need without noise, > 0.
        noise_share: b, what the noise of the reference batch adds to them, as a share, >= 0.
        exponent: p, > 0.
        forgetting: 1 - q, share of the noise forgotten in one update, above 0 and below 1.
        reference_batch: B of the on-policy run whose noise is V_ref = 1/B, rollouts, > 0.
        profile: variance by age, or one number for every age.

    Returns:
        U, updates, shape of ``design``.

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.sampling import replay_design
    >>> slowed_updates(replay_design(64, [64, 16], 64), 100, 0.2, 2.0, 1e-9, 64).round(1).tolist()
    [120.0, 420.0]
    """
    least, power = positive("min_updates", min_updates), positive("exponent", exponent)
    if positive("forgetting", forgetting) >= 1:
        raise ValueError(f"forgetting = {forgetting} is not allowed: it must be < 1")
    noise = np.asarray(effective_variance(design, forgetting, profile))
    relative = noise * positive("reference_batch", reference_batch)
    return plain(least * (1 + non_negative("noise_share", noise_share) * relative**power))


def _long_run(design: ReplayDesign, profile: Profile | float) -> Array:
    """L5 in units of the profile: what Q4 gives without any forgetting."""
    fresh = float(profile([0])[0]) if callable(profile) else float(profile)
    return np.asarray(long_run_variance(design, profile)) * fresh
