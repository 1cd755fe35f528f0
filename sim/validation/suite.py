"""The environment suite: a seeded rule that draws candidates, and the settings it accepted.

`drawn` makes the i-th candidate of a family from (SUITE_SEED, family, i). `screened` runs it
on-policy at four batch sizes with tuned step sizes, on seeds used nowhere else, moves its target
until the run is long enough but not endless, and gives it its reference updates and noise_to_batch
beta. It is accepted if all seeds reach the target in LEAST_UPDATES to MOST_UPDATES updates, beta
lies within BETA_STRATA, its family and stratum still want one, and nearly all of CONFIRMING seeds
more reach the target at the step size found. No replay design is run before a setting is accepted
or refused. Accepted settings are data, in suite.json; they are not drawn again.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.designs import Design, on_policy
from sim.knobs import (
    BanditKnobs,
    ChainKnobs,
    Knobs,
    MdpKnobs,
    ProblemName,
    QLearningKnobs,
    QuadraticKnobs,
)
from sim.validation.environment import Environment, from_record, smaller_batches
from sim.validation.measure import TRAPPED, Job, Runs, Seeds, search
from sim.validation.score import Measured
from theory.calibrate import noise_scale_from_updates

SUITE = Path(__file__).with_name("suite.json")
SUITE_SEED = 2604
LEAST_UPDATES, MOST_UPDATES = 200, 1500
COARSE = (-9, -6, -3, 0, 3, 6, 9)
TARGETS = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
CONFIRMING = (100, 148)
BETA_STRATA = (0.01, 0.1, 0.4, 1.5, 5.0, 30.0)


class Candidate(NamedTuple):
    """A drawn job: knobs, rollouts per prompt, batch, target, and where the step search starts."""

    knobs: Knobs
    num_generations: int
    batch_size: int
    target: float
    step_index: int


@dataclass(frozen=True)
class Family:
    """A kind of environment: its problem, the draw, how many of each stratum, how many tries."""

    problem: ProblemName
    smooth: bool
    draw: Callable[[np.random.Generator], Candidate]
    quota: int
    candidates: int


def pick(rng: np.random.Generator, *values: Any) -> Any:
    """Return one of the values."""
    return values[rng.integers(len(values))]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number whose logarithm is uniform, to three digits."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a uniform number, to three digits."""
    return float(f"{rng.uniform(low, high):.3g}")


def quadratic_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a quadratic; noise that grows with age in two of three."""
    knobs = QuadraticKnobs(
        dim=12,
        spectrum_power=uniform(rng, 1.0, 2.6),
        noise_std=log_uniform(rng, 0.05, 10.0),
        noise_power=pick(rng, 0.0, 1.0, 1.5),
        stale_noise=pick(rng, 0.0, 0.05, 0.2),
    )
    return Candidate(knobs, 1, 64, pick(rng, 0.02, 0.05, 0.1), -3)


def bandit_candidate(rng: np.random.Generator, kl: float, target: float) -> Candidate:
    """Draw a bandit."""
    groups = pick(rng, 1, 4)
    prompts, arms = pick(rng, (24, 2), (12, 4), (6, 8))
    knobs = BanditKnobs(
        prompts=prompts,
        arms=arms,
        features=pick(rng, 0, 16),
        spectrum_power=uniform(rng, 0.5, 2.0),
        reward_spread=log_uniform(rng, 0.15, 1.0),
        kl=kl,
        problem_seed=int(rng.integers(1000)),
    )
    return Candidate(knobs, groups, 64, target, 6)


def bandit_kl_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a KL-regularised bandit."""
    return bandit_candidate(rng, log_uniform(rng, 0.03, 0.5), pick(rng, 0.02, 0.05, 0.1))


