"""Does the prediction hold when somebody measures it? Pilot, prediction, and a head-to-head.

`python -m llm.confirm` does, task by task, what a user of the theory would do, and then checks it:

1. pilot: on-policy training at smaller and smaller batches and three replay designs, each at its
   best step size, to a target accuracy;
2. calibration: the finite-memory law and the noise scale from the pilot's updates, the staleness
   profile from its importance ratios, mu from its phase times;
3. prediction: at each cost ratio the design, what it saves and whether replay pays at all;
4. a study by Optuna at each cost ratio, which knows nothing of the pilot but its step size;
5. head-to-head on fresh seeds: on-policy, smaller batches on-policy, the prediction, the paper's
   closed form, and the study's best.

Every run is a folder of ``llm.train``; what is finished is not done again, and what was interrupted
goes on.
"""

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llm.confirm_predict import Shape, pilot_shapes, predictions, smaller_batches
from llm.confirm_report import Found, write_report
from llm.figure import ess_by_age
from llm.many_runs import SMOOTHING, prepare_policy, quietly, run_all, short_hash
from llm.run_folder import read_log
from llm.settings import TaskName, TrainConfig, check, config_record, resolved
from llm.study import run_study
from llm.study_settings import StudyConfig
from llm.study_space import SpaceConfig
from theory.calibrate import (
    MeasuredProfile,
    MeasuredRatio,
    UpdatesFit,
    gen_train_ratio_from_times,
    moments_from_ess,
    noise_scale_from_updates,
    staleness_profile,
)
from theory.command import run_command

TUNING_SEED, PILOT_SEED, STUDY_SEED, FRESH_SEED = 1000, 2000, 3000, 0
# Step sizes go by factors of two, and no farther than this from where they start.
FARTHEST = 3
# A step size is given up once it needs so many times the best one's updates.
HOPELESS = 2.0


@dataclass(frozen=True)
class ConfirmConfig:
    """Predict from a pilot, then measure."""

    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            learning_rate=1.5e-5, updates=600, eval_every=10, passk_every=0
        )
    )
    """Everything the runs share; its batch_size is the reference batch, its learning_rate where
    the search for step sizes starts, its updates what on-policy training is given at most, its
    eval_every that of the reference: other designs are tested after as much compute at mu 1."""
    tasks: tuple[TaskName, ...] = ("addition",)
    """Tasks, each with a pilot of its own."""
    lift: float = 0.25
    """The target: test pass@1 of the warm start plus this."""
    gen_train_ratios: tuple[float, ...] = (0.25, 5.28, 20.0)
    """cost_gen / cost_train to predict and measure at; the ratio of this machine is added."""
    tuning_seeds: int = 2
    """Seeds on which a design's step size is chosen."""
    pilot_seeds: int = 4
    """Seeds of each design of the pilot."""
    seeds: int = 8
    """Fresh seeds of every design of the head-to-head, >= 2."""
    trials: int = 16
    """Trials of the study at each cost ratio."""
    study_seeds: int = 2
    """Seeds of a trial."""
    workers: int = 2
    """Runs at a time, one thread each."""
    results: Path = Path("results")
    """Folder of the runs, the studies and the cache of policies."""
    docs: Path = Path("docs")
    """Where confirm.md, confirm.json and confirm.png go."""
    smoke: bool = False
    """Seconds instead of hours: few updates of a smaller policy; shows that it runs, no more."""


class TargetRun(NamedTuple):
    """A run that ends at the target: its config, and how far above the first test that is."""

    config: TrainConfig
    lift: float


class TargetReached(Exception):
    """The target is reached, and the run over."""


