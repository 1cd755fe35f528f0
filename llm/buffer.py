"""Replay buffer of rollouts, oldest out first, bounded in rollouts and in bytes.

A rollout keeps what generation knew: tokens, behaviour log-probabilities, reward, advantage and
policy version. The buffer counts its uses. Capacity N is in rollouts. Draws are uniform over what
is stored, ``with`` or ``without`` replacement within a batch, or one of the source paper's two
variants (arXiv 2604.08706, Fig. 18), which also avoid repeats across batches:

    without_reuse   whatever has not been drawn in the present pass over the buffer comes first;
                    when all has been, the next pass begins
    unused_first    the same, but rollouts never used come before all others

``positive_share`` = delta > 0 is the paper's positive-bias buffer: it keeps the newest
N - floor(delta N) rollouts, and of the older ones the newest floor(delta N) with reward > 0.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Draw = Literal["without", "with", "without_reuse", "unused_first"]

NUMBERS = {"reward": "float64", "advantage": "float64", "policy_version": "int64"}


@dataclass(frozen=True)
class Rollout:
    """One response and what was known when it was generated.

    prompt, tokens: int32 (P,) and (T,), T >= 1. log_probs: float32 (T,), behaviour. reward,
    advantage: frozen at generation. policy_version: updates made before it was generated.
    """

    prompt: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray
    reward: float
    advantage: float
    policy_version: int

    def __post_init__(self):
        """Refuse arrays of another type or length, which would be stored at another size."""
        for name, dtype in (("prompt", "int32"), ("tokens", "int32"), ("log_probs", "float32")):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1:
                raise ValueError(
                    f"{name} must be a {dtype} vector, got {array.dtype} {array.shape}"
                )
        if not len(self.tokens) or len(self.tokens) != len(self.log_probs):
            raise ValueError(
                f"tokens and log_probs must have one length >= 1, got {len(self.tokens)} and "
                f"{len(self.log_probs)}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes stored: the arrays and 8 for each of the five numbers kept beside them."""
        return self.prompt.nbytes + self.tokens.nbytes + self.log_probs.nbytes + 40


class Use(NamedTuple):
    """A drawn rollout: its age, and the updates since its last use, None on its first."""

    rollout: Rollout
    age: int
    since_last_use: int | None


@dataclass
class Stored:
    """A rollout in the buffer: how often and when it was last used, and in which pass."""

    rollout: Rollout
    uses: int = 0
    last_use: int = -1
    drawn_in_pass: bool = False


def positive_places(positive_share: float, capacity: int) -> int:
    """Return floor(delta N), free of rounding in delta.

    >>> positive_places(0.29, 100)
    29
    """
    return math.floor(positive_share * capacity + 1e-9)


