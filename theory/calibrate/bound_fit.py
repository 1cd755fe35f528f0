"""alpha and rho of the published bound, fitted to runs of several designs.

Model: updates to a target are proportional to P6, sbar2(x) (1/B + 1/N + rho/R), with the power law
sigma^2(s) = s^(2 alpha) (arXiv 2604.08706). It knows no number of updates that noise does not
limit, so designs of very different noise can not all fit; what is left is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.bound import update_variance
from theory.calibrate.updates_fit import checked_runs
from theory.sampling import ReplayDesign
from theory.staleness import PowerLaw

LARGEST_ALPHA = 0.49

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BoundFit:
    """The two constants of the bound, fitted.

    Attributes:
        alpha: growth of the noise with age, 0 to 0.49.
        rho: correlation, 0 to 1.
        residual: root mean square of what is left of log U.
        converged: whether the solver stopped well and neither constant lies on its limit.
        message: what to know before using the fit, empty if nothing.
    """

    alpha: float
    rho: float
    residual: float
    converged: bool
    message: str


def bound_from_updates(design: ReplayDesign, updates: Sequence[ArrayLike]) -> BoundFit:
    """Fit alpha and rho to the updates that several designs needed (P6, arXiv 2604.08706).

    Least squares of log mean updates, every design with the same weight.

    Args:
        design: the designs, shape (designs,), three or more.
        updates: for each design the updates each seed needed, > 0.

    Returns:
        The fit.

    Raises:
        ValueError: with fewer than three designs, or if a value is out of range.

    >>> from theory.sampling import replay_design
    >>> designs = replay_design(64, [64, 16, 16, 8], [64, 64, 256, 64])
    >>> law = update_variance(PowerLaw(0.2), *designs[:3], rho=0.4)
    >>> fit = bound_from_updates(designs, list(5000 * law))
    >>> round(fit.alpha, 3), round(fit.rho, 3)
    (0.2, 0.4)
    """
    from scipy.optimize import least_squares

    seeds = checked_runs(design.batch_size.size, updates)
    if design.batch_size.ndim != 1 or len(seeds) < 3:
        raise ValueError(f"{len(seeds)} designs are not allowed: give three or more")
    logs = np.log([runs.mean() for runs in seeds])

    def rest(constants: Array) -> Array:
        alpha, rho = constants
        law = np.log(_shape(design, float(alpha), float(rho)))
        return np.asarray(logs - law - np.mean(logs - law), np.float64)

    found = least_squares(rest, [0.1, 0.5], bounds=([0.0, 0.0], [LARGEST_ALPHA, 1.0]))
    alpha, rho = (float(one) for one in found.x)
    notes = [] if found.success else [found.message]
    if found.active_mask.any():
        notes.append("a constant lies on its limit")
    residual = float(np.sqrt(np.mean(rest(found.x) ** 2)))
    return BoundFit(alpha, rho, residual, not notes, "; ".join(notes))


def _shape(design: ReplayDesign, alpha: float, rho: float) -> Array:
    batch, fresh, size, _ = design
    return np.asarray(update_variance(PowerLaw(alpha), batch, fresh, size, rho))