def bandit_plain_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a bandit without KL."""
    return bandit_candidate(rng, 0.0, pick(rng, 0.02, 0.05, 0.1))


def chain_candidate(rng: np.random.Generator, kl: float) -> Candidate:
    """Draw a token chain corrected by the ratio of whole sequences."""
    length, vocabulary, prompts = pick(rng, (12, 2, 1), (6, 3, 2), (8, 4, 1))
    knobs = ChainKnobs(
        length=length,
        vocabulary=vocabulary,
        prompts=prompts,
        spectrum_power=uniform(rng, 0.0, 2.0),
        band_half_width=pick(rng, 0.05, 0.1, 0.15),
        kl=kl,
        reward_noise=pick(rng, 0.0, 0.3, 1.0),
    )
    return Candidate(knobs, pick(rng, 1, 4), 64, pick(rng, 0.02, 0.05, 0.1), 0)


def chain_kl_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a KL-regularised chain; below 0.1 it has local optima."""
    return chain_candidate(rng, uniform(rng, 0.1, 0.3))


def chain_plain_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a chain without KL."""
    return chain_candidate(rng, 0.0)


def mdp_candidate(rng: np.random.Generator, kl: float) -> Candidate:
    """Draw policy gradient on a gridworld or a Garnet, the policy free in every cell."""
    knobs = MdpKnobs(
        process=pick(rng, "gridworld", "garnet"),
        horizon=8,
        discount=pick(rng, 0.9, 0.95),
        reward_noise=pick(rng, 0.0, 0.3, 1.0),
        visit_power=pick(rng, 0.0, 1.0),
        states=8,
        problem_seed=int(rng.integers(1000)),
        kl=kl,
        features=pick(rng, 0, 96),
        spectrum_power=uniform(rng, 0.5, 1.5),
    )
    return Candidate(knobs, 1, 64, pick(rng, 0.02, 0.05, 0.1), 4)


def mdp_kl_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a KL-regularised decision process."""
    return mdp_candidate(rng, log_uniform(rng, 0.05, 0.3))


def mdp_plain_candidate(rng: np.random.Generator) -> Candidate:
    """Draw a decision process without KL."""
    return mdp_candidate(rng, 0.0)


def q_learning_candidate(rng: np.random.Generator) -> Candidate:
    """Draw Q-learning; it needs no importance ratio and has no objective to be smooth."""
    knobs = QLearningKnobs(
        process=pick(rng, "gridworld", "garnet"),
        horizon=pick(rng, 1, 8),
        discount=pick(rng, 0.8, 0.9, 0.95),
        reward_noise=pick(rng, 0.0, 0.5, 2.0),
        visit_power=pick(rng, 0.0, 1.0),
        states=8,
        problem_seed=int(rng.integers(1000)),
        epsilon=pick(rng, 0.1, 0.3, 1.0),
    )
    return Candidate(knobs, 1, 64, pick(rng, 0.02, 0.05, 0.1), 8)


FAMILIES = {
    "quadratic": Family("quadratic", True, quadratic_candidate, 6, 12),
    "bandit_kl": Family("bandit", True, bandit_kl_candidate, 14, 80),
    "bandit_plain": Family("bandit", False, bandit_plain_candidate, 12, 84),
    "chain_kl": Family("chain", True, chain_kl_candidate, 6, 24),
    "chain_plain": Family("chain", False, chain_plain_candidate, 3, 10),
    "mdp_kl": Family("mdp", True, mdp_kl_candidate, 3, 12),
    "mdp_plain": Family("mdp", False, mdp_plain_candidate, 3, 8),
    "q_learning": Family("q_learning", False, q_learning_candidate, 4, 32),
}


def drawn(family: str, number: int) -> Candidate:
    """Return the candidate of this number."""
    place = list(FAMILIES).index(family)
    return FAMILIES[family].draw(np.random.default_rng((SUITE_SEED, place, number)))


