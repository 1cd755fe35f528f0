"""What limits the finite-memory law: its pilot, a missing factor, or noise shared by an update?

Judges a finished run of `python -m sim.validate` again, step sizes tuned, batch fixed, with the law
as it is and with changes to it that were tried:

    as it is          finite_memory
    long pilot        finite_memory given the pricing seeds in the pilot's place: a ceiling
    replay factor     U = g U_L8 for all replay designs, log g with prior spread 0.2
    shared noise      a share of the noise is common to the rollouts of one update, fitted

Then, environment by environment, the error of log U, replay over on-policy, of the law as it is.

    python -m benchmarks.law_variants results/validate-judgement-a0b04825f2
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import theory.calibrate.memory_fit as memory
from sim.designs import Design
from sim.table import read_rows
from sim.validate import row_of
from sim.validation import judge
from sim.validation.environment import from_record
from sim.validation.measure import Runs, Seeds
from sim.validation.predictors import Pilot, arrays, finite_memory
from sim.validation.score import Measured
from theory.noise import effective_variance
from theory.sampling import ReplayDesign, replay_design
from theory.staleness import OffsetPowerLaw

FACTOR_SPREAD = 0.2
SHARED = (np.log(0.003), 1.5)


def runs_of(folder: Path) -> list[Runs]:
    record = json.loads((folder / "config.json").read_text())
    seeds = Seeds(**record["seeds"])
    found = {one.id: Runs(one, seeds) for one in map(from_record, record["environments"])}
    for row in read_rows(folder / "table.csv"):
        found[row["environment"]].add(row_of(row))
    return list(found.values())


def noise(design: ReplayDesign, step: np.ndarray, growth: float, shared: float) -> np.ndarray:
    """Return V_eff where a share of a rollout's noise is common to all of its update."""
    profile = OffsetPowerLaw(1.0, growth, 0.5)
    own = np.asarray(effective_variance(design, step, profile))
    horizon = np.ceil(design.buffer_size / design.rollouts_per_update).astype(int)
    blocks = replay_design(horizon, np.ones_like(horizon), horizon)
    return (1 - shared) * own + shared * np.asarray(effective_variance(blocks, step, profile))


def variant(with_factor: bool, with_shared: bool):
    """Return finite_memory with one constant more, or two."""

    def predictor(pilot: Pilot, designs: Sequence[Design]) -> dict[Design, float]:
        if pilot.protocol != "tuned":
            return finite_memory(pilot, designs)
        seen = list(pilot.runs)
        known, place = arrays(seen), seen.index(pilot.reference)
        logs, spread = memory._log_means(known, [pilot.runs[one].updates for one in seen])
        batch = float(known.batch_size[place])

        def law(constants: np.ndarray, design: ReplayDesign, updates: np.ndarray) -> np.ndarray:
            start, beta, lifetimes, growth, shared = np.exp(constants[:5])
            shared = min(shared, 0.99) if with_shared else 0.0
            step = -np.expm1(-lifetimes / updates)
            relative = noise(design, step, growth, shared) / (shared + (1 - shared) / batch)
            again = (design.rollouts_per_update < design.batch_size) | (
                design.buffer_size > design.rollouts_per_update
            )
            factor = np.where(again & with_factor, constants[5], 0.0)
            return np.log(start) + np.log1p(beta * relative) - np.log1p(beta) + factor

        priors = (memory.NOISE_TO_BATCH, memory.LIFETIMES, memory.STALE_NOISE, SHARED)
        centre = np.array([logs[place], *(one[0] for one in priors), 0.0])
        width = np.array([3.0, *(one[1] for one in priors), FACTOR_SPREAD])
        starts = [
            centre + np.array([0, beta, 0, 0, more, 0])
            for beta in (-2.0, 0.0, 2.0)
            for more in ((0.0, 2.5) if with_shared else (0.0,))
        ]
        constants, _, _ = memory._posterior_mode(
            lambda some: law(some, known, np.exp(logs)), logs, spread, centre, width, starts
        )
        wanted = arrays(designs)
        updates = np.full(len(designs), 1e6)
        for _ in range(200):
            updates = np.exp(law(constants, wanted, updates))
        return dict(zip(designs, updates.tolist(), strict=True))

    return predictor


def main(folder: str) -> None:
    """Judge the run's environments with each variant and print the scores."""
    laws = {
        "as it is": finite_memory,
        "replay factor": variant(True, False),
        "shared noise": variant(False, True),
    }
    found = runs_of(Path(folder))
    verdicts = shown(found, laws)
    for one in verdicts:
        if not one.trapped:
            error = errors(one, "as it is")
            rms = np.sqrt(np.mean(error**2))
            print(f"{one.environment.id:24s} mean {error.mean():+.2f}, root mean square {rms:.2f}")

    def long_pilot(runs: Runs, design: Design) -> Measured:
        return judge.measured_at(runs, "price", design, "tuned")

    judge.piloted = long_pilot
    shown(found, {"long pilot": finite_memory})


def shown(found: Sequence[Runs], laws: dict) -> list[judge.Verdicts]:
    judge.PREDICTORS.clear()
    judge.PREDICTORS.update(laws)
    verdicts = [judge.judged(runs) for runs in found]
    for name in laws:
        for group in judge.GROUPS:
            scores = judge.scored(verdicts, "tuned", "fixed_batch", group, name)
            print(
                f"{name:14s} {group:6s}",
                *(
                    f"{what} {one.value:.1%} [{one.low:.1%}, {one.high:.1%}]"
                    for what, one in (
                        ("p90", scores.p90_regret),
                        ("verdicts", scores.verdict_accuracy),
                    )
                ),
                flush=True,
            )
    return verdicts


def errors(one: judge.Verdicts, name: str) -> np.ndarray:
    """Return log predicted over measured updates, both over on-policy, of the replay designs."""
    arena, predicted = one.arenas["tuned"], one.predicted["tuned", name]
    ratios = [
        predicted[design]
        / predicted[arena.reference]
        / (arena.runs[design].mean / arena.runs[arena.reference].mean)
        for design in arena.replay
    ]
    return np.log(ratios)


if __name__ == "__main__":
    main(*sys.argv[1:])
