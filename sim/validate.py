"""Does the theory predict? Pilot, predict, sweep and price every environment of the suite.

`python -m sim.validate` takes the judgement half: on each environment it runs a pilot, gives it to
the predictors, measures every design of a grid, and scores what each predictor would have chosen.
The page docs/validation.md is written by it, with --page. A run that was interrupted, even by
kill -9, goes on where it stopped when the same command is given again.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sim.engines import EngineName, check_engine, scattered
from sim.run_folder import opened
from sim.settings import digest
from sim.sweep import provenance
from sim.table import Table
from sim.validation.environment import Environment, from_record
from sim.validation.guards import check_run
from sim.validation.measure import Row, Runs, Seeds, measured
from sim.validation.page import write_page
from sim.validation.programs import keep_programs
from sim.validation.steps import step_size
from sim.validation.suite import suite
from theory.command import run_command, with_preset


@dataclass(frozen=True)
class ValidateConfig:
    """Set predictors against measured designs on the environment suite."""

    half: Literal["judgement", "development"] = "judgement"
    """Which half of the suite; predictors may be tuned on development only."""
    families: tuple[str, ...] = ()
    """Families to run; none given: all."""
    per_family: int = 0
    """At most so many environments a family, shortest runs first; 0: all."""
    pilot_seeds: int = 4
    """Seeds of every pilot setting, >= 2."""
    search_seeds: int = 24
    """Seeds that choose the step size of every design, >= 2."""
    price_seeds: int = 48
    """Fresh seeds that price every design, even, >= 4."""
    processes: int = 2
    """Environments that run at once, >= 1."""
    engine: EngineName = "local"
    """Run on this machine, or as tasks of a Ray cluster."""
    ray_address: str = ""
    """Address of a running Ray cluster; empty: start one here."""
    smoke: bool = False
    """One short environment with few seeds, in under a minute."""
    page: Path | None = None
    """Folder that validation.md, validation.json and validation.png are also written to."""
    results: Path = Path("results")
    """Folder that holds one folder a run."""
    id: str = ""
    """Name of the run's folder; empty: the half and a hash of the config."""

    @property
    def seeds(self) -> Seeds:
        """Seeds of each phase."""
        return Seeds(pilot=self.pilot_seeds, search=self.search_seeds, price=self.price_seeds)


SMOKE = {
    "half": "development",
    "families": ("bandit_kl",),
    "per_family": 1,
    "pilot_seeds": 2,
    "search_seeds": 8,
    "price_seeds": 28,
}


class Part(NamedTuple):
    """One environment for a worker: its record, the seeds, finished rows, kept programs."""

    environment: dict[str, Any]
    seeds: Seeds
    rows: tuple[Row, ...]
    programs: str


def resolved(config: ValidateConfig) -> ValidateConfig:
    """Return the config with the smoke preset in place of defaults."""
    return with_preset(config, SMOKE) if config.smoke else config


def check(config: ValidateConfig) -> None:
    """Raise ValueError, naming value and range, for what cannot be run."""
    for name, least in [("pilot_seeds", 2), ("search_seeds", 2), ("price_seeds", 4)]:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {getattr(config, name)}")
    if config.price_seeds % 2:
        raise ValueError(f"price_seeds must be even (halves), got {config.price_seeds}")
    if max(config.pilot_seeds, config.search_seeds, config.price_seeds) > 1000:
        raise ValueError("seeds of a phase must be <= 1000")
    check_engine(config.processes, config.engine, config.ray_address)
    if config.per_family < 0:
        raise ValueError(f"per_family must be an integer >= 0, got {config.per_family}")


def chosen_environments(config: ValidateConfig) -> tuple[Environment, ...]:
    """Return the environments of a run, long ones first so that the last do not run alone."""
    known = suite()
    families = dict.fromkeys(one.family for one in known)
    for name in config.families:
        if name not in families:
            raise ValueError(f"families must be among {', '.join(families)}, got {name}")
    wanted = config.families or tuple(families)
    found: list[Environment] = []
    for family in wanted:
        members = [one for one in known if (one.half, one.family) == (config.half, family)]
        members.sort(key=lambda one: one.updates)
        found += members[: config.per_family or None]
    return tuple(sorted(found, key=lambda one: -one.updates))


def config_record(config: ValidateConfig, environments: tuple[Environment, ...]) -> dict[str, Any]:
    """Return what defines the rows: seeds and environments."""
    return {
        "half": config.half,
        "seeds": asdict(config.seeds),
        "environments": [one.record() for one in environments],
    }


COLUMNS = ("id", "environment", *Row._fields, "step_size", "version", "commit")


def table_row(environment: str, row: Row) -> dict[str, object]:
    """Return a row as the table holds it."""
    stamp = provenance()
    name = f"{environment}-{row.phase}-B{row.batch_size}-R{row.rollouts_per_update}"
    return {
        "id": f"{name}-N{row.buffer_size}-k{row.step_index}-s{row.seed}",
        "environment": environment,
        **row._asdict(),
        "step_size": step_size(row.step_index),
        "version": stamp["version"],
        "commit": stamp["commit"],
    }


def row_of(text: dict[str, str]) -> Row:
    """Return a row read back from the table."""
    kinds = Row.__annotations__
    return Row(**{name: kinds[name](text[name]) for name in Row._fields})


def work(part: Part) -> Iterator[list[Row]]:
    """Run what is missing of one environment."""
    keep_programs(Path(part.programs))
    runs = Runs(from_record(part.environment), part.seeds)
    for row in part.rows:
        runs.add(row)
    yield from measured(runs)
    yield []  # done: the progress bar counts environments


def run_all(
    config: ValidateConfig, folder: Path, environments: tuple[Environment, ...]
) -> dict[str, Runs]:
    """Run or finish every environment, writing each row as it ends; return the rows."""
    from tqdm import tqdm

    found = {one.id: Runs(one, config.seeds) for one in environments}
    with Table(folder / "table.csv", COLUMNS) as table:
        for text in table.rows:
            found[text["environment"]].add(row_of(text))
        parts = [
            Part(one.record(), config.seeds, found[one.id].all_rows(), str(folder))
            for one in environments
        ]
        stream = scattered(
            work,
            parts,
            processes=config.processes,
            engine=config.engine,
            ray_address=config.ray_address,
        )
        bar = tqdm(total=len(environments), unit="environment", desc=folder.name, mininterval=1)
        count = len(table.rows)
        with contextlib.closing(stream), bar as progress:
            for place, rows in stream:
                name = environments[place].id
                table.append(table_row(name, row) for row in rows)
                for row in rows:
                    found[name].add(row)
                count += len(rows)
                progress.update(0 if rows else 1)
                progress.set_postfix(runs=count, refresh=False)
        order = [
            table_row(name, row)["id"] for name, runs in found.items() for row in runs.all_rows()
        ]
        table.complete([str(one) for one in order])
    return found


def validate(config: ValidateConfig) -> None:
    """Run or resume a validation, check it, and write its page."""
    config = resolved(config)
    check(config)
    environments = chosen_environments(config)
    record = config_record(config, environments)
    folder = opened(config.results, config.id, f"validate-{config.half}-{digest(record)}", record)
    found = run_all(config, folder, environments)
    check_run(list(found.values()), config.half)
    folders = [folder] if config.page is None else [folder, config.page]
    print(write_page(list(found.values()), config.half, folders))
    print(f"results: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((ValidateConfig, validate), argv, "python -m sim.validate")


if __name__ == "__main__":
    sys.exit(main())
