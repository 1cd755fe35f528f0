"""What is run on one environment: pilot, step-size search, and pricing on fresh seeds.

- pilot: on-policy at the reference batch and smaller ones, and a few replay designs, each at its
  best step size and at the reference run's. It is all that the predictors may see.
- search: the best step size of every design, on seeds of its own.
- price: every design at its best step size, and at the reference run's, on fresh seeds.

The reference step size is the pilot's on-policy one. Every lane depends on its setting and seed
alone and every choice on finished rows alone, so a run that is stopped and resumed, or moved to
other machines, gives the same rows.
"""

import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from sim.designs import Design, on_policy
from sim.lanes import Finished, Runner, compiled_runner, run_lanes
from sim.problems import Problem
from sim.train import Allocation, Lane
from sim.validation.environment import (
    MAX_HORIZON,
    Environment,
    replay_designs,
    smaller_batches,
)
from sim.validation.steps import Score, best_index, next_indices, step_size, typical

Phase = Literal["screen", "pilot", "search", "price"]
FIRST_SEEDS = {"screen": 0, "pilot": 1_000, "search": 2_000, "price": 3_000}
GEN_TRAIN_RATIOS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
# A run is stopped when it costs this many times the reference run at every cost ratio tested:
# at its own best step size, and at the reference run's, where many designs never arrive.
HOPELESS, HOPELESS_AS_IS = 2.0, 1.5
# On-policy runs are never hopeless: they are given up at this many times the reference's cost.
TRAPPED = 10.0
# A step size is given up when it takes this many times the best one's updates.
WORSE_STEP = 4.0
# All environments of one shape share a program, kept on disk between processes.
STEPS_PER_BLOCK = 64
# Rollouts per update, or batches, up to this size run in smaller programs.
SMALL = 16


class Job(NamedTuple):
    """One run: phase, design, step index k, seed, and the updates after which it is given up."""

    phase: Phase
    design: Design
    step_index: int
    seed: int
    cap: int


class Row(NamedTuple):
    """End of one run, as the table holds it."""

    phase: str
    batch_size: int
    rollouts_per_update: int
    buffer_size: int
    step_index: int
    seed: int
    status: str
    updates: int
    cap: int
    gap: float

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return self.status == "reached"

    @property
    def design(self) -> Design:
        """The design that was run."""
        return Design(
            self.batch_size, self.rollouts_per_update, self.buffer_size, "without", "full"
        )


@dataclass(frozen=True)
class Seeds:
    """Seeds of each phase."""

    screen: int = 4
    pilot: int = 4
    search: int = 24
    price: int = 48

    def of(self, phase: Phase) -> range:
        """Return the seeds of a phase; no two phases share one."""
        return range(FIRST_SEEDS[phase], FIRST_SEEDS[phase] + getattr(self, phase))