class ReplayBuffer:
    """Rollouts in order of arrival.

    Args:
        capacity: N, rollouts, >= 1.
        draw: how a batch is drawn; see the module.
        positive_share: delta of the positive-bias buffer, 0 <= delta < 1; 0 is plain FIFO.
        max_bytes: bound on the bytes of all rollouts, oldest out first; None for none.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        capacity: int,
        draw: Draw = "without",
        positive_share: float = 0.0,
        max_bytes: int | None = None,
    ):
        """Make an empty buffer."""
        if capacity < 1:
            raise ValueError(f"buffer_size must be an integer >= 1, got {capacity}")
        if not 0 <= positive_share < 1:
            raise ValueError(f"positive_share must be in [0, 1), got {positive_share}")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_buffer_bytes must be >= 1, got {max_bytes}")
        self.capacity, self.draw, self.max_bytes = capacity, draw, max_bytes
        self.positive_share = positive_share
        self.stored: list[Stored] = []
        self.nbytes = 0

    def __len__(self) -> int:
        """Rollouts stored."""
        return len(self.stored)

    @property
    def positive_places(self) -> int:
        """Places for older rollouts with reward > 0; the rest is for the newest."""
        return positive_places(self.positive_share, self.capacity)

    @property
    def empty_places(self) -> int:
        """Places not taken; a positive-bias buffer has some while right answers are rare."""
        return self.capacity - len(self.stored)

    def add(self, rollouts: Sequence[Rollout]) -> Counter[int]:
        """Append rollouts, evict what is over the bounds, and count the evicted by their uses.

        Raises:
            ValueError: if one rollout alone is over ``max_bytes``.
        """
        arrived = [Stored(rollout) for rollout in rollouts]
        self.stored += arrived
        self.nbytes += sum(rollout.nbytes for rollout in rollouts)
        before, self.stored = self.stored, self._within_bytes(self._within_capacity())
        staying = {id(item) for item in self.stored}
        evicted = [item for item in before if id(item) not in staying]
        self.nbytes -= sum(item.rollout.nbytes for item in evicted)
        return Counter(item.uses for item in evicted)

    def _within_capacity(self) -> list[Stored]:
        """The stored rollouts that the capacity rule keeps."""
        older = len(self.stored) - (self.capacity - self.positive_places)
        if older <= 0:
            return self.stored
        positive = [item for item in self.stored[:older] if item.rollout.reward > 0]
        return positive[max(0, len(positive) - self.positive_places) :] + self.stored[older:]

    def _within_bytes(self, items: list[Stored]) -> list[Stored]:
        """The newest of these whose bytes fit."""
        if self.max_bytes is None:
            return items
        total, first = 0, len(items)
        while first and total + items[first - 1].rollout.nbytes <= self.max_bytes:
            first -= 1
            total += items[first].rollout.nbytes
        if first == len(items):
            raise ValueError(
                f"max_buffer_bytes = {self.max_bytes} is less than one rollout of "
                f"{items[-1].rollout.nbytes} bytes"
            )
        return items[first:]

    def sample(self, rng: np.random.Generator, batch_size: int, update: int) -> list[Use]:
        """Draw a batch and count its uses.

        Args:
            rng: source of randomness.
            batch_size: B; at most the rollouts stored, unless drawn with replacement.
            update: updates made so far, which is the policy version in use.

        Raises:
            ValueError: if too few rollouts are stored, or one is newer than ``update``.
        """
        if not self.stored or (self.draw != "with" and batch_size > len(self.stored)):
            raise ValueError(f"a batch of {batch_size} needs more than {len(self.stored)} rollouts")
        return [self._used(self.stored[i], update) for i in self._drawn(rng, batch_size)]

    def _drawn(self, rng: np.random.Generator, batch_size: int) -> list[int]:
        """Places of a batch, in random order of use."""
        count = len(self.stored)
        if self.draw == "with":
            return rng.integers(count, size=batch_size).tolist()
        order = rng.permutation(count)
        if self.draw == "without":
            return order[:batch_size].tolist()
        turns = [self._turn(self.stored[i]) for i in order]
        chosen = order[np.argsort(turns, kind="stable")][:batch_size]
        waiting = sum(not item.drawn_in_pass for item in self.stored)
        if waiting < batch_size:
            # The first of the chosen end this pass, the others begin the next.
            for item in self.stored:
                item.drawn_in_pass = False
        for i in chosen[waiting if waiting < batch_size else 0 :]:
            self.stored[i].drawn_in_pass = True
        return rng.permutation(chosen).tolist()

    def _turn(self, item: Stored) -> int:
        """When a rollout's turn is, 0 first, under the draws that avoid repeats across batches."""
        if self.draw == "unused_first" and item.uses == 0:
            return 0
        return 2 if item.drawn_in_pass else 1

    def _used(self, item: Stored, update: int) -> Use:
        """Count one use."""
        age = update - item.rollout.policy_version
        if age < 0:
            raise ValueError(
                f"a rollout of policy version {item.rollout.policy_version} is newer than update "
                f"{update}"
            )
        since = update - item.last_use if item.uses else None
        item.uses, item.last_use = item.uses + 1, update
        return Use(item.rollout, age, since)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything stored as arrays, the token arrays of all rollouts end to end."""
        rollouts = [item.rollout for item in self.stored]
        arrays = {
            name: np.concatenate([np.empty(0, dtype), *(getattr(r, name) for r in rollouts)])
            for name, dtype in (("prompt", "int32"), ("tokens", "int32"), ("log_probs", "float32"))
        }
        arrays["prompt_length"] = np.array([len(r.prompt) for r in rollouts], dtype=np.int64)
        arrays["length"] = np.array([len(r.tokens) for r in rollouts], dtype=np.int64)
        for name in NUMBERS:
            arrays[name] = np.array([getattr(r, name) for r in rollouts], dtype=NUMBERS[name])
        for name in ("uses", "last_use", "drawn_in_pass"):
            arrays[name] = np.array([getattr(item, name) for item in self.stored], dtype=np.int64)
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Replace what is stored by what ``state`` returned."""
        prompts = np.split(state["prompt"], np.cumsum(state["prompt_length"])[:-1])
        ends = np.cumsum(state["length"])[:-1]
        tokens, log_probs = np.split(state["tokens"], ends), np.split(state["log_probs"], ends)
        numbers = zip(*(state[name].tolist() for name in NUMBERS), strict=True)
        # Arrays of an empty buffer split into one empty piece.
        rollouts = [
            Rollout(prompt, token, log_prob, *number)
            for prompt, token, log_prob, number in zip(
                prompts, tokens, log_probs, numbers, strict=False
            )
        ]
        counts = (state[name].tolist() for name in ("uses", "last_use", "drawn_in_pass"))
        self.stored = [
            Stored(rollout, uses, last_use, bool(drawn))
            for rollout, uses, last_use, drawn in zip(rollouts, *counts, strict=True)
        ]
        self.nbytes = sum(rollout.nbytes for rollout in rollouts)
