"""Batches drawn from a replay buffer: the design in whole rollouts, and the noise of one batch.

Model: a FIFO buffer holds the N newest rollouts and gets R per update. Rollouts are whole, so when
R does not divide N the oldest row is partial: N - floor(N/R) R of it are left. B of the N are
drawn uniformly, with or without replacement within the batch. The noise of a rollout's gradient
has variance sigma^2(age), independent between rollouts.

Fails where draws depend on age or on the outcome. Formulas of this project, for the buffer of
arXiv 2604.08706.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.quantities import FloatOrArray, plain, positive, real_array
from theory.staleness import LARGEST_HORIZON, Profile, mean_variance

Array = NDArray[np.float64]


class ReplayDesign(NamedTuple):
    """Whole numbers of rollouts and the kind of draw, arrays of one shape.

    Attributes:
        batch_size: B, rollouts drawn per update.
        rollouts_per_update: R, new rollouts per update.
        buffer_size: N, rollouts stored.
        replace: whether a batch may hold one rollout twice.
    """

    batch_size: Array
    rollouts_per_update: Array
    buffer_size: Array
    replace: NDArray[np.bool_]


def replay_design(
    batch_size: ArrayLike,
    rollouts_per_update: ArrayLike,
    buffer_size: ArrayLike,
    replace: ArrayLike = False,
) -> ReplayDesign:
    """Designs checked and brought to one shape, for Q1 to Q7.

    Args:
        batch_size: B, whole rollouts, >= 1, any shape; <= N without replacement.
        rollouts_per_update: R, whole rollouts, 1 to N, any shape that broadcasts.
        buffer_size: N, whole rollouts, at most 10,000,000 R, any shape that broadcasts.
        replace: draw with replacement within a batch, bool, any shape that broadcasts.

    Returns:
        The designs, broadcast shape.

    Raises:
        ValueError: if an argument is out of range, not whole, or not bool.

    >>> replay_design([32, 64], 8, 128).buffer_size.tolist()
    [128.0, 128.0]
    """
    again = np.asarray(replace)
    if again.dtype != np.bool_:
        raise ValueError(f"replace = {replace!r} is not allowed: it must be True or False")
    counts = np.broadcast_arrays(
        whole_array("batch_size", batch_size, low=1),
        whole_array("rollouts_per_update", rollouts_per_update, low=1),
        whole_array("buffer_size", buffer_size, low=1),
        again,
    )
    batch, fresh, size, again = counts
    _refuse("rollouts_per_update", fresh, fresh > size, "it must be <= buffer_size")
    _refuse("buffer_size", size, size > LARGEST_HORIZON * fresh, "it is beyond 10,000,000 R")
    too_large = ~again & (batch > size)
    _refuse("batch_size", batch, too_large, "without replacement it must be <= buffer_size")
    return ReplayDesign(batch, fresh, size, again)


def stored_at(design: ReplayDesign, age: int) -> Array:
    """Rollouts of one age in a full buffer: R, what is left of the oldest row, or none (Q3).

    Args:
        design: the designs.
        age: updates, >= 0.

    Returns:
        Rollouts, shape of ``design``.

    >>> [stored_at(replay_design(4, 2, 5), age).item() for age in range(4)]
    [2.0, 2.0, 1.0, 0.0]
    """
    fresh = design.rollouts_per_update
    return np.clip(design.buffer_size - age * fresh, 0, fresh)


def oldest_age(design: ReplayDesign) -> int:
    """The largest age of a rollout in any of the full buffers, ceil(N/R) - 1 (Q3).

    Args:
        design: the designs.

    Returns:
        Updates.

    >>> oldest_age(replay_design(4, 2, 5))
    2
    """
    return int(np.max(np.ceil(design.buffer_size / design.rollouts_per_update))) - 1


def stored_variance(design: ReplayDesign, profile: Profile | float = 1.0) -> FloatOrArray:
    """Mean variance of the rollouts in a full buffer, sbar2(x) with x = N/R (in Q1 and Q2).

    Args:
        design: the designs.
        profile: variance by age, or one number for every age.

    Returns:
        Variance in units of Sigma, shape of ``design``.

    Raises:
        ValueError: if the profile has sigma^2(0) = 0 or is a number that is not > 0.

    >>> stored_variance(replay_design(4, 2, 5), lambda age: 1.0 + age)
    1.8
    """
    if callable(profile):
        return mean_variance(profile, design.buffer_size / design.rollouts_per_update)
    return plain(np.full(design.buffer_size.shape, positive("profile", profile)))


def sampling_variance(design: ReplayDesign) -> FloatOrArray:
    """Variance of a batch mean over that of one rollout: Q1 with replacement, Q2 without.

    Q1 is 1/B + (1 - 1/B)/N, for the pairs of draws that fall on one rollout; Q2 is 1/B.

    Args:
        design: the designs.

    Returns:
        Ratio, 1/rollouts, shape of ``design``.

    >>> sampling_variance(replay_design(32, 8, 32, [False, True])).tolist()
    [0.03125, 0.0615234375]
    """
    batch, size = design.batch_size, design.buffer_size
    return plain(1 / batch + np.where(design.replace, (1 - 1 / batch) / size, 0.0))


def sigma_by_age(profile: Profile | float, oldest: int) -> Array:
    """Noise sigma(s) of rollouts of age s = 0, 1, ..., the square root of the profile (Q3).

    Args:
        profile: variance by age, with sigma^2(0) > 0; or one number > 0 for every age.
        oldest: largest age, updates, >= 0.

    Returns:
        sigma, shape (oldest + 1,).

    Raises:
        ValueError: if a variance is negative or not finite, or sigma^2(0) = 0.

    >>> sigma_by_age(4.0, 2).tolist()
    [2.0, 2.0, 2.0]
    """
    if not callable(profile):
        return np.full(oldest + 1, positive("profile", profile) ** 0.5)
    variances = real_array(f"variance of {profile}", profile(np.arange(oldest + 1)), low=0)
    if variances[0] == 0:
        raise ValueError(f"{profile} is not allowed: sigma^2(0) must be > 0")
    return np.sqrt(variances)


def whole_array(name: str, values: ArrayLike, *, low: int) -> Array:
    """Whole numbers as floats, for counts that enter Q1 to Q7.

    Args:
        name: what to call the values in the error.
        values: integers of any shape; floats, bools and strings are refused.
        low: the smallest value allowed.

    Returns:
        The values as float64, same shape.

    Raises:
        ValueError: naming the first value outside the range, or values that are not integers.

    >>> whole_array("updates", [3, 5], low=1).tolist()
    [3.0, 5.0]
    """
    if np.asarray(values).dtype.kind not in "iu":
        raise ValueError(f"{name} = {values!r} is not allowed: it must be one or more integers")
    return real_array(name, values, low=low, high=2**53)


def _refuse(name: str, values: Array, wrong: NDArray[np.bool_], allowed: str) -> None:
    if wrong.any():
        raise ValueError(f"{name} = {values[wrong][0]:g} is not allowed: {allowed}")
