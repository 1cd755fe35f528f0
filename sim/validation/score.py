"""Score predictors: design regret and verdicts, on seeds that did not choose what they price.

Costs are P1 to the target with the first fill, averaged over the typical seeds (`typical`). The
best design is chosen on one half of the pricing seeds and priced, like the predicted one, on the
other half; then the halves change places and the two are averaged. So ties have regret 0 on
average, a negative one now and then, and the luck of the best does not count. Intervals resample
whole environments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sim.designs import Design
from sim.validation.steps import typical
from theory.cost import cost_to_target

Protocol = Literal["tuned", "fixed_step"]
BatchRule = Literal["fixed_batch", "free_batch"]
RESAMPLES = 2000


class Measured(NamedTuple):
    """Runs of one design: updates (seeds,), and how many missed the target."""

    updates: np.ndarray
    missed: int

    @property
    def mean(self) -> float:
        """Mean updates of the typical seeds."""
        return float(typical(self.updates).mean())

    @property
    def trapped(self) -> bool:
        """Whether more seeds missed the target than are left out of the mean."""
        return self.missed > len(self.updates) - len(typical(self.updates))


@dataclass(frozen=True)
class Arena:
    """What one environment measured under one protocol.

    Attributes:
        reference: the on-policy design of the job.
        smaller: on-policy designs at smaller batches.
        replay: replay designs.
        runs: pricing runs of all of them.
    """

    reference: Design
    smaller: tuple[Design, ...]
    replay: tuple[Design, ...]
    runs: Mapping[Design, Measured]

    def on_policy(self, batch: BatchRule) -> tuple[Design, ...]:
        """Return the on-policy designs that may be chosen."""
        return (self.reference, *(self.smaller if batch == "free_batch" else ()))

    def choices(self, batch: BatchRule) -> tuple[Design, ...]:
        """Return every design that may be chosen."""
        return (*self.on_policy(batch), *self.replay)

    def costs(self, designs: Sequence[Design], gen_train_ratio: float) -> np.ndarray:
        """Return the cost of each run, (designs, seeds), training-cost units."""
        return np.array(
            [design_cost(one, self.runs[one].updates, gen_train_ratio) for one in designs]
        )


def design_cost(design: Design, updates: np.ndarray, gen_train_ratio: float) -> np.ndarray:
    """Return the cost of runs of this many updates, first fill included (P1)."""
    return np.asarray(
        cost_to_target(
            updates,
            design.batch_size,
            design.rollouts_per_update,
            design.buffer_size,
            gen_train_ratio,
        )
    )


class Case(NamedTuple):
    """One environment at one cost ratio: what was measured, to set predictions against.

    Attributes:
        environment: id.
        gen_train_ratio: mu.
        halves: cost of every choice on each half of the seeds, (2, choices).
        choices: the designs.
        ratio: cost of the best replay design over the best on-policy one allowed.
        low: 95 % interval of it.
        high: 95 % interval of it.
    """

    environment: str
    gen_train_ratio: float
    halves: np.ndarray
    choices: tuple[Design, ...]
    ratio: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @property
    def pays(self) -> bool:
        """Whether replay is measured cheaper."""
        return self.ratio < 1

    def regret(self, design: Design) -> float:
        """Return the measured cost of a design over that of the best, minus 1."""
        place = self.choices.index(design)
        ratios = [
            self.halves[1 - half, place] / self.halves[1 - half, np.argmin(self.halves[half])]
            for half in (0, 1)
        ]
        return float(np.mean(ratios)) - 1


def case_of(name: str, arena: Arena, batch: BatchRule, gen_train_ratio: float) -> Case:
    """Return the case of an environment at one cost ratio."""
    choices = arena.choices(batch)
    costs = arena.costs(choices, gen_train_ratio)
    middle = costs.shape[1] // 2
    halves = np.stack(
        [typical(costs[:, :middle]).mean(axis=1), typical(costs[:, middle:]).mean(axis=1)]
    )
    count = len(arena.on_policy(batch))
    value, low, high = best_ratio(costs, count)
    return Case(name, gen_train_ratio, halves, choices, value, low, high)


def best_ratio(costs: np.ndarray, on_policy: int) -> tuple[float, float, float]:
    """Return the cost of the best replay design over the best on-policy one, and its interval.

    Each is chosen on one half of the seeds and priced on the other; the two ways are averaged, and
    the interval resamples the seeds of each half with the choices kept.

    Args:
        costs: cost of each run, (designs, seeds), on-policy designs first.
        on_policy: how many of them are on-policy.
    """
    middle = costs.shape[1] // 2
    halves = [costs[:, :middle], costs[:, middle:]]
    rng = np.random.default_rng(0)
    logs, samples = [], []
    for chooser, pricer in (halves, halves[::-1]):
        means = typical(chooser).mean(axis=1)
        base = int(np.argmin(means[:on_policy]))
        replay = on_policy + int(np.argmin(means[on_policy:]))
        picks = rng.integers(0, pricer.shape[1], (2, RESAMPLES, pricer.shape[1]))
        top, bottom = pricer[replay], pricer[base]
        logs.append(np.log(typical(top).mean() / typical(bottom).mean()))
        above, below = (typical(one).mean(axis=1) for one in (top[picks[0]], bottom[picks[1]]))
        samples.append(np.log(above / below))
    low, high = np.percentile(np.mean(samples, axis=0), [2.5, 97.5])
    return float(np.exp(np.mean(logs))), float(np.exp(low)), float(np.exp(high))


class Choice(NamedTuple):
    """What a predictor said of a case: the design it takes, and whether replay pays."""

    design: Design
    pays: bool


def predicted_costs(
    arena: Arena, batch: BatchRule, updates: Mapping[Design, float], gen_train_ratio: float
) -> dict[Design, float]:
    """Return what a predictor's updates cost, of the designs that may be chosen and it gives."""
    return {
        design: float(design_cost(design, np.asarray(updates[design]), gen_train_ratio))
        for design in arena.choices(batch)
        if np.isfinite(updates.get(design, np.inf))
    }


