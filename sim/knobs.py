"""The problems a sweep can run, by name: their knobs as flags, step sizes, and builders."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from sim.problems import Problem
from sim.problems.bandit import bandit
from sim.problems.chain import chain
from sim.problems.mdp import MDP, garnet, gridworld
from sim.problems.q_learning import q_learning
from sim.problems.quadratic import quadratic
from sim.problems.trajectory import trajectory

ProblemName = Literal["bandit", "quadratic", "chain", "mdp", "q_learning"]


@dataclass(frozen=True)
class BanditKnobs:
    """Log-linear softmax bandit."""

    prompts: int = 12
    """Number of prompts, >= 1."""
    arms: int = 4
    """Arms of each prompt, >= 2."""
    features: int = 16
    """Number of features; 0: tabular, one parameter a (prompt, arm) pair."""
    spectrum_power: float = 2.0
    """Power-law decay a of the features' variance, j^-a; larger is worse conditioned."""
    reward_spread: float = 1.0
    """Mean rewards lie within 1/2 +- spread/2, in (0, 1]; smaller means noisier gradients."""
    kl: float = 0.2
    """Weight of the KL term to the uniform policy; 0: plain reward."""
    problem_seed: int = 0
    """Seed of features and mean rewards."""


@dataclass(frozen=True)
class QuadraticKnobs:
    """Exact quadratic with replayed noise."""

    dim: int = 8
    """Number of curvature modes, >= 1."""
    spectrum_power: float = 2.0
    """Power-law decay a of the curvature, i^-a."""
    noise_std: float = 5.0
    """Gradient noise of one fresh rollout in the mode of curvature 1."""
    noise_power: float = 1.0
    """Noise covariance grows as curvature to this power."""
    stale_noise: float = 0.0
    """Growth of the noise variance for every update of age, in units of the fresh one."""


@dataclass(frozen=True)
class ChainKnobs:
    """Autoregressive token chain, rewarded if the sum of its tokens lies in a band."""

    length: int = 8
    """Tokens of a rollout, >= 1; the longer, the noisier stale sequence ratios."""
    vocabulary: int = 4
    """Number of tokens, >= 2."""
    prompts: int = 1
    """Number of prompts, >= 1, each with a band and parameters of its own."""
    spectrum_power: float = 1.0
    """Power-law decay of the parameters' scales; larger is worse conditioned."""
    band_half_width: float = 0.05
    """Half width of the band as a fraction of the largest sum; narrower means noisier."""
    kl: float = 0.1
    """Weight of the KL term to the uniform policy."""
    reward_noise: float = 0.0
    """Standard deviation of the noise of every reward."""
    ratio: Literal["sequence", "token", "geometric", "none"] = "sequence"
    """Importance ratio of stale rollouts; only sequence is unbiased."""


@dataclass(frozen=True)
class ProcessKnobs:
    """Tabular decision process: a gridworld with walls, or a random Garnet."""

    process: Literal["gridworld", "garnet"] = "gridworld"
    """Which process."""
    horizon: int = 20
    """Steps of a path, 1 to 1000."""
    discount: float = 0.95
    """Discount factor."""
    reward_noise: float = 0.0
    """Standard deviation of the noise of every reward."""
    visit_power: float = 0.0
    """Starts (and a Garnet's successors) are drawn as rank^-p: larger is worse conditioned."""
    slip: float = 0.0
    """Gridworld: probability that a random move replaces the chosen one."""
    states: int = 16
    """Garnet: number of states, >= 2."""
    problem_seed: int = 0
    """Seed of the Garnet, and of the order of starts."""

    def mdp(self) -> MDP:
        """Build the process."""
        shared = {"visit_power": self.visit_power, "problem_seed": self.problem_seed}
        if self.process == "gridworld":
            return gridworld(slip=self.slip, **shared)
        return garnet(states=self.states, **shared)

    def settings(self) -> dict[str, Any]:
        """Return what the problems on it take."""
        named = asdict(self)
        return {name: named[name] for name in ("horizon", "discount", "reward_noise")}


@dataclass(frozen=True)
class MdpKnobs(ProcessKnobs):
    """Policy gradient on paths of a tabular decision process."""

    kl: float = 0.1
    """Weight of the KL term to the uniform policy."""
    features: int = 96
    """Number of features of the policy; 0: tabular. Fewer than cells can trap runs."""
    spectrum_power: float = 1.5
    """Power-law decay of the features' variance."""


@dataclass(frozen=True)
class QLearningKnobs(ProcessKnobs):
    """Q-learning on paths of a tabular decision process."""

    epsilon: float = 0.1
    """Probability of a random action, in (0, 1]."""


Knobs = BanditKnobs | QuadraticKnobs | ChainKnobs | MdpKnobs | QLearningKnobs


def built_quadratic(knobs: QuadraticKnobs, num_generations: int, max_age: int) -> Problem:
    """Return the quadratic of these knobs."""
    named = asdict(knobs)
    growth = named.pop("stale_noise")
    if not (math.isfinite(growth) and growth >= 0):
        raise ValueError(f"stale_noise must be finite and >= 0, got {growth}")
    return quadratic(**named, sigma2=lambda age: 1 + growth * age, max_age=max_age)


def built_mdp(knobs: MdpKnobs, num_generations: int, max_age: int) -> Problem:
    """Return the policy-gradient problem of these knobs."""
    return trajectory(
        knobs.mdp(),
        **knobs.settings(),
        kl=knobs.kl,
        features=knobs.features,
        spectrum_power=knobs.spectrum_power,
        problem_seed=knobs.problem_seed,
    )


def built_q_learning(knobs: QLearningKnobs, num_generations: int, max_age: int) -> Problem:
    """Return the Q-learning problem of these knobs."""
    return q_learning(knobs.mdp(), **knobs.settings(), epsilon=knobs.epsilon)


class Entry(NamedTuple):
    """One problem: builder of (knobs, num_generations, max_age), its knobs, steps, groups."""

    build: Callable[[Any, int, int], Problem]
    knobs: type[Any]
    step_sizes: tuple[float, ...]
    groups: bool = False


def steps(low: float, count: int) -> tuple[float, ...]:
    """Return step sizes from low on, each sqrt(2) times the last, to two digits."""
    return tuple(float(f"{low * 2 ** (i / 2):.2g}") for i in range(count))


PROBLEMS: dict[str, Entry] = {
    "bandit": Entry(
        lambda knobs, groups, _: bandit(**asdict(knobs), num_generations=groups),
        BanditKnobs,
        (2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 22.0, 32.0, 45.0, 64.0, 90.0),
        groups=True,
    ),
    "quadratic": Entry(built_quadratic, QuadraticKnobs, steps(0.015, 14)),
    "chain": Entry(
        lambda knobs, groups, _: chain(**asdict(knobs), num_generations=groups),
        ChainKnobs,
        steps(0.25, 14),
        groups=True,
    ),
    "mdp": Entry(built_mdp, MdpKnobs, steps(0.25, 14)),
    "q_learning": Entry(built_q_learning, QLearningKnobs, steps(1.0, 14)),
}
