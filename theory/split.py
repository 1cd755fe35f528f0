"""How a GPU split becomes a replay ratio, and rollout counts become ratios.

Model: W GPUs generate and T train, side by side, neither waiting for the other. A rollout costs mu
times more to generate than to train on once, so a batch of B sees R = B W / (mu T) new rollouts:
the split fixes the replay ratio y = B/R, and the buffer fixes the horizon x = N/R.

Assumes mu does not depend on the split. Measured replay ratios exceed mu T/W as T/W grows (7B
runs: 1.78, 3.42, 7.0 where P4 gives 1.76, 3.17, 5.28), so it holds only roughly.

Formulas from arXiv 2604.08706.
"""

from __future__ import annotations

from typing import NamedTuple

from theory.quantities import positive, whole


class Counts(NamedTuple):
    """Rollout counts of a design, real numbers before any rounding.

    Attributes:
        batch_size: B, rollouts per update.
        rollouts_per_update: R, new rollouts per update.
        buffer_size: N, rollouts.
    """

    batch_size: float
    rollouts_per_update: float
    buffer_size: float


class Ratios(NamedTuple):
    """The two ratios that P8 depends on.

    Attributes:
        staleness_horizon: x = N/R, updates a rollout stays.
        replay_ratio: y = B/R, mean uses per rollout.
    """

    staleness_horizon: float
    replay_ratio: float


def compute_ratio(num_generators: int, num_trainers: int, gen_train_ratio: float) -> float:
    """Cost of an update with a buffer over one without, gamma = (1 + W/T) / (1 + mu).

    Formula P3, arXiv 2604.08706. The paper's Table 1 row, said to be for mu 5.28, needs a mu
    of 5.18 to 5.20.

    Args:
        num_generators: W, GPUs, >= 1.
        num_trainers: T, GPUs, >= 1.
        gen_train_ratio: mu, > 0.

    Returns:
        gamma, no unit; below 1 an update is cheaper with the buffer.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(compute_ratio(6, 2, 5.28), 4)
    0.6369
    """
    generators, trainers = _split(num_generators, num_trainers)
    return (1 + generators / trainers) / (1 + positive("gen_train_ratio", gen_train_ratio))


def split_replay_ratio(num_generators: int, num_trainers: int, gen_train_ratio: float) -> float:
    """Mean uses per rollout of a GPU split when neither side idles, y = mu T/W.

    Formula P4 solved for y, arXiv 2604.08706.

    Args:
        num_generators: W, GPUs, >= 1.
        num_trainers: T, GPUs, >= 1.
        gen_train_ratio: mu, > 0.

    Returns:
        y = B/R, no unit.

    Raises:
        ValueError: if an argument is out of range.

    >>> round(split_replay_ratio(6, 2, 5.28), 4)
    1.76
    """
    generators, trainers = _split(num_generators, num_trainers)
    return positive("gen_train_ratio", gen_train_ratio) * trainers / generators


def gen_train_ratio_from_counts(
    rollouts_trained: int, rollouts_generated: int, num_generators: int, num_trainers: int
) -> float:
    """Estimate of mu from an asynchronous run, (K_train/T) / (K_infer/W).

    Formula P4, arXiv 2604.08706. Valid only when neither side idles.

    Args:
        rollouts_trained: K_train, updates times batch size, repeats counted, >= 1.
        rollouts_generated: K_infer, unique rollouts, >= 1.
        num_generators: W, GPUs, >= 1.
        num_trainers: T, GPUs, >= 1.

    Returns:
        mu, no unit.

    Raises:
        ValueError: if an argument is not a whole number >= 1.

    >>> gen_train_ratio_from_counts(1760, 1000, 6, 2)
    5.28
    """
    trained = whole("rollouts_trained", rollouts_trained)
    generated = whole("rollouts_generated", rollouts_generated)
    generators, trainers = _split(num_generators, num_trainers)
    return (trained / trainers) / (generated / generators)


def ratios_of_counts(batch_size: float, rollouts_per_update: float, buffer_size: float) -> Ratios:
    """The ratios x = N/R and y = B/R of a design (variables of P8, arXiv 2604.08706).

    Args:
        batch_size: B, rollouts per update, > 0.
        rollouts_per_update: R, new rollouts per update, > 0.
        buffer_size: N, rollouts, > 0.

    Returns:
        ``Ratios(staleness_horizon, replay_ratio)``.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> ratios_of_counts(60, 30, 120)
    Ratios(staleness_horizon=4.0, replay_ratio=2.0)
    """
    fresh = positive("rollouts_per_update", rollouts_per_update)
    size = positive("buffer_size", buffer_size)
    return Ratios(size / fresh, positive("batch_size", batch_size) / fresh)


def counts_of_ratios(staleness_horizon: float, replay_ratio: float, batch_size: float) -> Counts:
    """The rollout counts R = B/y and N = x R of a design (variables of P8, arXiv 2604.08706).

    Args:
        staleness_horizon: x, updates a rollout stays, > 0.
        replay_ratio: y, mean uses per rollout, > 0.
        batch_size: B, rollouts per update, > 0.

    Returns:
        ``Counts(batch_size, rollouts_per_update, buffer_size)``, not rounded.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> counts_of_ratios(4, 2, 60)
    Counts(batch_size=60.0, rollouts_per_update=30.0, buffer_size=120.0)
    """
    batch = positive("batch_size", batch_size)
    fresh = batch / positive("replay_ratio", replay_ratio)
    return Counts(batch, fresh, positive("staleness_horizon", staleness_horizon) * fresh)


def trainers_per_generator(replay_ratio: float, gen_train_ratio: float) -> float:
    """GPUs that train per GPU that generates so that neither idles, T/W = y / mu.

    Formula P4 solved for the split, arXiv 2604.08706; the inverse of ``split_replay_ratio``.

    Args:
        replay_ratio: y = B/R, mean uses per rollout, > 0.
        gen_train_ratio: mu, > 0.

    Returns:
        T/W, no unit.

    Raises:
        ValueError: if an argument is not a finite number > 0.

    >>> round(trainers_per_generator(1.76, 5.28), 4)
    0.3333
    """
    return positive("replay_ratio", replay_ratio) / positive("gen_train_ratio", gen_train_ratio)


def gpu_splits(gpus: int) -> tuple[tuple[int, int], ...]:
    """Every split (W, T) of some GPUs into generators and trainers (P4, arXiv 2604.08706).

    Args:
        gpus: GPUs to divide, 2 to 100,000.

    Returns:
        The splits, most generators last.

    Raises:
        ValueError: if ``gpus`` is out of range.

    >>> gpu_splits(4)
    ((1, 3), (2, 2), (3, 1))
    """
    total = whole("gpus", gpus, low=2, high=100_000)
    return tuple((generators, total - generators) for generators in range(1, total))


def _split(num_generators: int, num_trainers: int) -> tuple[int, int]:
    return whole("num_generators", num_generators), whole("num_trainers", num_trainers)
