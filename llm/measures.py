"""What a training run measures about replay: groups, ratios by age, uses of rollouts."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

SMALLEST_STD = 1e-6


def group_advantages(rewards: np.ndarray, scale: bool) -> np.ndarray:
    """Return reward minus group mean, over the group's standard deviation if ``scale``.

    A group whose rewards are all equal gets advantage 0. The deviation is the population's, as
    for a group that is all there is. Source: arXiv 2604.08706, section 5.

    Args:
        rewards: (P, G).
        scale: whether to divide by the deviation; needs G >= 2.

    >>> group_advantages(np.array([[1.0, 0.0], [1.0, 1.0]]), scale=True).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if not scale:
        return centred
    std = rewards.std(axis=1, keepdims=True)
    return np.where(std > SMALLEST_STD, centred / np.maximum(std, SMALLEST_STD), 0.0)


def zero_variance_share(rewards: np.ndarray) -> float:
    """Return the share of groups, rewards (P, G), that teach nothing: all rewards equal."""
    return float(np.mean(rewards.std(axis=1) <= SMALLEST_STD))


def ess_fraction(log_ratios: np.ndarray) -> float:
    """Return the effective sample size of importance weights over their number, in (0, 1].

    (sum w)^2 / (n sum w^2) with w = exp(log_ratios).

    >>> ess_fraction(np.zeros(4))
    1.0
    """
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))


def by_age(
    ages: np.ndarray, log_ratios: Sequence[np.ndarray], cut: Sequence[np.ndarray]
) -> dict[str, list[float]]:
    """Return ratio statistics of a batch, one entry an age.

    Args:
        ages: (B,), updates.
        log_ratios: log pi / pi_old of every rollout's tokens, (T_i,) each.
        cut: whether the loss cut a token's gradient, (T_i,) bool each.

    Returns:
        Lists over the ages present, ascending. ``ess``: of sequence ratios (products over
        tokens), as a fraction of the rollouts. ``ratio_mean``, ``ratio_second_moment``: of token
        ratios. ``log_ratio_second_moment``: of token log ratios. ``sequence_ratio_mean``: of
        sequence ratios. ``clip_share``: tokens cut.
    """
    rows = []
    for age in np.unique(ages):
        members = np.flatnonzero(ages == age).tolist()
        logs = np.concatenate([log_ratios[i] for i in members]).astype(np.float64)
        sequence = np.array([log_ratios[i].sum(dtype=np.float64) for i in members])
        # A ratio too large for a float is logged as infinity.
        with np.errstate(over="ignore"):
            rows.append(
                {
                    "age": int(age),
                    "rollouts": len(members),
                    "ess": ess_fraction(sequence),
                    "ratio_mean": float(np.exp(logs).mean()),
                    "ratio_second_moment": float(np.exp(2 * logs).mean()),
                    "log_ratio_second_moment": float(np.square(logs).mean()),
                    "sequence_ratio_mean": float(np.exp(sequence).mean()),
                    "clip_share": float(np.concatenate([cut[i] for i in members]).mean()),
                }
            )
    return {name: [row[name] for row in rows] for name in rows[0]}


def counts(values: Iterable[int | str]) -> dict[str, int]:
    """Return how often each value occurs, keys as text, numbers ascending before words.

    >>> counts([3, "new", 0, 3])
    {'0': 1, '3': 2, 'new': 1}
    """
    found = Counter(values)
    ordered = sorted(found, key=lambda value: (isinstance(value, str), value))
    return {str(value): found[value] for value in ordered}