def reached(tests: Sequence[Mapping[str, Any]], lift: float) -> float | None:
    """Return the updates at which pass@1, averaged over neighbouring tests, is up by ``lift``.

    Between two tests it is taken to rise in a straight line. A mean stands for the middle of its
    tests, as a later place would cost those more that are tested seldom.

    Args:
        tests: lines of a log with pass@1, from the start.
        lift: > 0.

    Returns:
        Updates, or None if it was never up.
    """
    if len(tests) < SMOOTHING:
        return None
    scores = np.array([row["pass1"] for row in tests])
    places = np.array([row["update"] for row in tests], dtype=float)
    mean, middle = (
        np.lib.stride_tricks.sliding_window_view(values, SMOOTHING).mean(axis=1)
        for values in (scores, places)
    )
    # The first test is before any training, and no mean.
    height = np.concatenate([[0.0], mean - scores[0]])
    middle = np.concatenate([[0.0], middle])
    # A mean is off by rounding.
    up = height >= lift - 1e-9
    if not up.any():
        return None
    place = int(np.argmax(up))
    rise = height[place] - height[place - 1]
    return float(
        middle[place] - (middle[place] - middle[place - 1]) * (height[place] - lift) / rise
    )


def tests_of(run: TargetRun) -> list[dict[str, Any]]:
    """Return the lines of a run's log that hold pass@1, none if it has not started."""
    path = run.config.results / run.config.id / "log.jsonl"
    return [row for row in read_log(path) if "pass1" in row] if path.exists() else []


def ended(run: TargetRun) -> bool:
    """Whether a run has reached its target, or spent what it was given."""
    tests = tests_of(run)
    if not tests:
        return False
    return tests[-1]["update"] >= run.config.updates or reached(tests, run.lift) is not None


def to_target(run: TargetRun) -> None:
    """Run or resume a training to its target."""
    tests: list[dict[str, Any]] = []

    def tested(row: dict[str, Any]) -> None:
        tests.append(row)
        if len(tests) > 1 and reached(tests, run.lift) is not None:
            raise TargetReached

    with contextlib.suppress(TargetReached):
        quietly(run.config, tested)


def updates_of(run: TargetRun) -> float:
    """Return the updates an ended run needed; what it was given if that was too little."""
    found = reached(tests_of(run), run.lift)
    return float(run.config.updates) if found is None else found


def eval_every(train: TrainConfig, shape: Shape) -> int:
    """Return the updates between two tests: at mu 1 they cost every design the same."""
    work = shape.batch_size + shape.rollouts_per_update
    return max(1, round(train.eval_every * 2 * train.batch_size / work))


def longest(train: TrainConfig, shape: Shape) -> int:
    """Return the updates a design is given: as many new rollouts as the reference at most."""
    updates = train.updates * train.batch_size / shape.rollouts_per_update
    return rounded_up(updates, eval_every(train, shape))


def target_run(
    config: ConfirmConfig, shape: Shape, rate: float, seed: int, updates: float = math.inf
) -> TargetRun:
    """Return the run of a design at a step size and seed, with the updates it is given."""
    train, step = config.train, eval_every(config.train, shape)
    batch, fresh, size = shape
    chosen = dataclasses.replace(
        train,
        batch_size=batch,
        rollouts_per_update=fresh,
        buffer_size=size,
        learning_rate=rate,
        seed=seed,
        updates=int(min(longest(train, shape), max(updates, step))),
        eval_every=step,
        threads=1,
        no_tensorboard=True,
        results=config.results,
    )
    digest = short_hash(config_record(chosen))
    label = f"{train.task.name}-B{batch}-R{fresh}-N{size}-lr{rate:.3g}-s{seed}-{digest}"
    return TargetRun(dataclasses.replace(chosen, id=label), config.lift)


def measured(
    config: ConfirmConfig, rates: Mapping[Shape, float], first: int, count: int, what: str
) -> dict[Shape, np.ndarray]:
    """Return the updates to the target of designs at their step sizes, (seeds,) each."""
    runs = {
        shape: [target_run(config, shape, rate, first + seed) for seed in range(count)]
        for shape, rate in rates.items()
    }
    every = [run for group in runs.values() for run in group]
    run_all(every, ended, to_target, config.workers, what)
    return {shape: np.array([updates_of(run) for run in group]) for shape, group in runs.items()}


