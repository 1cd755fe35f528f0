"""How many trials does a study need? Beside an exhaustive grid, random search, and TPE unaided.

On simulator environments of the development half, at mu 5.28: an exhaustive grid over batch, R, N
and step size is run, its best ten cells again on many more seeds, and the best of those priced on
seeds of its own. Then `llm.study` searches the same ranges with a tenth of the grid's trials, many
times over with different sampler and environment seeds. After every trial the best design so far
is priced on many fresh seeds: what counts is what it truly costs, not what a lucky trial said.

    random       random search
    TPE          Optuna's TPE, knowing nothing
    prediction   TPE with the theory's prediction, on-policy and the paper's setting tried first

    python -m benchmarks.study_efficiency          prints the table
    python -m benchmarks.study_efficiency --save   and saves it beside this file
"""

import dataclasses
import functools
import json
import math
import multiprocessing
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from optuna.trial import TrialState

from llm.study import run_study
from llm.study_settings import StudyConfig
from llm.study_space import Point, SpaceConfig
from sim.lanes import Runner, compiled_runner, run_lanes
from sim.objective import prepared
from sim.train import Lane
from sim.validation.environment import Environment
from sim.validation.steps import step_size
from sim.validation.suite import suite
from theory.cost import cost_to_target, update_cost

MU, CLOSE, LONGEST, GIVEN_UP = 5.28, 0.05, 16, 4.0
METHODS: dict[str, dict[str, Any]] = {
    "random": {"sampler": "random", "no_first_guesses": True},
    "TPE": {"no_first_guesses": True},
    "prediction": {},
}
BATCH_PARTS = {"batch kept": (1,), "batch free": (1, 2, 4)}
# Seeds that no two uses share.
SCREEN, AGAIN, PRICE, STUDY = 10_000, 20_000, 30_000, 40_000


@dataclass(frozen=True)
class Config:
    """Search the simulator and count trials."""

    environments: int = 4
    """How many of those that are eligible."""
    repeats: int = 6
    """Studies of each method."""
    trial_seeds: int = 16
    """Seeds of a trial."""
    price_seeds: int = 192
    """Fresh seeds that price a design."""
    workers: int = 2
    """Processes."""
    save: bool = False
    """Write the JSON beside this file."""


def eligible() -> list[Environment]:
    """Return smooth policy problems of the development half with short runs, least noise first.

    With little noise over the batch it is a question whether replay pays.
    """
    found = [
        one
        for one in suite()
        if one.half == "development"
        and one.smooth
        and one.problem != "quadratic"
        and one.updates <= 400
    ]
    return sorted(found, key=lambda one: one.noise_to_batch)


def space_of(environment: Environment, parts: tuple[int, ...]) -> SpaceConfig:
    return SpaceConfig(
        batch_size=environment.batch_size,
        num_generations=environment.num_generations,
        batch_parts=parts,
        learning_rate=step_size(environment.step_index),
        max_staleness_horizon=float(LONGEST),
        losses=("reinforce",),
    )


def grid_of(space: SpaceConfig) -> list[Point]:
    """Return every cell: batches, R in steps of about 4/3, N in powers of two, steps of 2^(1/2)."""
    group, rate = space.num_generations, space.learning_rate
    octaves = math.log2(space.learning_rate_down * space.learning_rate_up)
    rates = [
        rate / space.learning_rate_down * 2 ** (k / 2) for k in range(math.floor(2 * octaves) + 1)
    ]
    cells = {}
    for part in space.batch_parts:
        batch = space.batch_size // part
        fresh = {round(batch / group / 2 ** (k / 2)) * group for k in range(20)}
        for new in sorted((one for one in fresh if one >= group), reverse=True):
            for times in (1, 2, 4, 8):
                if batch * times <= LONGEST * new:
                    for one in rates:
                        cells[batch, new, batch * times, one] = None
    return [
        Point(batch, new, size, one, "without", "reinforce", group)
        for batch, new, size, one in cells
    ]


