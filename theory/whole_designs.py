"""The best design in whole rollouts, for a whole batch and, if asked, a whole GPU split.

Model: P8's J (``theory.bound``, arXiv 2604.08706) at whole B, R and N. With a power law, J has one
minimum in N for each R. With any other profile the best N is a multiple of R, because log J is
concave in 1/x between whole horizons; and J has one minimum in R for each horizon. So the whole
numbers beside these minima contain the best design of all, and only they are evaluated.

R and N move in steps of the group size; N >= R and R <= B. Fails where the bound does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from theory.bound import bound_objective, horizon_variance
from theory.optimum import beyond_search, searched_horizons
from theory.split import split_replay_ratio
from theory.staleness import PowerLaw, Profile

LARGEST_BUFFER = 2**53

Pairs = tuple[NDArray[np.float64], NDArray[np.float64]]


class Job(NamedTuple):
    """What is given: costs, noise, batch, and the step in which counts move.

    Attributes:
        gen_train_ratio: mu, > 0.
        rho: correlation of the noise of rollouts, 0 to 1.
        profile: variance by age; a power law has 0 < alpha < 1/2.
        batch_size: B, rollouts per update, a multiple of ``group_size``.
        group_size: G, rollouts; R and N are multiples of it.
    """

    gen_train_ratio: float
    rho: float
    profile: Profile
    batch_size: int
    group_size: int


class WholeDesign(NamedTuple):
    """The best whole design.

    Attributes:
        rollouts_per_update: R.
        buffer_size: N, rollouts.
        cost_ratio: J(N/R, B/R) / J(1, 1), no unit.
        certain: whether horizons beyond the search of a profile are ruled out.
    """

    rollouts_per_update: int
    buffer_size: int
    cost_ratio: float
    certain: bool


def best_whole_design(job: Job, split: tuple[int, int] | None = None) -> WholeDesign:
    """The least P8 (arXiv 2604.08706) over all whole R and N, or over N at a split's own R.

    Args:
        job: costs, noise and batch.
        split: (W, T) that fixes R = B W / (mu T), rounded to whole groups; None leaves R free.

    Returns:
        The design; with ties, one of the best.

    Raises:
        ValueError: if the best buffer is beyond 2**53 rollouts.

    >>> best_whole_design(Job(5.28, 1.0, PowerLaw(0.1), 60, 1))[:2]
    (31, 82)
    """
    fresh, size = _split_designs(job, split) if split else _all_designs(job)
    cost = _objective(job, size / fresh, job.batch_size / fresh)
    best = int(np.argmin(cost))
    if not size[best] < LARGEST_BUFFER:
        raise ValueError(f"{job.profile} is not allowed: the best buffer is beyond 2**53 rollouts")
    on_policy = _objective(job, np.ones(1), np.ones(1))[0]
    return WholeDesign(
        int(fresh[best]), int(size[best]), float(cost[best] / on_policy), _certain(job, cost[best])
    )


def _certain(job: Job, cost: float) -> bool:
    if isinstance(job.profile, PowerLaw):
        return True
    averages = np.asarray(horizon_variance(job.profile, searched_horizons(job.profile)))
    return cost < beyond_search(job.profile, averages, job.gen_train_ratio, job.rho)


def _split_designs(job: Job, split: tuple[int, int]) -> Pairs:
    groups = job.batch_size / job.group_size / split_replay_ratio(*split, job.gen_train_ratio)
    return _with_buffers(job, np.array([job.group_size * float(round(groups))]))


def _all_designs(job: Job) -> Pairs:
    """Pairs (R, N) that contain the best one: each R with the N beside its best horizon."""
    if isinstance(job.profile, PowerLaw):
        return _with_buffers(job, np.arange(job.group_size, job.batch_size + 1.0, job.group_size))
    horizons = searched_horizons(job.profile)
    best_fresh = job.batch_size * np.sqrt((job.rho + 1 / horizons) / job.gen_train_ratio)
    fresh = np.minimum(
        np.maximum(_neighbours(best_fresh, job.group_size), job.group_size), job.batch_size
    )
    return fresh.ravel(), (fresh * horizons).ravel()


def _with_buffers(job: Job, fresh: NDArray[np.float64]) -> Pairs:
    size = _best_horizon(job, job.batch_size / fresh) * fresh
    size = np.maximum(_neighbours(size, job.group_size), fresh)
    return np.broadcast_to(fresh, size.shape).ravel(), size.ravel()


def _neighbours(counts: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return np.stack([np.floor(counts / step), np.ceil(counts / step)]) * step


def _best_horizon(job: Job, uses: NDArray[np.float64]) -> NDArray[np.float64]:
    """X >= 1 with the least J at each y; for a power law where d log J / d log x = 0."""
    noise = job.rho + 1 / uses
    if isinstance(job.profile, PowerLaw):
        return np.maximum((1 / (2 * job.profile.alpha) - 1) / noise, 1.0)
    horizons = searched_horizons(job.profile)
    averages = np.asarray(horizon_variance(job.profile, horizons))
    return horizons[[int(np.argmin(averages * (each + 1 / horizons))) for each in noise]]


def _objective(
    job: Job, horizon: NDArray[np.float64], uses: NDArray[np.float64]
) -> NDArray[np.float64]:
    mu, rho = job.gen_train_ratio, job.rho
    return np.asarray(bound_objective(horizon, uses, mu, profile=job.profile, rho=rho))
