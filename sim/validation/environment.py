"""One environment of the validation: a job that already trains on-policy with a tuned step size."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from sim.designs import SMALLER_BATCHES, Design, on_policy
from sim.knobs import PROBLEMS, Knobs, ProblemName
from sim.problems import Problem

MAX_HORIZON_SHARE = 20
MAX_HORIZON = 16
REPLAY_RATIOS = (2, 4, 8)
BUFFERS = (1, 2, 4)


@dataclass(frozen=True)
class Environment:
    """A problem, the batch its job trains with, and the gap it must reach.

    Attributes:
        problem: name in `sim.knobs.PROBLEMS`.
        knobs: its knobs.
        num_generations: rollouts per prompt.
        batch_size: B of the reference on-policy run, rollouts.
        target: gap to reach, as a fraction of the initial one.
        family: objective and problem, for reports, such as ``bandit_kl``.
        smooth: whether the objective is KL-regularised or quadratic, without plateaus.
        step_index: k of the reference run's step size, 2^(k/2), when the suite was drawn.
        updates: updates it needed then.
        noise_to_batch: beta fitted then from four batch sizes.
    """

    problem: ProblemName
    knobs: Knobs
    num_generations: int
    batch_size: int
    target: float
    family: str
    smooth: bool
    step_index: int
    updates: float
    noise_to_batch: float

    @property
    def id(self) -> str:
        """Family and a hash of all that defines the runs, the reference's numbers apart."""
        text = json.dumps([*self.record().values()][:5], sort_keys=True)
        return f"{self.family}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def half(self) -> Literal["development", "judgement"]:
        """Which half of the suite this belongs to, by the hash of its id."""
        odd = hashlib.sha256(self.id.encode()).digest()[0] % 2
        return "judgement" if odd else "development"

    @property
    def longest_horizon(self) -> int:
        """Largest staleness horizon tested: a twentieth of the reference updates, or 16.

        A tenth is held back: fresh seeds may need fewer updates than those that drew the suite.
        """
        return min(int(0.9 * self.updates / MAX_HORIZON_SHARE), MAX_HORIZON)

    def record(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def built(self) -> Problem:
        """Build the problem."""
        return PROBLEMS[self.problem].build(self.knobs, self.num_generations, MAX_HORIZON)


def from_record(record: dict[str, Any]) -> Environment:
    """Return the environment of a record."""
    knobs = PROBLEMS[record["problem"]].knobs(**record["knobs"])
    fields = {one.name: record[one.name] for one in dataclasses.fields(Environment)}
    return Environment(**{**fields, "knobs": knobs})


def smaller_batches(environment: Environment) -> tuple[Design, ...]:
    """Return on-policy designs at 1/2, 1/4 and 1/8 of the batch, where groups allow it."""
    size, group = environment.batch_size, environment.num_generations
    return tuple(on_policy(size // part) for part in SMALLER_BATCHES if size % (part * group) == 0)


def replay_designs(environment: Environment) -> tuple[Design, ...]:
    """Return the replay designs tested at the reference batch, drawn without replacement."""
    size = environment.batch_size
    cells = [
        Design(size, size // ratio, size * buffer, "without", "full")
        for ratio in REPLAY_RATIOS
        for buffer in BUFFERS
        if size % (ratio * environment.num_generations) == 0
    ]
    return tuple(cell for cell in cells if cell.staleness_horizon <= environment.longest_horizon)
