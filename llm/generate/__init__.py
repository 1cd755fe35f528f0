"""Generation behind one callable: tokens, behaviour log-probabilities, policy version.

A backend is any callable with the signature of ``Generate``. The log-probabilities are those of
the distribution that was sampled from, in the sampler's own numerics, so that the trainer's ratio
at age 0 shows the mismatch between sampler and trainer and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    temperature 0 is greedy; top_p in (0, 1] keeps the smallest set of tokens with that mass;
    max_new_tokens bounds the response, end token included.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


class Generation(NamedTuple):
    """Responses to P prompts, G each: the rollouts of prompt p are p G .. p G + G - 1.

    tokens: int32 (T_i,) each, the end token included where it came. log_probs: float32 (T_i,).
    entropies: float32 (T_i,), nats, of the distribution each token was drawn from.
    ended: bool (P G,), whether the end token came. policy_version: of the weights that generated.
    """

    tokens: list[np.ndarray]
    log_probs: list[np.ndarray]
    entropies: list[np.ndarray]
    ended: np.ndarray
    policy_version: int


class Generate(Protocol):
    """A generation backend."""

    policy_version: int

    def __call__(
        self, prompts: Sequence[np.ndarray], num_generations: int, sampling: Sampling
    ) -> Generation:
        """Return ``num_generations`` responses to every prompt, int32 (T,) each."""
        ...