def tuned(config: ConfirmConfig, shapes: Iterable[Shape]) -> tuple[dict[Shape, float], int]:
    """Return each design's best step size by mean updates, and the rollouts that finding it took.

    The search goes by factors of two. It starts from the reference's step size, smaller by the
    root of how much fewer new rollouts an update has, and goes on while the best is at an end of
    what was tried.
    """
    train = config.train
    starts = {
        one: round(0.5 * math.log2(one.rollouts_per_update / train.batch_size)) for one in shapes
    }
    tried: dict[Shape, dict[int, float]] = {shape: {} for shape in starts}
    rollouts = 0.0
    while True:
        wanted = [
            (shape, place)
            for shape, start in starts.items()
            for place in around(tried[shape], start)
            if place not in tried[shape]
        ]
        if not wanted:
            break
        runs = {}
        for shape, place in wanted:
            limit = HOPELESS * min(tried[shape].values(), default=math.inf)
            whole = math.inf if math.isinf(limit) else rounded_up(limit, eval_every(train, shape))
            runs[shape, place] = [
                target_run(config, shape, train.learning_rate * 2.0**place, seed, whole)
                for seed in range(TUNING_SEED, TUNING_SEED + config.tuning_seeds)
            ]
        every = [run for group in runs.values() for run in group]
        run_all(every, ended, to_target, config.workers, "step sizes")
        for (shape, place), group in runs.items():
            updates = [updates_of(run) for run in group]
            rollouts += shape.rollouts_per_update * sum(updates)
            tried[shape][place] = float(np.mean(updates))
    best = {shape: min(found, key=lambda k: found[k]) for shape, found in tried.items()}
    rates = {shape: train.learning_rate * 2.0**place for shape, place in best.items()}
    return rates, round(rollouts)


def around(found: Mapping[int, float], start: int) -> list[int]:
    """Return the places to know before the best of those found is known to be best.

    >>> around({}, -1), around({-1: 300.0, 0: 200.0, -2: 500.0}, -1)
    ([-1], [-1, 1])
    """
    if not found:
        return [start]
    best = min(found, key=lambda place: found[place])
    near = (best - 1, best + 1)
    return [place for place in near if abs(place - start) <= FARTHEST]


def rounded_up(updates: float, step: int) -> int:
    """Return a whole number of steps, at least so many updates."""
    return math.ceil(updates / step) * step


@dataclass(frozen=True)
class Calibration:
    """What the pilot measured besides updates.

    Attributes:
        noise: S_min and noise scale from the on-policy runs (L0).
        profile: noise by age from the importance ratios of the replay runs.
        ratio: mu on this machine, from the reference's phase times.
    """

    noise: UpdatesFit
    profile: MeasuredProfile
    ratio: MeasuredRatio


def calibrated(
    config: ConfirmConfig, rates: Mapping[Shape, float], pilot: Mapping[Shape, np.ndarray]
) -> Calibration:
    """Return what the logs of the pilot say."""
    seeds = range(PILOT_SEED, PILOT_SEED + config.pilot_seeds)

    def logs(shape: Shape) -> list[dict[str, Any]]:
        runs = [target_run(config, shape, rates[shape], seed).config for seed in seeds]
        return [row for run in runs for row in read_log(run.results / run.id / "log.jsonl")]

    fresh = [shape for shape in pilot if shape.on_policy]
    noise = noise_scale_from_updates(
        [shape.batch_size for shape in fresh], [pilot[shape] for shape in fresh]
    )
    oldest = max(pilot, key=lambda shape: shape.buffer_size / shape.rollouts_per_update)
    ages, ess = ess_by_age(logs(oldest))
    counts = rollouts_by_age(logs(oldest))
    kept = counts >= 2
    profile = staleness_profile(moments_from_ess(ages[kept], ess[kept], counts[kept]))
    reference = next(iter(pilot))
    trained = [row for row in logs(reference) if "reward" in row]
    ratio = gen_train_ratio_from_times(
        [row["seconds"]["generate"] for row in trained],
        [reference.rollouts_per_update] * len(trained),
        [row["seconds"]["train"] for row in trained],
        [reference.batch_size] * len(trained),
    )
    return Calibration(noise, profile, ratio)


