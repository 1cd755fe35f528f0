"""GPUs that generate beside GPUs that train: what an update costs when either side may wait.

Model: W generators and T trainers work at once, and an update takes as long as the slower side:
(B/e + c0)/T for training, mu R/W for generation, in training-cost units per GPU; e <= 1 is what
small micro-batches on T trainers leave of the speed, c0 the fixed cost. All W + T GPUs are paid
for. At R = B W / (mu T) neither side waits and it is P2 of arXiv 2604.08706. mu may depend on the
split, as in the paper's own runs: log mu is linear in log(T/W) between measured splits.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        points = sorted((log(t / w), log(mu)) for (w, t), mu in self.by_split.items())
        if not points:
            return self.gen_train_ratio
        places, values = np.array(points).T
        if len(points) == 1 or (np.diff(places) == 0).any():
            if len(set(points)) > 1:
                raise ValueError(f"by_split = {dict(self.by_split)} is not allowed: T/W repeats")
            return float(np.exp(values[0]))
        at = log(split[1] / split[0])
        upper = int(np.clip(np.searchsorted(places, at), 1, len(places) - 1))
        slope = (values[upper] - values[upper - 1]) / (places[upper] - places[upper - 1])
        return float(np.exp(values[upper] + slope * (at - places[upper])))

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
