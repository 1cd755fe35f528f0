"""How many updates a whole design needs: by the reuse law, or exactly on a known spectrum.

A model turns designs into updates to the target and says whether these are counted from the start
of the run, so that the first fill can be paid for. Costs follow by P1 (arXiv 2604.08706).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from theory.long_run import long_run_variance
from theory.pricing import best_step_size, updates_to_target
from theory.quadratic import Quadratic
from theory.quantities import non_negative, positive
from theory.sampling import Array, ReplayDesign
from theory.staleness import Profile


class NoiseModel(Protocol):
    """Predicts updates to the target; ``counts_fill`` says whether they are a whole run's."""

    @property
    def name(self) -> str:
        """What to call the model in a design."""
        ...

    @property
    def counts_fill(self) -> bool:
        """Whether updates are those of a whole run."""
        ...

    def updates(self, design: ReplayDesign) -> tuple[Array, Array]:
        """Updates to the target and the step size assumed (NaN if none), shape of ``design``."""
        ...


@dataclass(frozen=True)
class ReuseLaw:
    """U = S_min (1 + Bnoise V), with the long-run V of L5 (L0, L5).

    Attributes:
        noise_scale: Bnoise, rollouts, >= 0.
        batch_size: B of the on-policy run that ``reference_updates`` belongs to.
        profile: variance by age, or one number for every age.
        reference_updates: updates of that run, > 0; None: U is in units of S_min.
    """

    noise_scale: float
    batch_size: int
    profile: Profile | float = 1.0
    reference_updates: float | None = None
    name: str = "reuse_law"

    def __post_init__(self) -> None:
        """Check the numbers."""
        non_negative("noise_scale", self.noise_scale)
        if self.reference_updates is not None:
            positive("reference_updates", self.reference_updates)

    @property
    def counts_fill(self) -> bool:
        """Whether updates are those of a whole run."""
        return self.reference_updates is not None

    def updates(self, design: ReplayDesign) -> tuple[Array, Array]:
        """Updates by L0, in units of S_min without ``reference_updates``; no step size.

        >>> from theory.sampling import replay_design
        >>> law = ReuseLaw(noise_scale=64.0, batch_size=64)
        >>> law.updates(replay_design(64, [64, 16], 64))[0].tolist()
        [2.0, 5.0]
        """
        least = 1.0
        if self.reference_updates is not None:
            least = self.reference_updates / (1 + self.noise_scale / self.batch_size)
        found = least * (1 + self.noise_scale * np.asarray(long_run_variance(design, self.profile)))
        return found, np.full(found.shape, np.nan)

    def with_noise_scale(self, noise_scale: float) -> ReuseLaw:
        """The same law at another noise scale."""
        return replace(self, noise_scale=noise_scale)


@dataclass(frozen=True, eq=False)
class ExactQuadratic:
    """U is the first update at which the expected loss of a quadratic is within the target (Q7).

    Attributes:
        problem: the modes, noise included.
        target: expected loss to reach.
        learning_rate: step size of every design; None: the best of a grid for each.
        profile: variance by age, or one number for every age.
    """

    problem: Quadratic
    target: float
    learning_rate: float | None = None
    profile: Profile | float = 1.0
    name: str = "exact"
    counts_fill: bool = True
    _known: dict[bytes, tuple[Array, Array]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Check the step size."""
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)

    def updates(self, design: ReplayDesign) -> tuple[Array, Array]:
        """Updates and step size of each design; infinite where the target is not reached.

        >>> from theory.quadratic import power_law_quadratic
        >>> from theory.sampling import replay_design
        >>> model = ExactQuadratic(power_law_quadratic(20, 1.0), 0.1)
        >>> model.updates(replay_design(32, [32, 8], 32))[0].tolist()
        [14.0, 23.0]
        """
        key = b"".join(np.asarray(each).tobytes() for each in design)
        if key not in self._known:
            self._known[key] = self._searched(design)
        return self._known[key]

    def _searched(self, design: ReplayDesign) -> tuple[Array, Array]:
        if self.learning_rate is not None:
            found = updates_to_target(
                self.problem, self.learning_rate, design, self.target, profile=self.profile
            )
            return np.asarray(found), np.full(design.batch_size.shape, self.learning_rate)
        best = best_step_size(self.problem, design, self.target, 1.0, profile=self.profile)
        return np.asarray(best.updates), np.asarray(best.learning_rate)


def prices(
    model: NoiseModel,
    updates: NDArray[np.float64],
    design: ReplayDesign,
    gen_train_ratio: float | NDArray[np.float64],
    fixed_cost: float,
) -> Array:
    """Cost of designs that need these updates, U (fixed_cost + B + mu R), and the fill if counted.

    P1 (arXiv 2604.08706) summed over the run.

    Args:
        model: says whether the first fill, mu (N - R), is counted.
        updates: U, shape of ``design``.
        design: the designs.
        gen_train_ratio: mu, > 0.
        fixed_cost: cost of an update that depends on neither B nor R, training-cost units.

    Returns:
        Cost in training-cost units, broadcast shape.

    >>> from theory.sampling import replay_design
    >>> law = ReuseLaw(64.0, 64)
    >>> designs = replay_design(64, [64, 16], 64)
    >>> prices(law, law.updates(designs)[0], designs, 20.0, 0.0).tolist()
    [2688.0, 1920.0]
    """
    fresh, fill = design.rollouts_per_update, design.buffer_size - design.rollouts_per_update
    cost = updates * (fixed_cost + design.batch_size + gen_train_ratio * fresh)
    return cost + gen_train_ratio * fill if model.counts_fill else cost