def rollouts_by_age(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return how many rollouts were trained on at each age, in the order of ``ess_by_age``."""
    totals: dict[int, int] = {}
    for row in rows:
        table = row.get("by_age", {"age": [], "rollouts": []})
        for age, number in zip(table["age"], table["rollouts"], strict=True):
            totals[age] = totals.get(age, 0) + number
    return np.array([totals[age] for age in sorted(totals)])


def study_config(
    config: ConfirmConfig, gen_train_ratio: float, rate: float, target: float, beta: float
) -> StudyConfig:
    """Return the study at a cost ratio: replay at the reference batch, around its step size."""
    train, mu = config.train, gen_train_ratio
    shared = {
        name: value
        for name, value in json.loads(json.dumps(dataclasses.asdict(train), default=str)).items()
        if name not in ("results", "id", "updates", "seed", "threads")
    }
    cost = train.updates * train.batch_size * (1 + mu)
    space = SpaceConfig(
        batch_size=train.batch_size,
        num_generations=train.num_generations,
        batch_parts=(1,),
        learning_rate=rate,
    )
    known = beta if 0 < beta < math.inf else None
    study = StudyConfig(
        option=(f"train={json.dumps(shared)}", f"results={config.results}"),
        trials=config.trials,
        workers=config.workers,
        seeds=config.study_seeds,
        first_seed=STUDY_SEED,
        target=target,
        max_cost=cost,
        gen_train_ratio=mu,
        noise_to_batch=known,
        space=space,
        results=config.results,
    )
    digest = short_hash([shared, dataclasses.asdict(space), cost, target, known])
    return dataclasses.replace(study, name=f"confirm-{train.task.name}-mu{mu:g}-{digest}")


def study_best(config: StudyConfig) -> tuple[Shape, float] | None:
    """Run or resume a study; return its best design and step size, None if none arrived."""
    study = run_study(config, progress=config.workers > 1)
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
    arrived = [trial for trial in finished if trial.state.name == "COMPLETE"]
    if not arrived:
        return None
    best = min(arrived, key=lambda trial: trial.value or math.inf).user_attrs
    names = ("batch_size", "rollouts_per_update", "buffer_size")
    return Shape(*(int(best[name]) for name in names)), float(best["learning_rate"])


def confirmed(config: ConfirmConfig) -> Found:
    """Predict and measure on one task."""
    train = config.train
    prepare_policy(train, config.results)
    shapes = pilot_shapes(train.batch_size, train.num_generations)
    rates, tuning = tuned(config, shapes)
    pilot = measured(config, rates, PILOT_SEED, config.pilot_seeds, "pilot")
    calibration = calibrated(config, rates, pilot)
    own = float(f"{calibration.ratio.gen_train_ratio.value:.2g}")
    ratios = [*config.gen_train_ratios, *([own] if own not in config.gen_train_ratios else [])]
    predicted = predictions(pilot, train.num_generations, ratios)
    named = [one for each in predicted for one in (each.replay, each.paper)]
    rates |= tuned(config, [one for one in dict.fromkeys(named) if one not in rates])[0]
    reference = shapes[0]
    start = tests_of(target_run(config, reference, rates[reference], PILOT_SEED))[0]["pass1"]
    beta = calibration.noise.noise_scale.value / train.batch_size
    studies = {
        mu: study_best(study_config(config, mu, rates[reference], start + config.lift, beta))
        for mu in ratios
    }
    wanted = [reference, *smaller_batches(train.batch_size, train.num_generations), *named]
    fresh = measured(
        config, {one: rates[one] for one in wanted}, FRESH_SEED, config.seeds, "head-to-head"
    )
    best = {
        mu: (*one, measured(config, dict([one]), FRESH_SEED, config.seeds, "study")[one[0]])
        for mu, one in studies.items()
        if one is not None
    }
    every = [*pilot, *fresh, *(shape for shape, _, _ in best.values())]
    return Found(
        task=train.task.name,
        start=start,
        pilot=pilot,
        rates=rates,
        rollouts=pilot_rollouts(pilot),
        tuning_rollouts=tuning,
        noise=calibration.noise,
        profile=calibration.profile,
        ratio=calibration.ratio.gen_train_ratio,
        predictions=predicted,
        fresh=fresh,
        studies=best,
        given={shape: longest(train, shape) for shape in every},
    )


def pilot_rollouts(pilot: Mapping[Shape, np.ndarray]) -> int:
    """Return how many rollouts the pilot generated."""
    return round(sum(one.rollouts_per_update * float(runs.sum()) for one, runs in pilot.items()))


SMOKE = {
    "batch_size": 16,
    "num_generations": 4,
    "updates": 8,
    "eval_every": 2,
    "passk_every": 0,
    "max_completion_length": 3,
}


def checked(config: ConfirmConfig) -> ConfirmConfig:
    """Return the config with presets resolved; ValueError for what cannot be measured."""
    train = resolved(config.train)
    if config.smoke:
        task = dataclasses.replace(train.task, digits=1, test_size=10)
        tiny = dataclasses.replace(
            train.tiny, layers=1, width=16, heads=2, warm_low=0.0, warm_high=1.0
        )
        train = dataclasses.replace(train, task=task, tiny=tiny, **SMOKE)
        config = dataclasses.replace(
            config,
            lift=0.02,
            gen_train_ratios=(5.28,),
            tuning_seeds=1,
            pilot_seeds=2,
            seeds=2,
            trials=2,
            study_seeds=1,
        )
    if not config.tasks or len(set(config.tasks)) < len(config.tasks):
        raise ValueError(f"tasks must be different and at least one, got {config.tasks}")
    if not 0 < config.lift < 1:
        raise ValueError(f"lift must be in (0, 1), got {config.lift}")
    if not config.gen_train_ratios or not all(0 < mu < math.inf for mu in config.gen_train_ratios):
        raise ValueError(
            f"gen_train_ratios must be finite and > 0, at least one, got {config.gen_train_ratios}"
        )
    for name, least in (
        ("tuning_seeds", 1),
        ("pilot_seeds", 2),
        ("seeds", 2),
        ("trials", 1),
        ("study_seeds", 1),
        ("workers", 1),
    ):
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be >= {least}, got {getattr(config, name)}")
    if train.batch_size % (4 * train.num_generations):
        raise ValueError(
            f"batch_size must be a multiple of 4 num_generations, got {train.batch_size}"
        )
    if not config.docs.is_dir():
        raise ValueError(f"docs = {config.docs} is not a folder")
    config = dataclasses.replace(config, train=train)
    for name in config.tasks:
        for shape in pilot_shapes(train.batch_size, train.num_generations):
            check(target_run(on_task(config, name), shape, train.learning_rate, 0).config)
    return config


def on_task(config: ConfirmConfig, name: TaskName) -> ConfirmConfig:
    """Return the config with one task."""
    task = dataclasses.replace(config.train.task, name=name)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, task=task))


def main_command(config: ConfirmConfig) -> None:
    """Predict, measure, and print where the report is."""
    config = checked(config)
    found = []
    for name in config.tasks:
        print(f"task {name}", file=sys.stderr, flush=True)
        found.append(confirmed(on_task(config, name)))
    write_report(config.docs, config.train, config.lift, found, " --smoke" * config.smoke)
    print((config.docs / "confirm.json").read_text(), end="")
    print(f"report: {config.docs / 'confirm.md'}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((ConfirmConfig, main_command), argv, "python -m llm.confirm")


if __name__ == "__main__":
    sys.exit(main())
