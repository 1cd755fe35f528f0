"""One trial of a study: every seed in turn, each ended as soon as its outcome is known."""

import math
from collections.abc import Callable
from functools import partial

from optuna.trial import Trial

from llm.study_settings import Objective, StudyConfig, options_of
from llm.study_space import Point


class Ended(Exception):
    """A run is over: the target is reached."""


class Pruned(Exception):
    """A trial cannot win or has collapsed; the message says why."""


class Failed(Exception):
    """A trial has no value; the message says why."""


class Progress:
    """Watches one seed of a trial and ends it as soon as its outcome is known.

    Args:
        trial: the trial.
        config: of the study.
        place: number of the seed in the trial.
        spent: compute of the seeds before it.
        best: mean compute of the best finished trial, or infinity.
    """

    def __init__(self, trial: Trial, config: StudyConfig, place: int, spent: float, best: float):
        """Start at nothing."""
        self.trial, self.config, self.place = trial, config, place
        # The compute of all seeds together at which the trial has lost.
        self.spent, self.lost = spent, best * config.slack * config.seeds
        self.max_cost = config.max_cost
        if config.goal == "cost":
            self.max_cost = min(config.max_cost, self.lost - spent)
        self.curve: list[tuple[float, float]] = []
        self._rung = 0
        # A trial taken up again has reported some of it.
        self._known = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def __call__(self, cost: float, score: float) -> None:
        """Take a measurement; raise Ended, Pruned or Failed if the run is over."""
        config = self.config
        if not (math.isfinite(cost) and math.isfinite(score)):
            raise Failed(f"not a number: score {score} at compute {cost}")
        if cost < 0 or (self.curve and cost < self.curve[-1][0]):
            raise Failed(f"compute {cost} is less than before")
        self.curve.append((cost, score))
        if config.goal == "cost" and score >= config.target:
            if cost == 0:
                raise Failed(f"the target {config.target} is reached at no compute: raise it")
            raise Ended
        if 0 <= score < self.curve[0][1] / 2 and cost > config.max_cost / config.rungs:
            raise Pruned(f"collapsed from {self.curve[0][1]:.3g} to {score:.3g} at {cost:.4g}")
        if config.goal == "cost":
            if self.spent + cost >= self.lost:
                raise Pruned(f"sure to cost {config.slack:g} times the best trial or more")
            self.look(cost, score)
        if cost >= self.max_cost:
            if config.goal == "pareto":
                raise Ended
            raise Pruned(f"target {config.target} not reached within {config.max_cost:g}")

    def look(self, cost: float, score: float) -> None:
        """Report the score at each rung passed, and end the trial if the pruner says so."""
        config = self.config
        rung = min(int(cost / config.max_cost * config.rungs), config.rungs)
        if self._rung == rung:
            return
        while self._rung < rung:
            self._rung += 1
            # Lower is better, as for the objective; seeds are compared with the same seed.
            step = self.place * config.rungs + self._rung
            if step not in self._known:
                self.trial.report(-score, step)
        if self.trial.should_prune():
            raise Pruned(f"score {score:.3g} at compute {cost:.4g} is below the median")

    def note(self, text: str) -> None:
        """Keep a word on the run with the trial."""
        self.trial.set_user_attr(f"run_{self.place}", text)


# What may go wrong in training: no value, but no reason to end the study.
BROKEN = (ArithmeticError, MemoryError, ValueError)


def run_trial(
    trial: Trial, config: StudyConfig, point: Point, objective: Objective, best: Callable[[], float]
) -> list[float]:
    """Run every seed of a trial and return its value, or its values with goal pareto.

    Raises:
        Pruned: if it cannot win.
        Failed: if it has no value.
    """
    curves: list[list[tuple[float, float]]] = []
    options = options_of(config)
    try:
        for place in range(config.seeds):
            spent = sum(curve[-1][0] for curve in curves)
            watch = Progress(trial, config, place, spent, best())
            curves.append(watch.curve)
            run_seed(partial(objective, **options), point, config, place, watch)
            score = watch.curve[-1][1]
            if config.goal == "cost" and score < config.target:
                raise Pruned(f"ended at {score:.3g}, below the target {config.target}")
    finally:
        trial.set_user_attr("curves", [thinned(curve) for curve in curves])
    if config.goal == "cost":
        return [sum(curve[-1][0] for curve in curves) / len(curves)]
    tops = [max(curve, key=lambda one: (one[1], -one[0])) for curve in curves]
    return [sum(column) / len(tops) for column in zip(*tops, strict=True)]


def run_seed(
    objective: Objective, point: Point, config: StudyConfig, place: int, watch: Progress
) -> None:
    """Run one seed; what breaks in training ends the trial with the reason.

    Raises:
        Pruned: if the trial cannot win.
        Failed: if it has no value.
    """
    try:
        objective(point.record(), config.first_seed + place, watch, config.gen_train_ratio)
    except Ended:
        pass
    except BROKEN as error:
        raise Failed(f"{type(error).__name__}: {first_line(error)}") from error
    except RuntimeError as error:
        # torch.OutOfMemoryError is one of these.
        if "out of memory" not in str(error).lower():
            raise
        raise Failed(first_line(error)) from error
    if not watch.curve:
        raise Failed("the objective reported nothing")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def thinned(curve: list[tuple[float, float]], most: int = 60) -> list[tuple[float, float]]:
    """Return at most so many points of a curve, the last among them.

    >>> thinned([(0, 0), (1, 1), (2, 2), (3, 3)], 2)
    [(1, 1), (3, 3)]
    """
    step = max(1, -(-len(curve) // most))
    return curve[::-1][::step][::-1]