def reference_cost(environment: Environment) -> float:
    """Return the cost of a reference run as the suite knows it."""
    batch = environment.batch_size
    return float(cost_to_target(environment.updates, batch, batch, batch, MU, start="growing"))


def priced(
    environment: Environment, points: Sequence[Point], first_seed: int, seeds: int
) -> np.ndarray:
    """Return the cost of each point at each seed, (points, seeds); a run given up costs as much."""
    _, problem, allocation, _ = prepared(environment.id)
    most = GIVEN_UP * reference_cost(environment)
    lanes = [
        Lane(
            batch_size=one.batch_size,
            rollouts_per_update=one.rollouts_per_update,
            buffer_size=one.buffer_size,
            step_size=one.learning_rate,
            replace=False,
            growing=True,
            target=environment.target * problem.initial_loss,
            max_updates=math.ceil(
                most / float(update_cost(one.batch_size, one.rollouts_per_update, MU))
            ),
            seed=seed,
            setting=0,
        )
        for one in points
        for seed in range(first_seed, first_seed + seeds)
    ]
    updates = np.empty(len(lanes))
    for ended in run_lanes(problem, lanes, allocation, runner=wide(environment.id)):
        for end in ended:
            updates[end.index] = (
                end.updates if end.status == "reached" else lanes[end.index].max_updates
            )
    shape = [(one.batch_size, one.rollouts_per_update, one.buffer_size) for one in points]
    table = updates.reshape(len(points), seeds)
    return np.stack(
        [
            np.asarray(cost_to_target(row, *design, MU, start="growing"))
            for row, design in zip(table, shape, strict=True)
        ]
    )


@functools.cache
def wide(environment: str) -> Runner:
    """Return the program that runs many lanes together."""
    _, problem, allocation, _ = prepared(environment)
    return compiled_runner(problem, allocation)


def best_of_grid(
    environment: Environment, grid: Sequence[Point], config: Config
) -> tuple[Point, float]:
    """Return the grid's best cell and what it truly costs."""
    first = priced(environment, grid, SCREEN, config.trial_seeds).mean(axis=1)
    ten = [grid[place] for place in np.argsort(first)[:10]]
    again = priced(environment, ten, AGAIN, config.price_seeds).mean(axis=1)
    best = ten[int(np.argmin(again))]
    return best, float(priced(environment, [best], PRICE, config.price_seeds).mean())


def incumbents(job: tuple[StudyConfig, int]) -> list[Point | None]:
    """Run a study and return the best design after each of its trials."""
    config, trials = job
    study = run_study(config, progress=False)
    best, value, found = None, math.inf, []
    for trial in study.get_trials(deepcopy=False)[:trials]:
        if trial.state is TrialState.COMPLETE and trial.value is not None and trial.value < value:
            value = trial.value
            names = [field.name for field in dataclasses.fields(Point)]
            best = Point(**{name: trial.user_attrs[name] for name in names})
        found.append(best)
    return found


def studies(
    environment: Environment, space: SpaceConfig, trials: int, config: Config, folder: str
) -> list[tuple[str, StudyConfig]]:
    """Return the method and config of every study of an environment."""
    return [
        (
            method,
            StudyConfig(
                name=f"{environment.id}-{len(space.batch_parts)}-{method}-{repeat}",
                objective="sim.objective:cost_to_target",
                option=(f"environment={environment.id}",),
                trials=trials,
                seeds=config.trial_seeds,
                first_seed=STUDY + repeat * config.trial_seeds,
                target=1.0,
                max_cost=GIVEN_UP * reference_cost(environment),
                gen_train_ratio=MU,
                noise_to_batch=environment.noise_to_batch,
                space=space,
                sampler_seed=repeat,
                pruner="none",
                no_artifacts=True,
                results=Path(folder),
                **METHODS[method],
            ),
        )
        for method in METHODS
        for repeat in range(config.repeats)
    ]


def regrets(
    environment: Environment, found: Sequence[Sequence[Point | None]], best: float, config: Config
) -> np.ndarray:
    """Return the true cost of the best design after each trial over the grid's, less 1."""
    points = list(dict.fromkeys(one for trace in found for one in trace if one is not None))
    costs = priced(environment, points, PRICE, config.price_seeds).mean(axis=1)
    of = dict(zip(points, costs, strict=True))
    return np.array(
        [[np.inf if one is None else of[one] / best - 1 for one in trace] for trace in found]
    )