@dataclass
class Runs:
    """The finished rows of one environment, and the means to run more."""

    environment: Environment
    seeds: Seeds
    rows: dict[tuple[str, Design, int], dict[int, Row]] = field(default_factory=dict)
    programs: dict[Allocation, Runner] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Take in a finished row."""
        key = (row.phase, row.design, row.step_index)
        self.rows.setdefault(key, {})[row.seed] = row

    def all_rows(self) -> tuple[Row, ...]:
        """Return every finished row, in an order that does not depend on when it finished."""
        return tuple(sorted(row for rows in self.rows.values() for row in rows.values()))

    def runs_of(self, phase: Phase, design: Design, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return updates and whether the target was reached, by seed; unreached counts its cap."""
        rows = [row for _, row in sorted(self.rows[phase, design, index].items())]
        return counted_updates(rows), np.array([row.reached for row in rows])

    def scores(self, phase: Phase, design: Design) -> dict[int, Score]:
        """Return the score of every step index with all its seeds done."""
        found = {}
        for (other, one, index), rows in self.rows.items():
            if (other, one) == (phase, design) and len(rows) == len(self.seeds.of(phase)):
                found[index] = score(list(rows.values()))
        return found

    def best(self, phase: Phase, design: Design) -> int:
        """Return the step index that a finished search found."""
        return best_index(self.scores(phase, design))

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs without a row, those that may take longest first."""
        todo = [
            job
            for job in dict.fromkeys(jobs)
            if job.seed not in self.rows.get((job.phase, job.design, job.step_index), {})
        ]
        return sorted(todo, key=lambda job: (-job.cap, job.step_index))

    def run(self, jobs: Sequence[Job]) -> Iterator[list[Row]]:
        """Run the jobs without a row and yield the rows as lanes end."""
        todo = self.missing(jobs)
        if not todo:
            return
        for allocation in sorted({allocation_of(self.environment, job.design) for job in todo}):
            some = [
                job for job in todo if allocation_of(self.environment, job.design) == allocation
            ]
            lanes = [lane_of(self.environment, self.problem, job) for job in some]
            runner = self.program(allocation)
            for ended in run_lanes(self.problem, lanes, allocation, workers=1, runner=runner):
                rows = [finished(some[end.index], end) for end in ended]
                for row in rows:
                    self.add(row)
                yield rows

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem, built once."""
        return self.environment.built()

    def program(self, allocation: Allocation) -> Runner:
        """Return the program for an allocation, compiled once."""
        if allocation not in self.programs:
            self.programs[allocation] = compiled_runner(self.problem, allocation)
        return self.programs[allocation]


def counted_updates(rows: Sequence[Row]) -> np.ndarray:
    """Return the updates of runs; one that missed the target, even by diverging, counts its cap."""
    return np.array([row.updates if row.reached else row.cap for row in rows])


def score(rows: Sequence[Row]) -> Score:
    """Return the score of a step size by all its runs."""
    kept = typical(counted_updates(rows))
    missed = max(sum(not row.reached for row in rows) - (len(rows) - len(kept)), 0)
    gaps = [row.gap if math.isfinite(row.gap) else math.inf for row in rows]
    return Score(missed, float(kept.mean()), math.fsum(gaps) if missed else 0.0)


def finished(job: Job, end: Finished) -> Row:
    """Return the row of a job that ended."""
    design = job.design
    return Row(
        job.phase,
        design.batch_size,
        design.rollouts_per_update,
        design.buffer_size,
        job.step_index,
        job.seed,
        end.status,
        end.updates,
        job.cap,
        end.loss,
    )


def allocation_of(environment: Environment, design: Design) -> Allocation:
    """Return the sizes of the program a design runs in: of three, the smallest that holds it."""
    size = environment.batch_size
    width = SMALL if design.rollouts_per_update <= SMALL else size
    if design.batch_size <= SMALL:
        return Allocation(width, width, 1, STEPS_PER_BLOCK)
    return Allocation(size, width, MAX_HORIZON, STEPS_PER_BLOCK)


def lane_of(environment: Environment, problem: Problem, job: Job) -> Lane:
    """Return the lane of a job; its streams depend on environment, design, step and seed alone."""
    design = job.design
    seed, setting = stream_of(environment, job)
    return Lane(
        batch_size=design.batch_size,
        rollouts_per_update=design.rollouts_per_update,
        buffer_size=design.buffer_size,
        step_size=step_size(job.step_index),
        replace=False,
        growing=False,
        target=environment.target * problem.initial_loss,
        max_updates=job.cap,
        seed=seed,
        setting=setting,
    )


def stream_of(environment: Environment, run: Job | Row) -> tuple[int, int]:
    """Return the seed and setting number that fix the random streams of a run."""
    record = [environment.id, dataclasses.asdict(run.design), run.step_index]
    return run.seed, zlib.crc32(json.dumps(record, sort_keys=True).encode())


