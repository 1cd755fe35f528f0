"""Sweep replay designs on a problem and set the predicted design beside the best measured one.

`python -m sim.sweep` runs every (staleness horizon x, replay ratio y, step size, seed) of a grid,
the on-policy run at smaller batches, and the design that the theory predicts for each cost ratio,
as lanes of one program, compiled once a process. Results go to ``<results>/<id>/``; a run that was
interrupted, even by kill -9, goes on where it stopped when the same command is given again.
"""

import contextlib
import dataclasses
import functools
import json
import platform
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from sim import report, run_folder
from sim.designs import Design, Plan, planned
from sim.engines import scattered
from sim.lanes import WIDTH, Finished, Runner, allocation_for, compiled_runner, run_lanes
from sim.problems import Problem
from sim.settings import SweepConfig, built, check, config_record, digest, resolved
from sim.table import Table
from sim.train import Allocation, Lane
from theory.command import run_command
from theory.provenance import commit

VERSION = "0.1.0"
LARGE_CHUNK = 16 * WIDTH
SWEPT = ("horizons", "replay_ratios", "step_sizes", "seeds", "first_seed", "gen_train_ratios")


def lane_of(config: SweepConfig, problem: Problem, design: Design, step: float, seed: int) -> Lane:
    """Return the lane of a setting and seed; its streams depend on those two alone."""
    knobs = dataclasses.asdict(getattr(config, config.problem))
    record = [config.problem, knobs, config.num_generations, dataclasses.asdict(design), step]
    return Lane(
        batch_size=design.batch_size,
        rollouts_per_update=design.rollouts_per_update,
        buffer_size=design.buffer_size,
        step_size=step,
        replace=design.draw == "with",
        growing=design.start == "growing",
        target=config.target * problem.initial_loss,
        max_updates=config.max_updates,
        seed=seed,
        setting=zlib.crc32(json.dumps(record, sort_keys=True).encode()),
    )


