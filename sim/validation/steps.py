"""Search of a design's best step size on the endless grid 2^(k/2), k whole: no edge to end on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEFT_OUT = 0.05


class Score(NamedTuple):
    """How a step size did on its typical seeds: misses of the target, mean updates, last gaps.

    Smaller is better, in this order: where every seed misses, the gap tells which way to go.
    """

    missed: int
    updates: float
    gap: float = 0.0


def typical(values: np.ndarray) -> np.ndarray:
    """Return the values along the last axis, ascending, without the largest twentieth.

    A run in a hundred may hang on a plateau for ever; in practice it is started again. Leaving out
    the slowest twentieth of the seeds of every design alike keeps such runs from being the mean.

    >>> typical(np.arange(20)).max()
    np.int64(18)
    """
    count = values.shape[-1]
    return np.sort(values, axis=-1)[..., : count - int(LEFT_OUT * count)]


def step_size(index: int) -> float:
    """Return 2^(k/2), to nine digits."""
    return float(f"{2.0 ** (index / 2):.9g}")


def best_index(scores: Mapping[int, Score]) -> int:
    """Return the k with the best score; of equal ones the smallest."""
    return min(sorted(scores), key=lambda index: scores[index])


def next_indices(scores: Mapping[int, Score], first: Sequence[int]) -> tuple[int, ...]:
    """Return the k to try next: the first ones, then the missing neighbours of the best.

    Empty once both neighbours of the best are known: it is then a local minimum over k.

    >>> next_indices({}, [3])
    (3,)
    >>> next_indices({2: Score(0, 9.0), 3: Score(0, 8.0), 4: Score(0, 7.0)}, [3])
    (5,)
    """
    if not scores:
        return tuple(first)
    best = best_index(scores)
    return tuple(index for index in (best - 1, best + 1) if index not in scores)
