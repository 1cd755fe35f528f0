"""A power-law quadratic that needs as many updates as a job does, fitted to on-policy runs.

Model: the quadratic of Q7 with curvature i^-a, noise in proportion to curvature, and theta_0 = 1,
each batch at its best step size. A job's own spectrum is not seen in its updates alone: many
quadratics need the same, so this is a stand-in. How well it does for replay is what
`python -m sim.validate` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.calibrate.updates_fit import checked_runs
from theory.pricing import best_step_size, step_size_grid
from theory.quadratic import Quadratic, initial_loss, power_law_quadratic
from theory.quantities import fraction
from theory.sampling import ReplayDesign, replay_design

MODES = 16
STEPS, LOWEST_STEP = 40, 1e-4
POWERS = (0.0, 3.0)
NOISE = (1e-2, 1e3)
NEVER = 1e7

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SpectrumFit:
    """A fitted quadratic.

    Attributes:
        spectrum_power: a of the curvature i^-a.
        noise_std: std of one rollout's gradient in the mode of curvature 1.
        target: gap to reach, as a fraction of the initial one.
        residual: root mean square of what is left of log U.
        converged: whether the residual is below a tenth.
        message: what to know before using the fit, empty if nothing.
    """

    spectrum_power: float
    noise_std: float
    target: float
    residual: float
    converged: bool
    message: str

    @property
    def problem(self) -> Quadratic:
        """The quadratic."""
        return power_law_quadratic(MODES, self.spectrum_power, self.noise_std)

    @property
    def loss(self) -> float:
        """The loss to reach."""
        return self.target * initial_loss(self.problem)

    def updates(self, design: ReplayDesign) -> tuple[Array, Array]:
        """Updates of designs at their best step size, and that step size (Q7); shape of design."""
        rates = step_size_grid(self.problem, STEPS, LOWEST_STEP)
        best = best_step_size(self.problem, design, self.loss, 1.0, learning_rates=rates)
        return np.asarray(best.updates), np.asarray(best.learning_rate)


def spectrum_from_updates(
    batch_sizes: ArrayLike, updates: Sequence[ArrayLike], target: float
) -> SpectrumFit:
    """Fit spectrum power and noise to on-policy runs at several batch sizes (Q7).

    Least squares of log mean updates, every batch size with the same weight.

    Args:
        batch_sizes: B, whole rollouts per update, shape (sizes,), two or more.
        updates: for each batch size the updates each seed needed, > 0.
        target: gap the runs reached, as a fraction of the initial one, in (0, 1).

    Returns:
        The fit.

    Raises:
        ValueError: with fewer than two batch sizes, or if a value is out of range.

    >>> fit = spectrum_from_updates([64, 32, 16], [[234], [408], [750]], 0.02)
    >>> round(fit.spectrum_power, 1), fit.residual < 0.05
    (1.7, True)
    """
    from scipy.optimize import minimize

    sizes = np.asarray(batch_sizes)
    if sizes.ndim != 1 or sizes.size < 2:
        raise ValueError(f"batch_sizes = {batch_sizes} is not allowed: give two or more")
    fraction("target", target)
    design = replay_design(sizes, sizes, sizes)
    logs = np.log([runs.mean() for runs in checked_runs(sizes.size, updates)])

    def misfit(constants: Array) -> float:
        power, log_noise = constants
        if not (POWERS[0] <= power <= POWERS[1] and NOISE[0] <= np.exp(log_noise) <= NOISE[1]):
            return np.inf
        made = SpectrumFit(power, float(np.exp(log_noise)), target, 0.0, True, "")
        found = np.minimum(made.updates(design)[0], NEVER)
        return float(np.mean((np.log(found) - logs) ** 2))

    starts = [
        (misfit(np.array([power, log_noise])), power, log_noise)
        for power in np.linspace(*POWERS, 9)
        for log_noise in np.linspace(np.log(NOISE[0]), np.log(NOISE[1]), 16)
    ]
    _, power, log_noise = min(starts)
    found = minimize(misfit, [power, log_noise], method="Nelder-Mead")
    residual = float(np.sqrt(found.fun))
    message = "" if residual < 0.1 else f"no power-law quadratic fits: {residual:.2f} left of log U"
    power, log_noise = found.x.tolist()
    noise = float(np.exp(log_noise))
    return SpectrumFit(power, noise, target, residual, not message, message)
