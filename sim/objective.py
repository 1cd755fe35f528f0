"""The simulator as the objective of a study: compute to the target of one environment.

`python -m llm.study --objective sim.objective:cost_to_target --option environment=ID --target 1`
runs thousands of trials in minutes, to test studies themselves. Environments are those of
`sim/validation/suite.json`; the score is the part of the way to the environment's target that is
behind, 1 at the target. The gradient is the importance-corrected policy gradient: loss reinforce.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

from sim.lanes import Runner, compiled_runner, run_lanes
from sim.problems import Problem
from sim.train import Allocation, Lane
from sim.validation.environment import Environment
from sim.validation.measure import STEPS_PER_BLOCK
from sim.validation.suite import suite
from theory.cost import cost_to_target as cost_of
from theory.cost import update_cost

# Longest stay of a rollout that the compiled program has room for, updates.
MAX_HORIZON = 32


class Watch(Protocol):
    """Takes (compute, score) of a run that may cost up to ``max_cost``."""

    max_cost: float
    note: Callable[[str], None]

    def __call__(self, cost: float, score: float) -> None:
        """Take a measurement."""
        ...


def cost_to_target(
    point: dict[str, Any], seed: int, watch: Watch, gen_train_ratio: float, environment: str
) -> None:
    """Run one lane and report what it cost to reach the environment's target.

    Args:
        point: batch_size, rollouts_per_update, buffer_size in rollouts; learning_rate; draw "with"
            or "without"; loss "reinforce".
        seed: of the lane, in [0, 2^32).
        watch: called at the start and at the end.
        gen_train_ratio: mu, > 0.
        environment: id in the suite.

    Raises:
        ValueError: if there is no such environment, or the point cannot be run.
    """
    if point["loss"] != "reinforce" or point["draw"] not in ("with", "without"):
        raise ValueError(
            "the simulator runs loss reinforce, drawn with or without, got "
            f"{point['loss']} and {point['draw']}"
        )
    chosen, problem, allocation, runner = prepared(environment)
    if point["num_generations"] != chosen.num_generations:
        raise ValueError(
            f"num_generations of {environment} is {chosen.num_generations}, "
            f"got {point['num_generations']}"
        )
    design = point["batch_size"], point["rollouts_per_update"], point["buffer_size"]

    def cost(updates: int) -> float:
        return float(cost_of(updates, *design, gen_train_ratio, start="growing"))

    per_update = float(update_cost(design[0], design[1], gen_train_ratio))
    lane = Lane(
        batch_size=design[0],
        rollouts_per_update=design[1],
        buffer_size=design[2],
        step_size=point["learning_rate"],
        replace=point["draw"] == "with",
        growing=True,
        target=chosen.target * problem.initial_loss,
        max_updates=max(1, math.ceil(watch.max_cost / per_update)),
        seed=seed,
        setting=0,
    )
    watch.note(environment)
    watch(0.0, 0.0)
    [[end]] = list(run_lanes(problem, [lane], allocation, workers=1, runner=runner))
    way = (1 - end.loss / problem.initial_loss) / (1 - chosen.target)
    watch(cost(end.updates), 1.0 if end.status == "reached" else min(way, 1 - 1e-9))


@functools.cache
def prepared(environment: str) -> tuple[Environment, Problem, Allocation, Runner]:
    """Return an environment with its program, compiled once a process.

    Raises:
        ValueError: if there is none of that id.
    """
    known = {one.id: one for one in suite()}
    if environment not in known:
        raise ValueError(f"environment must be an id of sim/validation/suite.json: {environment!r}")
    chosen = known[environment]
    size = chosen.batch_size
    allocation = Allocation(size, size, MAX_HORIZON, STEPS_PER_BLOCK)
    problem = chosen.built()
    return chosen, problem, allocation, compiled_runner(problem, allocation, width=1)