def screened(family: str, candidate: Candidate) -> Environment | str:
    """Return the environment with its target and reference numbers, or why it is refused.

    Its beta may still lie outside every stratum.
    """
    runs = within_range(family, candidate)
    if isinstance(runs, str):
        return runs
    environment = runs.environment
    reference = on_policy(environment.batch_size)
    finish(search(runs, "screen", [reference], candidate.step_index, screening_cap))
    index = runs.best("screen", reference)
    updates, reached = runs.runs_of("screen", reference, index)
    if not reached.all():
        return f"{int((~reached).sum())} of {len(reached)} seeds missed the target"
    if not LEAST_UPDATES <= updates.mean() <= MOST_UPDATES:
        return f"{updates.mean():.0f} updates"
    designs = (reference, *smaller_batches(environment))

    def twice_the_rollouts(environment: Environment, design: Design) -> int:
        return math.ceil(2 * updates.mean() * environment.batch_size / design.batch_size)

    finish(search(runs, "screen", designs, index, twice_the_rollouts))
    tuned = [runs.runs_of("screen", one, runs.best("screen", one)) for one in designs]
    fit = noise_scale_from_updates(
        [one.batch_size for one in designs], [updates for updates, _ in tuned]
    )
    beta = fit.noise_scale.value / environment.batch_size
    return dataclasses.replace(
        environment,
        step_index=index,
        updates=float(f"{updates.mean():.4g}"),
        noise_to_batch=float(f"{beta:.3g}") if math.isfinite(beta) else 1e9,
    )


def within_range(family: str, candidate: Candidate) -> Runs | str:
    """Return coarse runs at the first target met in a sensible number of updates, or why none is.

    Easier targets are tried while seeds miss, harder ones while they are met too soon.
    """
    kind = FAMILIES[family]
    place, moved = TARGETS.index(candidate.target), 0
    while True:
        environment = Environment(
            problem=kind.problem,
            knobs=candidate.knobs,
            num_generations=candidate.num_generations,
            batch_size=candidate.batch_size,
            target=TARGETS[place],
            family=family,
            smooth=kind.smooth,
            step_index=candidate.step_index,
            updates=0.0,
            noise_to_batch=0.0,
        )
        runs = Runs(environment, Seeds())
        reference = on_policy(environment.batch_size)
        cap = screening_cap(environment, reference)
        finish(
            runs.run(
                [
                    Job("screen", reference, candidate.step_index + offset, seed, cap)
                    for offset in COARSE
                    for seed in runs.seeds.of("screen")
                ]
            )
        )
        best = min(runs.scores("screen", reference).values())
        if not best.missed and LEAST_UPDATES <= best.updates <= MOST_UPDATES:
            return runs
        move = -1 if best.missed or best.updates > MOST_UPDATES else 1
        place += move
        if move == -moved or not 0 <= place < len(TARGETS):
            return f"coarse search: {best.missed} missed, {best.updates:.0f} updates"
        moved = move


def finish(rows: Iterator[object]) -> None:
    """Run to the end."""
    collections.deque(rows, maxlen=0)


def confirmed(environment: Environment) -> dict[str, Any]:
    """Run the reference on many more seeds: some objectives trap one run in ten for ever.

    Returns:
        Whether more seeds than the typical ones leave out missed ten times the reference updates,
        and the mean updates of the typical ones.
    """
    runs = Runs(environment, Seeds())
    reference = on_policy(environment.batch_size)
    cap = math.ceil(TRAPPED * environment.updates)
    seeds = range(CONFIRMING[0], CONFIRMING[1])
    index = environment.step_index
    finish(runs.run([Job("screen", reference, index, seed, cap) for seed in seeds]))
    updates, reached = runs.runs_of("screen", reference, index)
    return {
        "id": environment.id,
        "trapped": Measured(updates, int((~reached).sum())).trapped,
        "missed": int((~reached).sum()),
        "updates": float(f"{Measured(updates, 0).mean:.4g}"),
    }


def screening_cap(environment: Environment, design: Design) -> int:
    """Return the updates after which a screening run is given up."""
    return 3 * MOST_UPDATES // 2 * environment.batch_size // design.batch_size


def stratum(noise_to_batch: float) -> int | None:
    """Return the number of the stratum of beta, None outside all of them."""
    if not BETA_STRATA[0] <= noise_to_batch <= BETA_STRATA[-1]:
        return None
    return int(np.searchsorted(BETA_STRATA[1:-1], noise_to_batch, side="right"))


def suite() -> tuple[Environment, ...]:
    """Return the environments of the suite."""
    return tuple(from_record(record) for record in json.loads(SUITE.read_text())["environments"])
