"""What makes a validation worthless, each checked on the rows that were run.

A broken guard ends the run: no page is written.
"""

import math
from collections.abc import Sequence

import numpy as np

from sim.designs import Design, on_policy
from sim.validation.environment import MAX_HORIZON_SHARE, replay_designs, smaller_batches
from sim.validation.measure import Phase, Runs, all_designs, pilot_designs, rollouts, stream_of
from sim.validation.score import design_cost
from sim.validation.steps import next_indices, typical
from sim.validation.suite import LEAST_UPDATES

PILOT_SHARE = 0.10


class Worthless(ValueError):
    """A validation that must not be reported."""


def check_run(found: Sequence[Runs], half: str) -> None:
    """Raise Worthless, saying which and where, if a guard is broken."""
    for runs in found:
        check_half(runs, half)
        check_length(runs)
        check_fill(runs)
        check_resolution(runs)
        check_steps(runs)
        check_seeds(runs)
        check_baseline(runs)
        check_pilot(runs)


def refuse(runs: Runs, what: str) -> None:
    """Raise Worthless about one environment."""
    raise Worthless(f"{runs.environment.id}: {what}")


def check_half(runs: Runs, half: str) -> None:
    """No environment of one half may be used for the other."""
    if runs.environment.half != half:
        refuse(runs, f"belongs to the {runs.environment.half} half, not to {half}")


def check_length(runs: Runs) -> None:
    """The reference run takes at least 200 updates and 20 times the longest horizon."""
    updates = typical(priced_reference(runs)[0]).mean()
    if updates < LEAST_UPDATES:
        refuse(runs, f"the reference run takes only {updates:.0f} updates")
    longest = max((one.staleness_horizon for one in replay_designs(runs.environment)), default=0)
    if longest * MAX_HORIZON_SHARE > updates:
        refuse(runs, f"horizon {longest:g} is too long for {updates:.0f} updates")


def check_fill(runs: Runs) -> None:
    """The first fill is paid for: costs count every rollout that was generated."""
    for row in runs.all_rows():
        counted = row.updates * row.batch_size + 2.0 * rollouts([row])
        if float(design_cost(row.design, np.asarray(row.updates), 2.0)) != counted:
            refuse(runs, f"the cost of {row} leaves rollouts out")


def check_resolution(runs: Runs) -> None:
    """The target is looked for at every update."""
    reached = [row.updates for row in runs.all_rows() if row.reached]
    if (every := math.gcd(*reached)) > 1:
        refuse(runs, f"runs end at multiples of {every} updates only")


def check_steps(runs: Runs) -> None:
    """No best step size lies on the edge of what was tried."""
    phases: tuple[tuple[Phase, tuple[Design, ...]], ...] = (
        ("pilot", pilot_designs(runs.environment)),
        ("search", all_designs(runs.environment)),
    )
    for phase, designs in phases:
        for design in designs:
            if next_indices(runs.scores(phase, design), []) or not runs.scores(phase, design):
                refuse(runs, f"the best step size of {design} in {phase} lies on the edge")


def check_seeds(runs: Runs) -> None:
    """Choosing and pricing share no seed, and no two runs share a random stream."""
    rows = runs.all_rows()
    by_phase = {
        phase: {row.seed for row in rows if row.phase == phase}
        for phase in ("pilot", "search", "price")
    }
    if sum(map(len, by_phase.values())) != len(set().union(*by_phase.values())):
        refuse(runs, "two phases share a seed")
    streams = {stream_of(runs.environment, row) for row in rows}
    if len(streams) != len(rows):
        refuse(runs, "two runs share a random stream")


def check_baseline(runs: Runs) -> None:
    """On-policy runs use each rollout once, so that replay is not compared with a worse draw."""
    size = runs.environment.batch_size
    for one in (on_policy(size), *smaller_batches(runs.environment)):
        if not one.batch_size == one.rollouts_per_update == one.buffer_size:
            refuse(runs, f"{one} is not on-policy")
        if one.draw != "without":
            refuse(runs, f"{one} draws a rollout twice")


def check_pilot(runs: Runs) -> None:
    """The pilot generates at most a tenth of the sweep's rollouts."""
    rows = runs.all_rows()
    pilot = rollouts([row for row in rows if row.phase == "pilot"])
    sweep = rollouts([row for row in rows if row.phase in ("search", "price")])
    if pilot > PILOT_SHARE * sweep:
        refuse(runs, f"the pilot took {pilot / sweep:.1%} of the sweep's rollouts")


def priced_reference(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the pricing runs of the reference at its best step size."""
    reference = on_policy(runs.environment.batch_size)
    return runs.runs_of("price", reference, runs.best("search", reference))