def give_up(environment: Environment, design: Design, times: float = HOPELESS) -> int:
    """Return the updates at which a design costs so many times the reference at every mu."""
    size, new = environment.batch_size, design.rollouts_per_update
    most = max((1 + mu) * size / (design.batch_size + mu * new) for mu in GEN_TRAIN_RATIOS)
    return math.ceil(times * most * environment.updates)


def pilot_designs(environment: Environment) -> tuple[Design, ...]:
    """Return what the pilot runs: on-policy at four batches, and three replay designs."""
    size = environment.batch_size
    allowed = replay_designs(environment)
    wanted = [(2, 1), (8, 1), (2, 4)]
    replay = [Design(size, size // y, size * n, "without", "full") for y, n in wanted]
    return (
        on_policy(size),
        *smaller_batches(environment),
        *(design for design in replay if design in allowed),
    )


def all_designs(environment: Environment) -> tuple[Design, ...]:
    """Return every design measured, the reference first."""
    return (
        on_policy(environment.batch_size),
        *smaller_batches(environment),
        *replay_designs(environment),
    )


def search(
    runs: Runs,
    phase: Phase,
    designs: Sequence[Design],
    start: int,
    longest: Callable[[Environment, Design], int] = give_up,
    alongside: Sequence[Job] = (),
) -> Iterator[list[Row]]:
    """Search the best step size of several designs at once.

    Args:
        runs: what is known, and the means to run more.
        phase: whose seeds to use.
        designs: designs to search.
        start: step index that suits the reference run; replay is started lower.
        longest: updates after which a run of a design is given up.
        alongside: other jobs to run with the first ones, so that lanes do not stand idle.
    """
    size = runs.environment.batch_size
    others = list(alongside)
    while True:
        jobs = []
        for design in designs:
            scores = runs.scores(phase, design)
            cap = longest(runs.environment, design)
            if scores and (best := min(scores.values())).missed == 0:
                cap = min(cap, math.ceil(WORSE_STEP * best.updates))
            first = start - round(math.log2(size / design.rollouts_per_update))
            jobs += [
                Job(phase, design, index, seed, cap)
                for index in next_indices(scores, [first])
                for seed in runs.seeds.of(phase)
            ]
        if not jobs + others:
            return
        yield from runs.run(jobs + others)
        others = []


def at_step(runs: Runs, phase: Phase, design: Design, index: int, times: float) -> list[Job]:
    """Return the jobs of a design at one step index, given up at so many times the cost."""
    cap = give_up(runs.environment, design, times)
    return [Job(phase, design, index, seed, cap) for seed in runs.seeds.of(phase)]


def patience(design: Design) -> float:
    """Return how many times the reference's cost a design at its best step size may take."""
    return TRAPPED if design.buffer_size == design.rollouts_per_update else HOPELESS


def measured(runs: Runs) -> Iterator[list[Row]]:
    """Run pilot, search and pricing of one environment, yielding rows as they end."""
    environment = runs.environment
    reference = on_policy(environment.batch_size)
    pilots, designs = pilot_designs(environment), all_designs(environment)
    yield from search(runs, "pilot", pilots, environment.step_index)
    index = runs.best("pilot", reference)
    as_is = [at_step(runs, "pilot", one, index, HOPELESS_AS_IS) for one in pilots]
    as_is += [at_step(runs, "price", one, index, HOPELESS_AS_IS) for one in designs]
    yield from search(
        runs, "search", designs, index, alongside=[job for jobs in as_is for job in jobs]
    )
    # The reference's step size may have turned out better than what a pilot's search ended on.
    yield from search(runs, "pilot", pilots, index)
    tuned = [
        at_step(runs, "price", one, runs.best("search", one), patience(one)) for one in designs
    ]
    yield from runs.run([job for jobs in tuned for job in jobs])


def rollouts(rows: Sequence[Row]) -> int:
    """Return the rollouts generated by these runs, the first fill included."""
    return sum(row.buffer_size + max(row.updates - 1, 0) * row.rollouts_per_update for row in rows)
