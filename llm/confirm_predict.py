"""From the pilot of a job to a prediction: which design at each cost ratio, and what it saves.

Nothing here trains. The law is L8 (``theory.finite_memory``), fitted to the pilot's updates to the
target with each design at its best step size. The interval of a predicted saving resamples the
pilot's seeds and adds the law's own error, as the simulator's judgement half measured it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from theory import optimal_design
from theory.calibrate import Estimate, MemoryFit, tuned_memory_fit
from theory.cost import cost_to_target
from theory.sampling import ReplayDesign, replay_design

# Root mean square of the error of log U, replay over on-policy, over the environments of the
# judgement half: `python -m benchmarks.law_variants`, docs/validation_notes.md.
LAW_ERROR = 0.26
RESAMPLES = 200


class Shape(NamedTuple):
    """B, R and N of a design, rollouts."""

    batch_size: int
    rollouts_per_update: int
    buffer_size: int

    @property
    def on_policy(self) -> bool:
        """Whether every rollout is used once, in the update it was made for."""
        return self.batch_size == self.rollouts_per_update == self.buffer_size

    def __str__(self) -> str:
        """Return the three numbers by name."""
        return f"B {self.batch_size}, R {self.rollouts_per_update}, N {self.buffer_size}"


@dataclass(frozen=True)
class Prediction:
    """What the theory says of a job at one cost ratio, its batch kept.

    Attributes:
        gen_train_ratio: mu.
        design: the cheapest of all, on-policy training among them.
        replay: the cheapest that uses rollouts again.
        saving: 1 - cost of ``replay`` / cost of on-policy training at the same batch.
        paper: the design of the published closed form (P8) with its default constants.
    """

    gen_train_ratio: float
    design: Shape
    replay: Shape
    saving: Estimate
    paper: Shape

    @property
    def pays(self) -> bool:
        """Whether replay is predicted to be cheaper than on-policy training."""
        return not self.design.on_policy


def on_policy(batch: int) -> Shape:
    """Return on-policy training at a batch."""
    return Shape(batch, batch, batch)


def smaller_batches(batch: int, group: int) -> list[Shape]:
    """Return on-policy training at 1/2, 1/4 and 1/8 of the batch, in whole groups."""
    return [on_policy(batch // part) for part in (2, 4, 8) if batch % (part * group) == 0]


def pilot_shapes(batch: int, group: int) -> list[Shape]:
    """Return what the pilot runs: on-policy at up to four batches and three replay designs.

    The same that was validated in the simulator (``sim.validation``).

    >>> [shape.rollouts_per_update for shape in pilot_shapes(64, 8)]
    [64, 32, 16, 8, 32, 8, 32]
    """
    replay = [(2, 1), (8, 1), (2, 4)]
    kept = [(y, n) for y, n in replay if batch % (y * group) == 0]
    return [
        on_policy(batch),
        *smaller_batches(batch, group),
        *(Shape(batch, batch // y, batch * n) for y, n in kept),
    ]


def choices(batch: int, group: int) -> list[Shape]:
    """Return every design a prediction may name, on-policy training first."""
    sizes = [batch * times for times in (1, 2, 4, 8)]
    fresh = range(batch - group, 0, -group)
    return [on_policy(batch), *(Shape(batch, new, size) for new in fresh for size in sizes)]


def arrays(shapes: Sequence[Shape]) -> ReplayDesign:
    """Return designs as the theory takes them."""
    return replay_design(*(list(column) for column in zip(*shapes, strict=True)))


def run_cost(shape: Shape, updates: np.ndarray, gen_train_ratio: float) -> np.ndarray:
    """Return the cost of runs of so many updates, training-cost units, growing buffer (P1)."""
    return np.asarray(cost_to_target(updates, *shape, gen_train_ratio, start="growing"))


def fitted(pilot: Mapping[Shape, np.ndarray]) -> MemoryFit:
    """Return L8 fitted to a pilot whose first design is the reference."""
    return tuned_memory_fit(arrays(list(pilot)), list(pilot.values()))


def predictions(
    pilot: Mapping[Shape, np.ndarray],
    group: int,
    ratios: Sequence[float],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Prediction]:
    """Return what the pilot predicts at each cost ratio.

    Args:
        pilot: updates to the target, (seeds,), of each design at its best step size; the reference
            first.
        group: rollouts per prompt, G.
        ratios: mu.
        seed: of the resampling.
        resamples: of the pilot's seeds, for the intervals.

    Raises:
        ValueError: from the fit, with too few designs.
    """
    reference = next(iter(pilot))
    shapes = choices(reference.batch_size, group)
    updates = np.asarray(fitted(pilot).updates(arrays(shapes)))
    rng = np.random.default_rng(seed)
    again = np.empty((resamples, len(shapes)))
    for row in again:
        picked = {one: runs[rng.integers(0, len(runs), len(runs))] for one, runs in pilot.items()}
        row[:] = fitted(picked).updates(arrays(shapes))
    law = np.exp(LAW_ERROR * rng.standard_normal((resamples, 1)))
    found = []
    for mu in ratios:

        def relative(counts: np.ndarray, mu: float = mu) -> np.ndarray:
            costs = [run_cost(one, counts[..., i], mu) for i, one in enumerate(shapes)]
            return np.stack(costs, axis=-1) / np.asarray(costs[0])[..., None]

        ratio = relative(updates)
        replay = 1 + int(np.argmin(ratio[1:]))
        spread = 1 - law[:, 0] * relative(again)[:, replay]
        low, high = np.percentile(spread, [2.5, 97.5])
        best = shapes[replay] if ratio[replay] < 1 else reference
        saving = Estimate(float(1 - ratio[replay]), float(low), float(high))
        paper = papers_shape(reference.batch_size, group, mu)
        found.append(Prediction(mu, best, shapes[replay], saving, paper))
    return found


def papers_shape(batch: int, group: int, gen_train_ratio: float) -> Shape:
    """Return the design of the closed form of arXiv 2604.08706 (P8), N raised to B if below."""
    design = optimal_design(gen_train_ratio, 1, batch_size=batch, num_generations=group)
    return Shape(batch, design.rollouts_per_update, max(design.buffer_size, batch))