@functools.cache
def provenance() -> dict[str, str]:
    """Return the versions and the commit that rows are stamped with."""
    return {
        "version": VERSION,
        "commit": commit(Path(__file__).parent),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def row_id(design: Design, step: float, seed: int) -> str:
    """Return the id of a row, unique within a sweep and readable."""
    return (
        f"B{design.batch_size}-R{design.rollouts_per_update}-N{design.buffer_size}"
        f"-{design.draw}-{design.start}-lr{step:g}-s{seed}"
    )


def jobs(config: SweepConfig, plan: Plan) -> Iterator[tuple[Design, float, int]]:
    """Yield every (design, step size, seed), the small step sizes, which take longest, first."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    for step in sorted(config.step_sizes):
        for design in plan.designs:
            for seed in seeds:
                yield design, step, seed


def table_row(config: SweepConfig, design: Design, step: float, seed: int) -> dict[str, object]:
    """Return the part of a row that is known before the run: id, config, versions, commit."""
    record = config_record(config)
    knobs = dataclasses.asdict(getattr(config, config.problem))
    del record[config.problem]
    row: dict[str, object] = {"id": row_id(design, step, seed), **record}
    row |= {f"{config.problem}_{name}": value for name, value in knobs.items()}
    for name in SWEPT:
        del row[name]
    row |= dataclasses.asdict(design)
    row |= {
        "replay_ratio": design.replay_ratio,
        "staleness_horizon": design.staleness_horizon,
        "step_size": step,
        "seed": seed,
    }
    return row | provenance()


def finished_row(config: SweepConfig, job: tuple, end: Finished) -> dict[str, object]:
    """Return the whole row of a lane that ended."""
    row = table_row(config, *job)
    row |= {"status": end.status, "updates": end.updates, "gap": end.loss}
    return row | {"updates_to_target": end.updates if end.status == "reached" else ""}


def opened(config: SweepConfig) -> Path:
    """Return the folder of a sweep, new or that of the same config."""
    record = config_record(config)
    return run_folder.opened(
        config.results, config.id, f"{config.problem}-{digest(record)}", record
    )


class Chunk(NamedTuple):
    """Lanes of a sweep that one process runs, and their places in the sweep."""

    config: SweepConfig
    allocation: Allocation
    places: range
    lanes: Sequence[Lane]


def chunked(config: SweepConfig, lanes: Sequence[Lane], allocation: Allocation) -> list[Chunk]:
    """Return the lanes dealt out like cards, so that all chunks take about the same time.

    A chunk ends with lanes still running beside places left empty. So there is one chunk a process,
    and up to four, to even out processes of different speed, only while they stay that large.
    """
    rounds = min(4, max(1, len(lanes) // (config.processes * LARGE_CHUNK)))
    count = min(len(lanes), rounds * config.processes)
    deals = [range(first, len(lanes), count) for first in range(count)]
    return [Chunk(config, allocation, deal, [lanes[i] for i in deal]) for deal in deals]


@functools.cache
def program(config: SweepConfig, allocation: Allocation) -> tuple[Problem, Runner]:
    """Return a sweep's problem and compiled block, made once a process."""
    problem = built(config)
    return problem, compiled_runner(problem, allocation)


def chunk_ends(chunk: Chunk) -> Iterator[list[Finished]]:
    """Yield the ends of a chunk's lanes as they come, by their place in the sweep."""
    problem, runner = program(chunk.config, chunk.allocation)
    for ended in run_lanes(problem, chunk.lanes, chunk.allocation, workers=1, runner=runner):
        yield [end._replace(index=chunk.places[end.index]) for end in ended]


def lane_ends(
    config: SweepConfig, problem: Problem, lanes: Sequence[Lane], allocation: Allocation
) -> Iterator[list[Finished]]:
    """Yield the ends of all lanes as they come, from this process or from those asked for."""
    if config.engine == "local" and config.processes == 1:
        yield from run_lanes(problem, lanes, allocation)
        return
    scattering = scattered(
        chunk_ends,
        chunked(config, lanes, allocation),
        processes=config.processes,
        engine=config.engine,
        ray_address=config.ray_address,
    )
    with contextlib.closing(scattering):
        for _, ended in scattering:
            yield ended


def run_sweep(config: SweepConfig, folder: Path, plan: Plan, problem: Problem) -> None:
    """Run the jobs whose rows are missing, writing each row as its lane ends."""
    from tqdm import tqdm

    todo = list(jobs(config, plan))
    order = [row_id(*job) for job in todo]
    columns = [*table_row(config, *todo[0]), "status", "updates_to_target", "updates", "gap"]
    with Table(folder / "table.csv", columns) as table:
        done = {row["id"] for row in table.rows}
        todo = [job for job, name in zip(todo, order, strict=True) if name not in done]
        lanes = [lane_of(config, problem, *job) for job in todo]
        progress = tqdm(total=len(order), initial=len(done), unit="run", desc=folder.name)
        if lanes:
            everything = [lane_of(config, problem, d, 1.0, 0) for d in plan.designs]
            allocation = allocation_for(everything, config.num_generations)
            with progress:
                for ended in lane_ends(config, problem, lanes, allocation):
                    table.append(finished_row(config, todo[end.index], end) for end in ended)
                    progress.update(len(ended))
        table.complete(order)


def main_command(config: SweepConfig) -> None:
    """Run or resume a sweep and print its report."""
    config = resolved(config)
    check(config)
    problem = built(config)
    plan = planned(config)
    folder = opened(config)
    run_sweep(config, folder, plan, problem)
    found = report.measurements(config, plan, folder / "table.csv")
    summary = report.summarise(config, plan, found)
    report.save(summary, config, plan, found, folder)
    print(report.text(summary, config, plan))
    print(f"results: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((SweepConfig, main_command), argv, "python -m sim.sweep")


if __name__ == "__main__":
    sys.exit(main())
