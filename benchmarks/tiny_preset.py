"""Does the tiny preset learn, and how long does it take, on-policy and with replay?

Runs the README's two commands one after the other, as a user would, on an otherwise idle machine,
and reads their logs: minutes from the start of the command (warm start included, not cached) to
the first test with pass@1 up by LIFT, and pass@1 at the end (mean of the last 5 tests).

    python benchmarks/tiny_preset.py          prints both
    python benchmarks/tiny_preset.py --save   and saves them beside this file and in docs/llm.json
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from llm.compare_report import save_numbers
from llm.run_folder import read_log

LIFT, LAST = 0.35, 5
RUNS = {"on-policy": (), "every rollout twice": ("--rollouts-per-update", "32")}


@dataclass(frozen=True)
class Config:
    """Train the tiny preset on-policy and with replay."""

    seeds: int = 1
    """Seeds of each, >= 1."""
    save: bool = False
    """Write the JSON beside this file."""


def trained(flags: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Return minutes to the lift (None if never), minutes in all, and pass@1 along the way."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llm.train", "--preset", "tiny", "--seed", str(seed)]
        command += ["--id", "run", "--results", folder, *flags]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - start
        rows = read_log(Path(folder) / "run" / "log.jsonl")
    spent = np.cumsum([sum(row.get("seconds", {}).values()) for row in rows])
    before = whole - spent[-1]
    tests = [(row, before + at) for row, at in zip(rows, spent, strict=True) if "pass1" in row]
    scores = [row["pass1"] for row, _ in tests]
    up = [at / 60 for row, at in tests if row["pass1"] >= scores[0] + LIFT]
    return {
        "seed": seed,
        "minutes_to_lift": round(up[0], 2) if up else None,
        "minutes": round(whole / 60, 2),
        "start_pass1": scores[0],
        "best_pass1": max(scores),
        "final_pass1": round(float(np.mean(scores[-LAST:])), 4),
        "updates": [row["update"] for row, _ in tests],
        "pass1": scores,
    }


def main(config: Config) -> None:
    """Train, print, save."""
    found = {}
    for name, flags in RUNS.items():
        found[name] = [trained(flags, seed) for seed in range(config.seeds)]
        for one in found[name]:
            shown = {key: value for key, value in one.items() if key not in ("updates", "pass1")}
            print(name, json.dumps(shown), flush=True)
    if config.save:
        record = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
            "lift": LIFT,
            "runs": found,
        }
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        every = [one for some in found.values() for one in some]
        minutes = [one["minutes_to_lift"] for one in every]
        numbers = {
            "learns_minutes": None if None in minutes else max(minutes),
            "final_pass1": min(one["final_pass1"] for one in every),
        }
        save_numbers(Path(__file__).parents[1] / "docs", numbers)


if __name__ == "__main__":
    main(tyro.cli(Config))