def summary(regret: np.ndarray) -> dict[str, Any]:
    """Return what is told of the repeats, (repeats, trials)."""
    # Good for good: a lucky trial may yet take the place of a better design.
    worst_after = np.maximum.accumulate(regret[:, ::-1], axis=1)[:, ::-1]
    good = worst_after <= CLOSE
    needed = np.where(good.any(axis=1), good.argmax(axis=1) + 1, np.inf)
    median = float(np.median(needed))
    low, middle, high = np.percentile(regret[:, -1], [25, 50, 75])
    return {
        "close_at_end": float(np.mean(regret[:, -1] <= CLOSE)),
        "trials_to_close": median if math.isfinite(median) else None,
        "regret_at_end": [round(float(one), 4) for one in (low, middle, high)],
        "median_regret": [
            round(float(one), 4) if np.isfinite(one) else None for one in np.median(regret, axis=0)
        ],
    }


def row_of(
    environment: Environment, name: str, config: Config, pool: ProcessPoolExecutor
) -> dict[str, Any]:
    """Run grid and studies on one environment."""
    space = space_of(environment, BATCH_PARTS[name])
    grid = grid_of(space)
    trials = len(grid) // 10
    best, cost = best_of_grid(environment, grid, config)
    with tempfile.TemporaryDirectory() as folder:
        jobs = studies(environment, space, trials, config, folder)
        found = list(pool.map(incumbents, [(job, trials) for _, job in jobs]))
    regret = regrets(environment, found, cost, config)
    methods = np.array([method for method, _ in jobs])
    start = f"{environment.batch_size}, {environment.batch_size}, {environment.batch_size}"
    return {
        "environment": environment.id,
        "space": name,
        "noise_to_batch": environment.noise_to_batch,
        "cells": len(grid),
        "trials": trials,
        "reference": start,
        "grid_best": best.record(),
        "grid_best_saving": round(1 - cost / true_reference(environment, grid, config), 4),
        "methods": {method: summary(regret[methods == method]) for method in METHODS},
    }


def true_reference(environment: Environment, grid: Iterable[Point], config: Config) -> float:
    """Return what on-policy training at the reference batch costs at its best step size."""
    size = environment.batch_size
    cells = [
        one for one in grid if one.batch_size == one.rollouts_per_update == one.buffer_size == size
    ]
    again = priced(environment, cells, AGAIN, config.price_seeds).mean(axis=1)
    best = cells[int(np.argmin(again))]
    return float(priced(environment, [best], PRICE, config.price_seeds).mean())


def shown(row: dict[str, Any]) -> str:
    """Return a row as text."""
    best = row["grid_best"]
    lines = [
        f"{row['environment']}, {row['space']}: {row['cells']} cells, {row['trials']} trials; grid "
        f"B {best['batch_size']}, R {best['rollouts_per_update']}, N {best['buffer_size']}, saves "
        f"{100 * row['grid_best_saving']:.0f} %"
    ]
    for method, one in row["methods"].items():
        needed = one["trials_to_close"] or "more"
        low, middle, high = (100 * part for part in one["regret_at_end"])
        lines.append(
            f"  {method:10s} within 5 %: {100 * one['close_at_end']:3.0f} % of studies, median "
            f"after {needed} trials; regret {middle:.1f} % [{low:.1f}, {high:.1f}]"
        )
    return "\n".join(lines)


def main(config: Config) -> None:
    """Search, count, print, save."""
    rows = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.workers, mp_context=context) as pool:
        for name in BATCH_PARTS:
            for environment in eligible()[: config.environments]:
                rows.append(row_of(environment, name, config, pool))
                print(shown(rows[-1]), flush=True)
    if config.save:
        record = {**dataclasses.asdict(config), "gen_train_ratio": MU, "rows": rows}
        del record["save"], record["workers"]
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Config))
