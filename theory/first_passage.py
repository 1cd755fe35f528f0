"""The first whole time at which a sum of exponentials is within a target, proved for every time.

Model: f(tau) = floor + sum over modes of excess exp(tau log), log <= 0. A mode with excess > 0
falls to its limit and one with excess < 0 rises to it. Hence f on an interval is at least what the
falling modes are at its end plus what the rising modes are at its start. Intervals where this is
above the target are passed over and doubled, others halved down to single times, so no dip is
missed however short. Takes O(log U) evaluations unless f stays close above the target.

Used for Q7 of this project, on the designs of arXiv 2604.08706.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from theory.sampling import Array


def first_passage(
    floor: Array, excess: Array, log_factor: Array, target: float, longest: int
) -> Array:
    """Smallest tau >= 1 with floor + sum of excess exp(tau log_factor) <= target (for Q7).

    Args:
        floor: limits, shape (lanes,).
        excess: weights of the modes, of either sign, shape (lanes, modes).
        log_factor: logarithm of each mode's factor per unit of time, <= 0, same shape.
        target: value to reach.
        longest: largest tau looked at, whole, >= 0.

    Returns:
        tau, shape (lanes,); infinite where there is none up to ``longest``.

    >>> two = np.array([[2.0, -1.0]])
    >>> first_passage(np.array([0.5]), two, np.array([[-0.5, -0.05]]), 0.1, 100).tolist()
    [3.0]
    """
    found, lane = np.full(floor.size, np.inf), np.arange(floor.size)
    falling, rising = np.maximum(excess, 0), np.maximum(-excess, 0)
    done, width, left = np.zeros(lane.size, int), np.ones(lane.size, int), rising.sum(axis=1)
    while True:
        going = _going((floor - left <= target) & (done < longest) & np.isinf(found[lane]))
        lane, done, width = lane[going], done[going], width[going]
        floor, left, log_factor = floor[going], left[going], log_factor[going]
        falling, rising = falling[going], rising[going]
        if not lane.size:
            return found
        width = np.minimum(width, longest - done)
        power = np.exp(log_factor * (done + width)[:, None])
        over, under = (np.einsum("lm,lm->l", part, power) for part in (falling, rising))
        possible, single = floor + over - left <= target, width == 1
        hit = single & (floor + over - under <= target)
        found[lane[hit]] = done[hit] + 1
        passed = single | ~possible
        done, left = np.where(passed, done + width, done), np.where(passed, under, left)
        width = np.where(possible, np.maximum(width // 2, 1), 2 * width)


def _going(going: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """The lanes that go on, as a slice without copy where all do."""
    return slice(None) if going.all() else going
