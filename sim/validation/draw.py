"""Draw the environment suite: screen candidates in their order, keep those the quotas want.

    python -m sim.validation.draw --results FOLDER

Outcomes are kept in FOLDER, one file a family, so that a run can be stopped and go on; families
may be screened by several processes at once. Once all are screened, suite.json is written.
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.validation.environment import Environment, from_record
from sim.validation.programs import keep_programs
from sim.validation.suite import FAMILIES, SUITE, confirmed, drawn, screened, stratum
from theory.command import run_command
from theory.run_folder import replace_text

# Fresh seeds may need fewer updates than the screening ones: a margin over LEAST_UPDATES.
SAFE_UPDATES = 230


@dataclass(frozen=True)
class DrawConfig:
    """Screen candidates of the environment suite and write the accepted ones."""

    results: Path = Path("results/suite")
    """Folder of the outcomes, one file a family."""
    families: tuple[str, ...] = tuple(FAMILIES)
    """Families to screen now."""


def outcome(family: str, number: int) -> dict[str, Any]:
    """Return what became of a candidate: an environment's record, or why it was refused."""
    try:
        found = screened(family, drawn(family, number))
    except ValueError as refused:
        found = f"cannot be built: {refused}"
    entry: dict[str, Any] = {"family": family, "number": number}
    if isinstance(found, str):
        return entry | {"refused": found}
    if stratum(found.noise_to_batch) is None:
        return entry | {"refused": f"beta = {found.noise_to_batch:g}"}
    return entry | {"environment": found.record()}


def outcomes(path: Path) -> list[dict[str, Any]]:
    """Return the outcomes in a file, a torn last line left out."""
    if not path.exists():
        return []
    whole = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in whole]


def repaired(path: Path) -> list[dict[str, Any]]:
    """Return the outcomes in a file, and cut a torn last line off so that it can be added to."""
    known = outcomes(path)
    replace_text(path, "".join(json.dumps(entry) + "\n" for entry in known))
    return known


def screen(family: str, path: Path) -> None:
    """Screen the candidates of a family that have no outcome yet."""
    from tqdm import tqdm

    known = repaired(path)
    with open(path, "a") as file:
        total = FAMILIES[family].candidates
        todo = range(len(known), total)
        for number in tqdm(todo, desc=family, initial=len(known), total=total):
            file.write(json.dumps(outcome(family, number)) + "\n")
            file.flush()


def confirm(family: str, screened: Path, path: Path) -> None:
    """Run the environments of a family that are not confirmed or refused yet on more seeds."""
    from tqdm import tqdm

    done = {entry["id"] for entry in repaired(path)}
    found = [from_record(one["environment"]) for one in outcomes(screened) if "environment" in one]
    todo = [one for one in found if one.id not in done]
    with open(path, "a") as file:
        for environment in tqdm(todo, desc=f"{family}, confirmed"):
            file.write(json.dumps(confirmed(environment)) + "\n")
            file.flush()


def accepted(
    entries: list[dict[str, Any]], confirmations: dict[str, dict[str, Any]]
) -> tuple[list[Environment], Counter[str]]:
    """Return the environments the quotas take, in the order drawn, and how many were left."""
    taken: list[Environment] = []
    full: Counter[tuple[str, int | None]] = Counter()
    left: Counter[str] = Counter()
    for entry in entries:
        if "refused" in entry:
            left["refused"] += 1
            continue
        environment = from_record(entry["environment"])
        more = confirmations[environment.id]
        if more["trapped"]:
            left["trapped"] += 1
            continue
        if min(environment.updates, more["updates"]) < SAFE_UPDATES:
            left["too close to the least updates"] += 1
            continue
        place = environment.family, stratum(environment.noise_to_batch)
        if full[place] < FAMILIES[environment.family].quota:
            full[place] += 1
            taken.append(environment)
        else:
            left["quota full"] += 1
    return taken, left


def draw(config: DrawConfig) -> None:
    """Screen what is asked for; write suite.json once every family is screened."""
    if unknown := [name for name in config.families if name not in FAMILIES]:
        raise ValueError(f"families must be among {', '.join(FAMILIES)}, got {unknown[0]}")
    config.results.mkdir(parents=True, exist_ok=True)
    keep_programs(config.results)
    files = {family: config.results / f"{family}.jsonl" for family in FAMILIES}
    extra = {family: config.results / f"{family}-confirmed.jsonl" for family in FAMILIES}
    for family in config.families:
        screen(family, files[family])
        confirm(family, files[family], extra[family])
    entries = {family: outcomes(path) for family, path in files.items()}
    if waiting := [name for name, kind in FAMILIES.items() if len(entries[name]) < kind.candidates]:
        print(f"not written yet, to be screened: {', '.join(waiting)}")
        return
    more = {entry["id"]: entry for path in extra.values() for entry in outcomes(path)}
    taken, left = accepted([entry for found in entries.values() for entry in found], more)
    record = {
        "candidates": sum(kind.candidates for kind in FAMILIES.values()),
        "left_out": dict(left),
        "environments": [{"id": one.id, "half": one.half} | one.record() for one in taken],
    }
    replace_text(SUITE, json.dumps(record, indent=1) + "\n")
    halves = Counter(environment.half for environment in taken)
    print(f"{len(taken)} environments ({dict(halves)}) in {SUITE.name}; left out: {dict(left)}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command((DrawConfig, draw), argv, "python -m sim.validation.draw")


if __name__ == "__main__":
    sys.exit(main())
