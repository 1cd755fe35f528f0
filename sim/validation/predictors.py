"""What each predictor makes of a pilot: updates to the target for every design.

A predictor may use `theory` and the pilot's runs, nothing else. Costs follow from its updates by
P1, so all predictors choose among the same designs at the same prices; a design that a rule does
not consider is left out. What the published bound says is a ratio: its scale is the reference's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim.designs import Design
from sim.validation.score import Measured, Protocol
from theory.bound import update_variance
from theory.calibrate import (
    bound_from_updates,
    fixed_step_memory_fit,
    noise_scale_from_updates,
    spectrum_from_updates,
    tuned_memory_fit,
)
from theory.pricing import updates_to_target
from theory.sampling import ReplayDesign, replay_design
from theory.staleness import PowerLaw

Updates = dict[Design, float]


class Pilot(NamedTuple):
    """What a predictor may see.

    Attributes:
        reference: the on-policy design of the job.
        runs: updates of the pilot's seeds by design; a missed run counts its cap.
        tuned: the same with every design at its own best step size, whatever the protocol.
        limits: updates after which runs of each design were given up.
        target: gap to reach, as a fraction of the initial one.
        protocol: whether designs will run at their own best step size or the reference's.
    """

    reference: Design
    runs: Mapping[Design, Measured]
    tuned: Mapping[Design, Measured]
    limits: Mapping[Design, int]
    target: float
    protocol: Protocol

    @property
    def updates(self) -> float:
        """Mean updates of the reference run."""
        return float(self.runs[self.reference].updates.mean())

    def on_policy(self) -> tuple[Design, ...]:
        """Return the on-policy designs of the pilot."""
        return tuple(one for one in self.runs if is_on_policy(one))


Predictor = Callable[[Pilot, Sequence[Design]], Updates]


def is_on_policy(design: Design) -> bool:
    """Return whether a design uses each rollout once, when it is fresh."""
    return design.batch_size == design.rollouts_per_update == design.buffer_size


def whole_batch(design: Design) -> bool:
    """Return whether a design keeps one batch, N = B."""
    return design.buffer_size == design.batch_size


def arrays(designs: Sequence[Design]) -> ReplayDesign:
    """Return designs as the theory takes them."""
    return replay_design(
        [one.batch_size for one in designs],
        [one.rollouts_per_update for one in designs],
        [one.buffer_size for one in designs],
    )


def always_on_policy(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """Keep the job as it is."""
    return {pilot.reference: pilot.updates}


def passes(ratio: int) -> Predictor:
    """Return the rule that uses every rollout so many times, one batch stored."""

    def rule(pilot: Pilot, designs: Sequence[Design]) -> Updates:
        wanted = [one for one in designs if whole_batch(one) and one.replay_ratio == ratio]
        return {
            one: pilot.updates for one in wanted if one.batch_size == pilot.reference.batch_size
        }

    return rule


def bound(pilot: Pilot, designs: Sequence[Design], alpha: float, rho: float) -> Updates:
    """Return updates in proportion to P6."""
    batch, fresh, size, _ = arrays([pilot.reference, *designs])
    law = np.asarray(update_variance(PowerLaw(alpha), batch, fresh, size, rho))
    return dict(zip(designs, (pilot.updates * law[1:] / law[0]).tolist(), strict=True))


def paper_default(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """The published bound with the constants of `optimal_replay_ratio`."""
    return bound(pilot, designs, 0.1, 1.0)


def paper_fitted(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """The published bound with alpha and rho fitted to the pilot at the reference batch."""
    seen = [one for one in pilot.runs if one.batch_size == pilot.reference.batch_size]
    fit = bound_from_updates(arrays(seen), [pilot.runs[one].updates for one in seen])
    return bound(pilot, designs, fit.alpha, fit.rho)


def reuse_law(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """L1: S_min and Bnoise from the on-policy pilot, replay of one batch only."""
    seen = pilot.on_policy()
    fit = noise_scale_from_updates(
        [one.batch_size for one in seen], [pilot.runs[one].updates for one in seen]
    )
    start, slope = fit.min_updates.value, fit.noise_scale.value
    kept = [one for one in designs if whole_batch(one)]
    if not np.isfinite(slope):
        rollouts = pilot.updates * pilot.reference.batch_size
        return {one: rollouts / one.rollouts_per_update for one in kept}
    return {one: start * (1 + slope / one.rollouts_per_update) for one in kept}


def exact_dynamics(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """Q7 on a power-law quadratic fitted to the on-policy pilot."""
    seen = pilot.on_policy()
    fit = spectrum_from_updates(
        [one.batch_size for one in seen], [pilot.tuned[one].updates for one in seen], pilot.target
    )
    updates, rates = fit.updates(arrays([pilot.reference, *designs]))
    if pilot.protocol == "fixed_step":
        every = arrays(designs)
        updates = np.asarray(updates_to_target(fit.problem, float(rates[0]), every, fit.loss))
        return dict(zip(designs, updates.tolist(), strict=True))
    return dict(zip(designs, updates[1:].tolist(), strict=True))


def finite_memory(pilot: Pilot, designs: Sequence[Design]) -> Updates:
    """L8, or L10 at one step size, fitted to the whole pilot."""
    seen = list(pilot.runs)
    runs = [pilot.runs[one].updates for one in seen]
    place = seen.index(pilot.reference)
    if pilot.protocol == "tuned":
        fit = tuned_memory_fit(arrays(seen), runs, place)
    else:
        limits = [pilot.limits[one] for one in seen]
        fit = fixed_step_memory_fit(arrays(seen), runs, limits, place)
    found = np.asarray(fit.updates(arrays(designs)))
    return dict(zip(designs, found.tolist(), strict=True))


PREDICTORS: dict[str, Predictor] = {
    "always_on_policy": always_on_policy,
    "two_passes": passes(2),
    "four_passes": passes(4),
    "paper_default": paper_default,
    "paper_fitted": paper_fitted,
    "reuse_law": reuse_law,
    "exact_dynamics": exact_dynamics,
    "finite_memory": finite_memory,
}
