"""What a sweep runs: its flags, presets and checks, and the problem they build."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from sim.engines import EngineName, check_engine
from sim.knobs import (
    PROBLEMS,
    BanditKnobs,
    ChainKnobs,
    MdpKnobs,
    ProblemName,
    QLearningKnobs,
    QuadraticKnobs,
)
from sim.problems import Problem
from theory.command import with_preset


@dataclass(frozen=True)
class SweepConfig:
    """Sweep replay designs and compare the predicted one with the best measured one."""

    problem: ProblemName = "bandit"
    """What to train on."""
    batch_size: int = 64
    """Rollouts used per update (B)."""
    horizons: tuple[float, ...] = (1, 2, 4, 8, 16)
    """Staleness horizons x = N/R to try, in updates a rollout stays; N = x R must be whole."""
    replay_ratios: tuple[float, ...] = (1, 2, 4, 8)
    """Replay ratios y = B/R to try, mean uses per rollout; R = B/y must be whole."""
    step_sizes: tuple[float, ...] = ()
    """Step sizes (learning rates) to try for every design; none given: the problem's own grid."""
    seeds: int = 32
    """Seeds of each setting, even: the first half chooses, the second half prices."""
    first_seed: int = 0
    """Number of the first seed."""
    gen_train_ratios: tuple[float, ...] = (1, 2, 5, 10, 20, 50)
    """cost_gen / cost_train to price: cost of generating one rollout in units of training on it."""
    target: float = 0.02
    """Target gap as a fraction of the initial gap to the best objective, in (0, 1)."""
    max_updates: int = 6000
    """Updates after which a run counts as not having reached the target."""
    draw: Literal["without", "with"] = "without"
    """Draw a batch without or with replacement; without needs N >= B."""
    start: Literal["full", "growing"] = "full"
    """Fill the buffer to N before update 0, or train once max(B, R) rollouts are stored."""
    num_generations: int = 1
    """Rollouts per prompt (GRPO group), on bandit and chain; B, R, N must be multiples of it."""
    fixed_cost: float = 0.0
    """Cost of one update that depends on neither B nor R, in training-cost units."""
    bandit: BanditKnobs = field(default_factory=BanditKnobs)
    """Knobs of the bandit."""
    quadratic: QuadraticKnobs = field(default_factory=QuadraticKnobs)
    """Knobs of the quadratic."""
    chain: ChainKnobs = field(default_factory=ChainKnobs)
    """Knobs of the token chain."""
    mdp: MdpKnobs = field(default_factory=MdpKnobs)
    """Knobs of policy gradient on a decision process."""
    q_learning: QLearningKnobs = field(default_factory=QLearningKnobs)
    """Knobs of Q-learning on a decision process."""
    smoke: bool = False
    """A small grid that runs in seconds; flags given beside it win over it."""
    processes: int = 1
    """Processes that share the runs, one core each; 1: this process alone, on all cores."""
    engine: EngineName = "local"
    """Where the processes are: on this machine, or wherever a Ray cluster has free cores."""
    ray_address: str = ""
    """Running Ray cluster to use: auto or host:port; empty: Ray starts on this machine."""
    results: Path = Path("results")
    """Folder that holds one folder a run."""
    id: str = ""
    """Name of the run's folder; empty: the problem and a hash of the config."""


SMOKE = {
    "horizons": (1.0, 2.0, 4.0, 8.0),
    "replay_ratios": (1.0, 2.0, 4.0),
    "seeds": 8,
    "target": 0.2,
    "max_updates": 1500,
}
NOT_IDENTITY = ("smoke", "processes", "engine", "ray_address", "results", "id")


def resolved(config: SweepConfig) -> SweepConfig:
    """Return the config with the smoke preset and the problem's step sizes where none are given."""
    if config.smoke:
        config = with_preset(config, SMOKE)
    if config.step_sizes:
        return config
    grid = PROBLEMS[config.problem].step_sizes
    return dataclasses.replace(config, step_sizes=grid[1::3] if config.smoke else grid)


def check(config: SweepConfig) -> None:
    """Raise ValueError, naming value and range, for what no sweep can run with."""
    for name in ("batch_size", "seeds", "max_updates", "num_generations"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {getattr(config, name)}")
    if config.seeds % 2:
        raise ValueError(f"seeds must be even (half choose, half price), got {config.seeds}")
    if not 0 <= config.first_seed < 2**31 - config.seeds:
        raise ValueError(f"first_seed must be in [0, 2^31 - seeds), got {config.first_seed}")
    for name in ("horizons", "replay_ratios", "step_sizes", "gen_train_ratios"):
        values = getattr(config, name)
        if not values:
            raise ValueError(f"{name} must hold at least one number, got none")
        for value in values:
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be finite and > 0, got {value}")
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must not repeat a value, got {values}")
    if not 0 < config.target < 1:
        raise ValueError(f"target must be a fraction in (0, 1), got {config.target}")
    if not (np.isfinite(config.fixed_cost) and config.fixed_cost >= 0):
        raise ValueError(f"fixed_cost must be finite and >= 0, got {config.fixed_cost}")
    if config.num_generations != 1 and not PROBLEMS[config.problem].groups:
        raise ValueError(
            f"num_generations must be 1 on {config.problem}, got {config.num_generations}"
        )
    if config.batch_size % config.num_generations:
        raise ValueError(
            f"batch_size must be a multiple of num_generations = {config.num_generations}, "
            f"got {config.batch_size}"
        )
    check_engine(config.processes, config.engine, config.ray_address)


def built(config: SweepConfig) -> Problem:
    """Return the problem of a config."""
    knobs = getattr(config, config.problem)
    return PROBLEMS[config.problem].build(knobs, config.num_generations, config.max_updates)


def config_record(config: SweepConfig) -> dict[str, object]:
    """Return what defines the results: all but where it runs or is kept, and unused knobs."""
    fields = dataclasses.asdict(config)
    for name in (*NOT_IDENTITY, *(PROBLEMS.keys() - {config.problem})):
        del fields[name]
    return json.loads(json.dumps(fields))


def digest(record: object) -> str:
    """Return a short hash of a record that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:10]
