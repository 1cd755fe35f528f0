"""The constants of the finite-memory laws, fitted to a pilot of on-policy and replay runs.

Model: ``theory.finite_memory``, L8 where each design ran at its best step size, L10 where all ran
at one. The noise variance grows by ``stale_noise`` of a fresh rollout's for every update of age.

Four constants from half a dozen noisy means would be loose. Weak priors hold what the pilot does
not show: a centre and a spread in log for each constant, which give way to data. They were set on
simulated environments that nothing is judged on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.updates_fit import checked_runs
from theory.finite_memory import slowed_updates, tuned_updates
from theory.noise import effective_variance
from theory.quantities import FloatOrArray
from theory.sampling import ReplayDesign
from theory.staleness import OffsetPowerLaw

# Centre and spread, in log, of each constant's prior.
LIFETIMES = (np.log(2.0), 1.5)
STALE_NOISE = (np.log(0.01), 1.5)
NOISE_TO_BATCH = (0.0, 3.0)
NOISE_SHARE = (np.log(0.2), 1.5)
EXPONENT = (np.log(2.0), 0.3)
# Relative error of the laws themselves, beside the scatter between seeds.
LAW_ERROR = 0.07

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MemoryFit:
    """A fitted law.

    Attributes:
        constants: by name, those of `tuned_updates` or `slowed_updates`, and ``stale_noise``.
        residual: root mean square of what is left of log U at the pilot's designs.
        converged: whether the solver stopped well.
        message: what to know before using the fit, empty if nothing.
    """

    constants: dict[str, float]
    residual: float
    converged: bool
    message: str

    def updates(self, design: ReplayDesign) -> FloatOrArray:
        """Updates to the target of any designs, by the fitted law."""
        named = dict(self.constants)
        profile = OffsetPowerLaw(1.0, named.pop("stale_noise"), 0.5)
        law = tuned_updates if "lifetimes" in named else slowed_updates
        return law(design, **named, profile=profile)


def tuned_memory_fit(
    design: ReplayDesign, updates: Sequence[ArrayLike], reference: int = 0
) -> MemoryFit:
    """Fit L8 to a pilot, each design at its best step size.

    Args:
        design: the pilot's designs, shape (designs,), three or more.
        updates: for each design the updates each seed needed, > 0; a run that was given up counts
            the updates it was given.
        reference: place of the on-policy design whose batch the constants are measured in.

    Returns:
        The fit: min_updates, noise_scale, lifetimes, stale_noise.

    Raises:
        ValueError: with fewer than three designs, or if a value is out of range.

    >>> from theory.sampling import replay_design
    >>> pilot = replay_design(64, [64, 32, 8, 32], [64, 64, 64, 256])
    >>> seen = tuned_updates(pilot, 100, 128, 5.0, OffsetPowerLaw(1.0, 0.02, 0.5))
    >>> fit = tuned_memory_fit(pilot, list(seen))
    >>> round(fit.updates(replay_design(64, 16, 64)), -1)
    930.0
    """
    logs, spread = _log_means(design, updates)
    seen, batch = np.exp(logs), float(design.batch_size[reference])

    def law(constants: Array) -> Array:
        start, beta, lifetimes, growth = np.exp(constants)
        step = -np.expm1(-lifetimes / seen)
        noise = effective_variance(design, step, OffsetPowerLaw(1.0, growth, 0.5))
        return np.log(start) + np.log1p(beta * batch * np.asarray(noise)) - np.log1p(beta)

    centre = np.array([logs[reference], NOISE_TO_BATCH[0], LIFETIMES[0], STALE_NOISE[0]])
    width = np.array([3.0, NOISE_TO_BATCH[1], LIFETIMES[1], STALE_NOISE[1]])
    starts = [centre + np.array([0, beta, 0, 0]) for beta in (-2.0, 0.0, 2.0)]
    found, residual, message = _posterior_mode(law, logs, spread, centre, width, starts)
    start, beta, lifetimes, growth = np.exp(found).tolist()
    constants = {"min_updates": start / (1 + beta), "noise_scale": beta * batch}
    constants |= {"lifetimes": lifetimes, "stale_noise": growth}
    return MemoryFit(constants, residual, not message, message)


def fixed_step_memory_fit(
    design: ReplayDesign,
    updates: Sequence[ArrayLike],
    limits: ArrayLike,
    reference: int = 0,
) -> MemoryFit:
    """Fit L10 to a pilot, every design at the reference run's step size.

    Args:
        design: the pilot's designs, shape (designs,), three or more.
        updates: for each design the updates each seed needed, > 0; a run that was given up counts
            the updates it was given.
        limits: updates after which runs of each design were given up, shape (designs,).
        reference: place of the on-policy design whose batch the constants are measured in.

    Returns:
        The fit: min_updates, noise_share, exponent, forgetting, reference_batch, stale_noise.

    Raises:
        ValueError: with fewer than three designs, or if a value is out of range.

    >>> from theory.sampling import replay_design
    >>> pilot = replay_design(64, [64, 32, 8, 32], [64, 64, 64, 256])
    >>> ageing = OffsetPowerLaw(1.0, 0.01, 0.5)
    >>> seen = slowed_updates(pilot, 200, 0.2, 1.8, 0.01, 64, ageing)
    >>> fit = fixed_step_memory_fit(pilot, list(seen), [9000] * 4)
    >>> round(fit.updates(replay_design(64, 16, 64)), -1)
    680.0
    """
    logs, spread = _log_means(design, updates)
    most, batch = np.log(np.asarray(limits, float)), float(design.batch_size[reference])
    # A design that was given up is known to need its limit or more.
    given_up = logs >= most - 1e-9

    def law(constants: Array) -> Array:
        start, share, forgets, growth, power = np.exp(constants)
        step = -np.expm1(-forgets / np.exp(logs[reference]))
        noise = effective_variance(design, step, OffsetPowerLaw(1.0, growth, 0.5))
        slowed = np.log1p(share * (np.asarray(noise) * batch) ** power)
        found = np.log(start) + slowed - np.log1p(share)
        return np.where(given_up, np.minimum(found, most), found)

    priors = (NOISE_SHARE, LIFETIMES, STALE_NOISE, EXPONENT)
    centre = np.array([logs[reference], *(prior[0] for prior in priors)])
    width = np.array([1.0, *(prior[1] for prior in priors)])
    starts = [centre + np.array([0, share, 0, 0, 0]) for share in (-1.5, 0.0, 1.5)]
    found, residual, message = _posterior_mode(law, logs, spread, centre, width, starts)
    start, share, forgets, growth, power = np.exp(found).tolist()
    constants = {
        "min_updates": start / (1 + share),
        "noise_share": share,
        "exponent": power,
        "forgetting": float(-np.expm1(-forgets / np.exp(logs[reference]))),
        "reference_batch": batch,
        "stale_noise": growth,
    }
    return MemoryFit(constants, residual, not message, message)


def _log_means(design: ReplayDesign, updates: Sequence[ArrayLike]) -> tuple[Array, Array]:
    """Log mean updates, and their error: between seeds, pooled, and of the law."""
    if design.batch_size.ndim != 1 or design.batch_size.size < 3:
        raise ValueError(f"{design.batch_size.size} designs are not allowed: give three or more")
    seeds = checked_runs(design.batch_size.size, updates)
    counts = np.array([runs.size for runs in seeds], float)
    scatter = [runs.var(ddof=1) / runs.mean() ** 2 for runs in seeds if runs.size > 1]
    pooled = float(np.mean(scatter)) if scatter else 0.0
    logs = np.log(np.array([runs.mean() for runs in seeds]))
    return logs, np.asarray(np.sqrt(pooled / counts + LAW_ERROR**2), np.float64)


def _posterior_mode(
    law: Callable[[Array], Array],
    logs: Array,
    spread: Array,
    centre: Array,
    width: Array,
    starts: Sequence[Array],
) -> tuple[Array, float, str]:
    """The constants of largest posterior, what is left of log U there, and any complaint."""
    from scipy.optimize import least_squares

    def rest(constants: Array) -> Array:
        return np.concatenate([(law(constants) - logs) / spread, (constants - centre) / width])

    limits = (centre - 8, centre + 8)
    runs = [least_squares(rest, start, bounds=limits) for start in starts]
    best = min(runs, key=lambda run: run.cost)
    residual = float(np.sqrt(np.mean((law(best.x) - logs) ** 2)))
    return np.asarray(best.x, np.float64), residual, "" if best.success else str(best.message)
