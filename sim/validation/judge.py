"""Turn the rows of a run into cases, let every predictor choose, and score it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.designs import Design, on_policy
from sim.validation.environment import Environment, replay_designs, smaller_batches
from sim.validation.measure import (
    GEN_TRAIN_RATIOS,
    HOPELESS_AS_IS,
    Phase,
    Runs,
    give_up,
    pilot_designs,
)
from sim.validation.predictors import PREDICTORS, Pilot
from sim.validation.score import (
    Arena,
    BatchRule,
    Case,
    Choice,
    Measured,
    Protocol,
    Scores,
    case_of,
    chosen,
    scores,
)
from sim.validation.steps import best_index

PROTOCOLS: tuple[Protocol, ...] = ("tuned", "fixed_step")
BATCH_RULES: tuple[BatchRule, ...] = ("fixed_batch", "free_batch")
GROUPS = ("smooth", "plain", "all")


@dataclass(frozen=True)
class Verdicts:
    """Everything that was judged of one environment.

    Attributes:
        environment: which.
        trapped: whether more reference runs missed than means leave out; it is not scored then.
        pilots: what the predictors saw, by protocol.
        arenas: what was measured, by protocol.
        predicted: updates each predictor gave to each design, by (protocol, predictor).
        cases: by (protocol, batch rule), one a cost ratio.
        choices: by (protocol, batch rule, predictor), one a cost ratio.
    """

    environment: Environment
    trapped: bool
    pilots: Mapping[Protocol, Pilot]
    arenas: Mapping[Protocol, Arena]
    predicted: Mapping[tuple[Protocol, str], Mapping[Design, float]]
    cases: Mapping[tuple[Protocol, BatchRule], tuple[Case, ...]]
    choices: Mapping[tuple[Protocol, BatchRule, str], tuple[Choice, ...]]


def index_of(runs: Runs, phase: Phase, design: Design, protocol: Protocol) -> int:
    """Return the step index a design runs at: its own best, or the reference's in the pilot."""
    if protocol == "tuned":
        return runs.best("search" if phase == "price" else phase, design)
    return runs.best("pilot", on_policy(runs.environment.batch_size))


def measured_at(runs: Runs, phase: Phase, design: Design, protocol: Protocol) -> Measured:
    """Return the runs of a design in a phase under a protocol."""
    updates, reached = runs.runs_of(phase, design, index_of(runs, phase, design, protocol))
    return Measured(updates, int((~reached).sum()))


def piloted(runs: Runs, design: Design) -> Measured:
    """Return the pilot's runs of a design at its two best neighbouring step sizes.

    With few seeds the better of two equal step sizes is mostly the luckier one; near the best, U
    hardly depends on the step size, so the two together are twice the seeds without that luck.
    """
    scores = runs.scores("pilot", design)
    best = best_index(scores)
    near = [index for index in (best - 1, best + 1) if scores[index].missed == 0]
    pair = [best, *sorted(near, key=lambda index: scores[index])[:1]]
    both = [runs.runs_of("pilot", design, index) for index in pair]
    updates = np.concatenate([updates for updates, _ in both])
    return Measured(updates, sum(int((~reached).sum()) for _, reached in both))


def judged(runs: Runs) -> Verdicts:
    """Let every predictor see the pilot of one environment and choose in every case."""
    environment = runs.environment
    reference = on_policy(environment.batch_size)
    smaller, replay = smaller_batches(environment), replay_designs(environment)
    designs = (reference, *smaller, *replay)
    pilots, arenas, predicted, cases, choices = {}, {}, {}, {}, {}
    for protocol in PROTOCOLS:
        seen = pilot_designs(environment)
        tuned = {one: piloted(runs, one) for one in seen}
        as_is = {one: measured_at(runs, "pilot", one, "fixed_step") for one in seen}
        pilots[protocol] = Pilot(
            reference,
            tuned if protocol == "tuned" else as_is,
            tuned,
            {one: give_up(environment, one, HOPELESS_AS_IS) for one in seen},
            environment.target,
            protocol,
        )
        arenas[protocol] = arena = Arena(
            reference,
            smaller,
            replay,
            {one: measured_at(runs, "price", one, protocol) for one in designs},
        )
        for name, predictor in PREDICTORS.items():
            predicted[protocol, name] = predictor(pilots[protocol], designs)
        for batch in BATCH_RULES:
            cases[protocol, batch] = tuple(
                case_of(environment.id, arena, batch, mu) for mu in GEN_TRAIN_RATIOS
            )
            for name in PREDICTORS:
                choices[protocol, batch, name] = tuple(
                    chosen(arena, batch, predicted[protocol, name], mu) for mu in GEN_TRAIN_RATIOS
                )
    trapped = arenas["tuned"].runs[reference].trapped
    return Verdicts(environment, trapped, pilots, arenas, predicted, cases, choices)


def in_group(verdicts: Verdicts, group: str) -> bool:
    """Return whether an environment is scored in a group."""
    return not verdicts.trapped and (
        group == "all" or verdicts.environment.smooth == (group == "smooth")
    )


def scored(
    all_verdicts: Sequence[Verdicts], protocol: Protocol, batch: BatchRule, group: str, name: str
) -> Scores:
    """Return the scores of one predictor in one group."""
    members = [one for one in all_verdicts if in_group(one, group)]
    cases = [case for one in members for case in one.cases[protocol, batch]]
    choices = [choice for one in members for choice in one.choices[protocol, batch, name]]
    return scores(cases, choices)


def undecided_share(
    all_verdicts: Sequence[Verdicts], protocol: Protocol, batch: BatchRule, group: str
) -> float:
    """Return the share of cases whose interval holds 1, which no verdict is scored on."""
    decided = [
        case.decided
        for one in all_verdicts
        if in_group(one, group)
        for case in one.cases[protocol, batch]
    ]
    return 1 - float(np.mean(decided))
