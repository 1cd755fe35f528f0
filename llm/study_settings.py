"""What a study does: its flags and checks, and the function that trains."""

import dataclasses
import importlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from llm.study_space import SpaceConfig
from theory.run_folder import check_plain_name

Goal = Literal["cost", "pareto"]


@dataclass(frozen=True)
class StudyConfig:
    """Search for the cheapest way to train."""

    name: str = "study"
    """Name of the study and of its folder."""
    objective: str = "llm.objective:cost_to_target"
    """MODULE:FUNCTION that trains; see llm.study_settings.Objective."""
    option: tuple[str, ...] = ()
    """NAME=VALUE for the objective, as its documentation names them."""
    storage: str = ""
    """Empty: a journal file in the study's folder; sqlite:///FILE; or a PostgreSQL URL for workers
    on many machines."""
    trials: int = 40
    """Trials of the whole study, those already made included, >= 1."""
    workers: int = 1
    """Processes on this machine, >= 1."""
    seeds: int = 2
    """Seeds every trial is run with, the same for all, >= 1."""
    first_seed: int = 0
    """The first of them."""
    goal: Goal = "cost"
    """cost: compute to the target, mean over seeds. pareto: best score against the compute it
    took, both."""
    target: float = 0.6
    """Score to reach."""
    max_cost: float = 1e6
    """Compute after which a run is given up, training-cost units."""
    gen_train_ratio: float = 5.28
    """cost_gen / cost_train."""
    noise_to_batch: float | None = None
    """Gradient noise scale over the reference batch (beta), if known; the prediction uses it."""
    space: SpaceConfig = field(default_factory=SpaceConfig)
    """What is searched."""
    no_first_guesses: bool = False
    """Do not try prediction, on-policy and the paper's setting first."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How trials are chosen."""
    sampler_seed: int = 0
    """Seed of the choice; with one worker the study repeats."""
    pruner: Literal["median", "none"] = "median"
    """median: a trial ends if its score at equal compute and seed is below the median's."""
    slack: float = 1.5
    """A trial ends once it is sure to cost this many times the best one, >= 1."""
    rungs: int = 20
    """Looks at equal compute between nothing and max_cost, >= 1."""
    no_artifacts: bool = False
    """Store no curves and pictures with the trials: for thousands of short ones."""
    results: Path = Path("results")
    """The study's folder is studies/NAME in it."""


NOT_IDENTITY = ("trials", "workers", "results", "storage", "no_artifacts")


class Watch(Protocol):
    """What an objective calls with (compute so far, score so far); it raises to end the run.

    No run needs to go beyond ``max_cost``.
    """

    max_cost: float

    def __call__(self, cost: float, score: float) -> None:
        """Take a measurement."""
        ...

    def note(self, text: str) -> None:
        """Take a word on the run for the trial's record, such as where its folder is."""
        ...


class Objective(Protocol):
    """What a study calls: train at a point with a seed, reporting to ``watch``.

    The point holds the fields of ``llm.study_space.Point``; ``gen_train_ratio`` prices generation.
    What ``watch`` raises must pass through.
    """

    def __call__(
        self, point: dict[str, Any], seed: int, watch: Watch, gen_train_ratio: float, **options: str
    ) -> None:
        """Train."""
        ...


def resolved_objective(name: str) -> Objective:
    """Return the function of MODULE:FUNCTION.

    Raises:
        ValueError: if there is none.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"objective = {name!r} is not a MODULE:FUNCTION here: {error}") from None
    if not callable(found):
        raise ValueError(f"objective = {name!r} is not a function")
    return cast(Objective, found)


def options_of(config: StudyConfig) -> dict[str, str]:
    """Return the objective's options.

    Raises:
        ValueError: if one is not NAME=VALUE.
    """
    found = {}
    for text in config.option:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"option must be NAME=VALUE, got {text!r}")
        found[name] = value
    return found


def check(config: StudyConfig) -> None:
    """Raise ValueError, naming value and range, for what cannot be studied."""
    for name in ("trials", "workers", "seeds", "rungs"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {getattr(config, name)}")
    for name in ("max_cost", "gen_train_ratio"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} must be finite and > 0, got {getattr(config, name)}")
    if not 1 <= config.slack < math.inf:
        raise ValueError(f"slack must be finite and >= 1, got {config.slack}")
    if not math.isfinite(config.target):
        raise ValueError(f"target must be finite, got {config.target}")
    if not config.name:
        raise ValueError("name must be a plain folder name, got ''")
    check_plain_name("name", config.name)
    options_of(config)
    resolved_objective(config.objective)


def study_record(config: StudyConfig) -> dict[str, Any]:
    """Return what defines a study, as plain data."""
    fields = dataclasses.asdict(config)
    for name in NOT_IDENTITY:
        del fields[name]
    return json.loads(json.dumps(fields))


def study_folder(config: StudyConfig) -> Path:
    """Return the study's folder."""
    return config.results / "studies" / config.name
