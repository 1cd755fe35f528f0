"""GPUs that generate beside GPUs that train: what an update costs when either side may wait.

Model: W generators and T trainers work at once, and an update takes as long as the slower side:
(B/e + c0)/T for training, mu R/W for generation, in training-cost units per GPU; e <= 1 is what
small micro-batches on T trainers leave of the speed, c0 the fixed cost. All W + T GPUs are paid
for. At R = B W / (mu T) neither side waits and it is P2 of arXiv 2604.08706. mu may depend on the
split, as in the paper's own runs, and on the batch: log mu is linear in log(T/W) between measured
splits, and in log B between the batches measured at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from theory.quantities import positive, whole
from theory.sampling import Array
from theory.split import gpu_splits


@dataclass(frozen=True)
class GpuPool:
    """The GPUs of a job and how fast each side is.

    Attributes:
        gpus: W + T, >= 2.
        gen_train_ratio: mu where no measurement by split is given, > 0.
        by_split: mu measured at (W, T) splits, any number of them.
        efficiency: share of the training speed left with T trainers, above 0 and at most 1; 1
            where T is not named.
    """

    gpus: int
    gen_train_ratio: float
    by_split: Mapping[tuple[int, int], float] = field(default_factory=dict)
    efficiency: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers."""
        whole("gpus", self.gpus, low=2)
        positive("gen_train_ratio", self.gen_train_ratio)
        for split, value in self.by_split.items():
            if not isinstance(split, tuple) or len(split) != 2:
                raise ValueError(f"split = {split!r} is not allowed: it must be (W, T)")
            for name, count in zip(("num_generators", "num_trainers"), split, strict=True):
                whole(f"{name} of split {split}", count)
            positive(f"gen_train_ratio at split {split}", value)
        for trainers, share in self.efficiency.items():
            whole("num_trainers", trainers)
            if not 0 < positive(f"efficiency of {trainers} trainers", share) <= 1:
                raise ValueError(
                    f"efficiency of {trainers} trainers = {share} is not allowed: it is at most 1"
                )

    def splits(self) -> tuple[tuple[int, int], ...]:
        """All (W, T) with W + T = gpus.

        >>> GpuPool(3, 5.28).splits()
        ((2, 1), (1, 2))
        """
        return tuple(sorted(gpu_splits(self.gpus), reverse=True))

    def ratio(self, split: tuple[int, int]) -> float:
        """Cost_gen / cost_train at a split (P4 of arXiv 2604.08706 at each measured one).

        One measurement holds at every split; of several, the two nearest in log(T/W) are joined
        by a power law, which also extends beyond the outermost.

        >>> pool = GpuPool(8, 5.28, {(6, 2): 5.34, (4, 4): 7.0})
        >>> round(pool.ratio((5, 3)), 4)
        6.1722
        """
        points = sorted((t / w, mu) for (w, t), mu in self.by_split.items())
        if not points:
            return self.gen_train_ratio
        places, values = zip(*points, strict=True)
        if len(set(places)) < len(set(points)):
            raise ValueError(f"by_split = {dict(self.by_split)} is not allowed: T/W repeats")
        return power_line(places, values, split[1] / split[0])

    def scaled(self, factor: float) -> GpuPool:
        """The same GPUs with every mu multiplied by a factor.

        >>> round(GpuPool(8, 5.0, {(6, 2): 4.0}).scaled(2.0).ratio((6, 2)), 9)
        8.0
        """
        by_split = {split: value * factor for split, value in self.by_split.items()}
        return replace(self, gen_train_ratio=self.gen_train_ratio * factor, by_split=by_split)

    def update_time(
        self, split: tuple[int, int], batch: Array, fresh: Array, fixed_cost: float
    ) -> Array:
        """Wall-clock time of an update, training cost of one rollout on one GPU.

        Args:
            split: (W, T).
            batch: B, rollouts.
            fresh: R, rollouts.
            fixed_cost: c0, training-cost units.

        Returns:
            Time, broadcast shape; times W + T it is the cost, which at the R of P4 is P2 of
            arXiv 2604.08706.

        >>> pool = GpuPool(8, 6.0)
        >>> float(8 * pool.update_time((6, 2), np.array(60), np.array(30), 0.0))  # 60 (1 + W/T)
        240.0
        """
        generators, trainers = split
        training = (batch / self.efficiency.get(trainers, 1.0) + fixed_cost) / trainers
        return np.maximum(training, self.ratio(split) * fresh / generators)


def power_line(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """A value between measured ones: the two nearest places joined by a power law.

    Args:
        places: where it was measured, ascending, > 0; one holds everywhere.
        values: what was measured there, > 0; here mu (P4 of arXiv 2604.08706).
        at: where it is wanted, > 0; beyond the outermost places their power law goes on.

    Returns:
        The value.

    >>> round(power_line([1, 4], [3, 6], 2), 4)
    4.2426
    """
    if len(set(places)) == 1:
        return float(values[0])
    x, y = np.log(places), np.log(values)
    upper = int(np.clip(np.searchsorted(x, log(at)), 1, len(x) - 1))
    slope = (y[upper] - y[upper - 1]) / (x[upper] - x[upper - 1])
    return float(np.exp(y[upper] + slope * (log(at) - x[upper])))


def ratios_at_batch(
    measured: Mapping[tuple[int, ...], float], batch_size: int
) -> dict[tuple[int, int], float]:
    """Cost_gen / cost_train by split at one batch size, from measurements at several.

    Args:
        measured: mu by (W, T), at any batch, or by (W, T, B); each split in one way only.
        batch_size: B wanted, rollouts.

    Returns:
        mu by (W, T), by a power law in B between the batches of each split (P4's mu).

    Raises:
        ValueError: if a key is neither, or a split is given both with and without a batch.

    >>> found = ratios_at_batch({(6, 2): 5.3, (4, 4, 32): 8.0, (4, 4, 128): 6.0}, 64)
    >>> {split: round(mu, 3) for split, mu in found.items()}
    {(6, 2): 5.3, (4, 4): 6.928}
    """
    by_split: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for key, mu in measured.items():
        if not (isinstance(key, tuple) and len(key) in (2, 3)):
            raise ValueError(f"split = {key!r} is not allowed: it must be (W, T) or (W, T, B)")
        batch = whole(f"batch_size of split {key}", key[2]) if len(key) == 3 else 0
        positive(f"gen_train_ratio at split {key}", mu)
        by_split.setdefault((key[0], key[1]), []).append((batch, mu))
    found = {}
    for split, points in by_split.items():
        batches, values = zip(*sorted(points), strict=True)
        if len(points) > 1 and 0 in batches:
            raise ValueError(f"split = {split} is not allowed both with and without a batch")
        found[split] = power_line(batches, values, batch_size)
    return found