def chosen(
    arena: Arena, batch: BatchRule, updates: Mapping[Design, float], gen_train_ratio: float
) -> Choice:
    """Return the choice of a predictor that gives updates; designs it leaves out are not taken."""
    costs = predicted_costs(arena, batch, updates, gen_train_ratio)
    best = min(costs, key=lambda design: costs[design])
    return Choice(best, best in arena.replay)


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval over environments."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Scores of one predictor on some environments.

    Attributes:
        median_regret: median over environments and cost ratios.
        p90_regret: 90th percentile.
        verdict_accuracy: share of the decided cases whose verdict is right; NaN without any.
    """

    median_regret: Interval
    p90_regret: Interval
    verdict_accuracy: Interval


def scores(cases: Sequence[Case], choices: Sequence[Choice]) -> Scores:
    """Return the scores of a predictor's choices, bootstrapped over environments.

    Args:
        cases: those of one environment after another, the same number of each.
        choices: one a case.
    """
    regret, right = outcomes(cases, choices)
    picks = resampled(len(regret))
    return Scores(
        interval(regret, picks, lambda some: np.median(some, axis=-1)),
        interval(regret, picks, lambda some: np.percentile(some, 90, axis=-1)),
        interval(right, picks, known_mean),
    )


def outcomes(cases: Sequence[Case], choices: Sequence[Choice]) -> tuple[np.ndarray, np.ndarray]:
    """Return regret, and whether the verdict is right, NaN if undecided: (environments, cases).

    Args:
        cases: those of one environment after another, the same number of each.
        choices: one a case.
    """
    pairs = list(zip(cases, choices, strict=True))
    environments = len({case.environment for case in cases})
    regret = np.array([case.regret(choice.design) for case, choice in pairs])
    right = np.array(
        [float(case.pays == choice.pays) if case.decided else np.nan for case, choice in pairs]
    )
    return regret.reshape(environments, -1), right.reshape(environments, -1)


def resampled(environments: int) -> np.ndarray:
    """Return the environments of every resample, (RESAMPLES, environments)."""
    return np.random.default_rng(0).integers(0, environments, (RESAMPLES, environments))


def over_environments(values: np.ndarray) -> Interval:
    """Return the mean of (environments, cases), NaN left out, bootstrapped over environments."""
    return interval(values, resampled(len(values)), known_mean)


def known_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean along the last axis of what is known, NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(axis=-1) / known.sum(axis=-1)


def interval(
    values: np.ndarray, picks: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> Interval:
    """Return a statistic of all values and its 95 % interval over environments.

    Args:
        values: (environments, cases).
        picks: environments of each resample, (resamples, environments).
        statistic: of the last axis.
    """
    found = statistic(values[picks].reshape(len(picks), -1))
    low, high = np.nanpercentile(found, [2.5, 97.5]) if np.isfinite(found).any() else [np.nan] * 2
    return Interval(float(statistic(values.ravel())), float(low), float(high))
