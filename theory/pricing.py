"""Updates and cost to a target on a quadratic, for many designs and step sizes, without simulation.

Model: ``theory.dynamics``. U is the first t at which the expected loss is within the target. The
expected loss need not fall all the way: noise grows while the bias shrinks, so it can dip below
the target and leave it again. Two parts find the first t exactly:

- while ages of the fill are in the buffer, t <= floor(N/R), every t is evaluated. The noise is
  linear in four numbers of the design, with curves that all designs share;
- later each mode goes to its limit like q^(2t), from above or from below, and
  ``theory.first_passage`` searches all t without visiting most of them.

For D designs, E step sizes, M modes and horizons up to x this takes O(x E (M + D)) and then
O(D E M log U), in memory O(E M + D E). Fails where the dynamics do. Formulas of this project, for
the buffer of arXiv 2604.08706.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.cost import cost_to_target
from theory.dynamics import check_start, design_weights, transients
from theory.first_passage import first_passage
from theory.quadratic import Quadratic, initial_loss, log_shrink, step_curvature
from theory.quantities import FloatOrArray, plain, positive, real_array, whole
from theory.sampling import Array, ReplayDesign, sigma_by_age
from theory.staleness import Profile

MAX_UPDATES = 1_000_000
DESIGNS_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class BestStep:
    """The step size of a grid with which each design is cheapest; arrays of the designs' shape.

    Attributes:
        learning_rate: eta; NaN where no step size reaches the target.
        updates: U with it; infinite where none reaches the target.
        cost: training-cost units; infinite where none reaches the target.
        converged: whether the target is reached and eta is not the first or last of the grid.
        message: how many designs are not converged, and what to do.
    """

    learning_rate: FloatOrArray
    updates: FloatOrArray
    cost: FloatOrArray
    converged: bool | NDArray[np.bool_]
    message: str


def step_size_grid(problem: Quadratic, count: int = 20, lowest: float = 0.002) -> Array:
    """Step sizes in equal ratios, up to 0.98 of the largest stable one, 2/lambda_max (for Q7).

    Args:
        problem: the modes.
        count: how many, >= 2.
        lowest: the smallest over the largest stable one, above 0 and below 0.98.

    Returns:
        eta, ascending, shape (count,).

    Raises:
        ValueError: if an argument is out of range.

    >>> from theory.quadratic import quadratic
    >>> step_size_grid(quadratic([1.0, 0.5]), 3, 0.02).round(3).tolist()
    [0.04, 0.28, 1.96]
    """
    if positive("lowest", lowest) >= 0.98:
        raise ValueError(f"lowest = {lowest} is not allowed: it must be < 0.98")
    fractions = np.geomspace(lowest, 0.98, whole("count", count, low=2))
    return fractions * 2 / problem.curvature.max()


def updates_to_target(
    problem: Quadratic,
    learning_rates: ArrayLike,
    design: ReplayDesign,
    target: float,
    *,
    profile: Profile | float = 1.0,
    max_updates: int = MAX_UPDATES,
    start: str = "full",
) -> FloatOrArray:
    """First number of updates U after which the expected loss is within the target (Q7).

    Args:
        problem: the modes.
        learning_rates: eta, > 0, eta lambda < 2 in every mode, one number or shape (rates,).
        design: the designs.
        target: expected loss to reach, > 0 and below the loss at theta_0.
        profile: variance by age, or one number for every age.
        max_updates: largest U looked for, >= 1.
        start: "full", the only start this formula covers.

    Returns:
        U, shape of ``design`` and of ``learning_rates``; infinite where it is beyond
        ``max_updates`` or the target is never reached.

    Raises:
        ValueError: if an argument is out of range or ``start`` is "growing".

    >>> from theory.quadratic import quadratic
    >>> from theory.sampling import replay_design
    >>> modes = quadratic([1.0, 0.1])
    >>> updates_to_target(modes, [0.1, 0.5], replay_design(32, [32, 8], 32), 0.05).tolist()
    [[18.0, 4.0], [18.0, 4.0]]
    """
    check_start(start)
    _check_target(problem, target)
    longest = whole("max_updates", max_updates)
    rates = np.asarray(learning_rates, dtype=float)
    steps = step_curvature(problem, np.atleast_1d(learning_rates))
    if steps.ndim != 2:
        raise ValueError(f"learning_rates of shape {rates.shape} are not allowed: give one row")
    batch, fresh, size = (np.ravel(field) for field in design[:3])
    flat = ReplayDesign(batch, fresh, size, np.ravel(design.replace))
    found = _first_within(problem, steps, flat, target, profile, longest)
    return plain(found.reshape(design.batch_size.shape + rates.shape))


def replay_cost(
    problem: Quadratic,
    learning_rates: ArrayLike,
    design: ReplayDesign,
    target: float,
    gen_train_ratio: float,
    *,
    fixed_cost: float = 0.0,
    profile: Profile | float = 1.0,
    max_updates: int = MAX_UPDATES,
    start: str = "full",
) -> FloatOrArray:
    """Cost to the target, U (fixed_cost + B) + mu (N + (U - 1) R), with the U of Q7.

    Args:
        problem: the modes.
        learning_rates: eta, > 0, eta lambda < 2 in every mode, one number or shape (rates,).
        design: the designs.
        target: expected loss to reach, > 0 and below the loss at theta_0.
        gen_train_ratio: mu = cost_gen / cost_train, > 0.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units, >= 0.
        profile: variance by age, or one number for every age.
        max_updates: largest U looked for, >= 1.
        start: "full", the only start this formula covers.

    Returns:
        Cost in training-cost units, shape of ``design`` and of ``learning_rates``; infinite where
        the target is not reached.

    Raises:
        ValueError: if an argument is out of range or ``start`` is "growing".

    >>> from theory.quadratic import quadratic
    >>> from theory.sampling import replay_design
    >>> replay_cost(quadratic([1.0, 0.1]), 0.1, replay_design(32, [32, 8], 32), 0.05, 5.0).tolist()
    [3456.0, 1416.0]
    """
    updates = updates_to_target(
        problem,
        learning_rates,
        design,
        target,
        profile=profile,
        max_updates=max_updates,
        start=start,
    )
    return _cost(updates, design, gen_train_ratio, fixed_cost)


def best_step_size(
    problem: Quadratic,
    design: ReplayDesign,
    target: float,
    gen_train_ratio: float,
    *,
    learning_rates: ArrayLike | None = None,
    fixed_cost: float = 0.0,
    profile: Profile | float = 1.0,
    max_updates: int = MAX_UPDATES,
    start: str = "full",
) -> BestStep:
    """The step size of a grid with which each design costs least to the target of Q7.

    At a given design the cost rises with U, so it is also the one with the fewest updates.

    Args:
        problem: the modes.
        design: the designs.
        target: expected loss to reach, > 0 and below the loss at theta_0.
        gen_train_ratio: mu = cost_gen / cost_train, > 0.
        learning_rates: eta, ascending, eta lambda < 2 in every mode, shape (rates,); None takes
            ``step_size_grid``.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units, >= 0.
        profile: variance by age, or one number for every age.
        max_updates: largest U looked for, >= 1.
        start: "full", the only start this formula covers.

    Returns:
        The best step of each design; with ties, the smallest.

    Raises:
        ValueError: if an argument is out of range or ``start`` is "growing".

    >>> from theory.quadratic import power_law_quadratic
    >>> from theory.sampling import replay_design
    >>> modes = power_law_quadratic(20, 1.0)
    >>> best_step_size(modes, replay_design(32, [32, 8], 32), 0.1, 5.0).updates.tolist()
    [14.0, 23.0]
    """
    grid = step_size_grid(problem)
    if learning_rates is not None:
        grid = real_array("learning_rates", learning_rates, low=0, above=True)
    if grid.ndim != 1 or not (np.diff(grid) > 0).all():
        raise ValueError(f"learning_rates = {grid} are not allowed: give one ascending row")
    every = updates_to_target(
        problem, grid, design, target, profile=profile, max_updates=max_updates, start=start
    )
    best = np.argmin(every, axis=-1)
    updates = np.min(every, axis=-1)
    reached = np.isfinite(updates)
    converged = reached & (best > 0) & (best < grid.size - 1)
    return BestStep(
        learning_rate=plain(np.where(reached, grid[best], np.nan)),
        updates=plain(updates),
        cost=_cost(updates, design, gen_train_ratio, fixed_cost),
        converged=bool(converged) if converged.ndim == 0 else converged,
        message=f"{int((~reached).sum())} of {reached.size} do not reach the target; "
        f"{int((reached & ~converged).sum())} are best at an end of the grid: extend it",
    )


def _first_within(
    problem: Quadratic,
    steps: Array,
    design: ReplayDesign,
    target: float,
    profile: Profile | float,
    longest: int,
) -> Array:
    """U of flat designs, (designs, rates): the transients, then what comes after each."""
    horizon = (design.buffer_size // design.rollouts_per_update).astype(int)
    order = np.argsort(horizon, kind="stable")
    weights = design_weights(design)[order]
    sigma = sigma_by_age(profile, min(int(horizon.max()), longest))
    edges = np.searchsorted(horizon[order], np.arange(sigma.size + 1))
    gain = (steps / problem.curvature * problem.noise_std) ** 2
    log, half = log_shrink(steps), 0.5 * problem.curvature
    found = np.full((order.size, len(steps)), np.inf)
    for t, (response, drive) in enumerate(transients(1 - steps, sigma)):
        variance, ending = gain * response, gain * drive / (steps * (2 - steps))
        bias, rows = problem.start**2 * np.exp(t * log), slice(edges[t], None)
        within = bias @ half + weights[rows] @ (variance @ half) <= target
        found[rows][within & np.isinf(found[rows])] = t
        for first in range(edges[t], edges[t + 1], DESIGNS_AT_ONCE):
            some = slice(first, min(first + DESIGNS_AT_ONCE, edges[t + 1]))
            row, rate = np.nonzero(np.isinf(found[some]))
            limit = half * np.tensordot(weights[some], ending, 1)[row, rate]
            now = half * (bias + np.tensordot(weights[some], variance, 1))[row, rate]
            later = first_passage(limit.sum(axis=1), now - limit, log[rate], target, longest - t)
            found[some][row, rate] = t + later
        if np.isfinite(found[rows]).all():
            break
    return found[np.argsort(order)]


def _cost(
    updates: FloatOrArray, design: ReplayDesign, gen_train_ratio: float, fixed_cost: float
) -> FloatOrArray:
    extra = np.ndim(updates) - design.batch_size.ndim
    batch, fresh, size = (np.reshape(field, field.shape + (1,) * extra) for field in design[:3])
    return cost_to_target(updates, batch, fresh, size, gen_train_ratio, fixed_cost)


def _check_target(problem: Quadratic, target: float) -> None:
    if positive("target", target) >= initial_loss(problem):
        allowed = f"it must be below the loss at the start, {initial_loss(problem):g}"
        raise ValueError(f"target = {target} is not allowed: {allowed}")
