"""What a study searches: whole designs, step size, draw and loss, around the theory's prediction.

A trial's parameters are real-valued ratios, so that one sampler serves every batch size; the point
they stand for is in whole rollouts. Formulas: y = B/R and x = N/R (P1), with GPUs y = mu T/W (P2),
prediction and the paper's own setting from ``theory.optimal_design``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from optuna.trial import BaseTrial

from theory import Design, optimal_design


@dataclass(frozen=True)
class SpaceConfig:
    """What may vary, and around what."""

    batch_size: int = 64
    """Reference batch (B), rollouts."""
    num_generations: int = 8
    """Rollouts per prompt (G); B, R and N are multiples of it."""
    batch_parts: tuple[int, ...] = (1, 2, 4)
    """Batches tried: the reference over each of these."""
    learning_rate: float = 3e-5
    """Step size of the reference, the middle of the range."""
    learning_rate_down: float = 8.0
    """Smallest step size: the reference's over this, >= 1. Replay and small batches need less."""
    learning_rate_up: float = 2.0
    """Largest step size: the reference's times this, >= 1."""
    draws: tuple[str, ...] = ("without",)
    """Buffer strategies."""
    losses: tuple[str, ...] = ("grpo",)
    """Losses."""
    max_staleness_horizon: float = 16.0
    """Longest stay of a rollout in the buffer, updates (x); the prediction's is always inside."""
    gpus: int = 0
    """GPUs to divide into generators and trainers (W, T) instead of choosing a replay ratio;
    0: no split."""


@dataclass(frozen=True)
class Point:
    """One way to train, as an objective takes it."""

    batch_size: int
    rollouts_per_update: int
    buffer_size: int
    learning_rate: float
    draw: str
    loss: str
    num_generations: int

    def record(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Space:
    """Ranges of a study, set by the prediction.

    Attributes:
        config: what may vary.
        gen_train_ratio: mu.
        replay_ratio: largest y.
        staleness_horizon: largest x.
    """

    config: SpaceConfig
    gen_train_ratio: float
    replay_ratio: float
    staleness_horizon: float

    def suggested(self, trial: BaseTrial) -> Point:
        """Return the point of a trial."""
        config = self.config
        part = trial.suggest_categorical("batch_part", config.batch_parts)
        batch = config.batch_size // int(part)
        if config.gpus:
            trainers = trial.suggest_int("num_trainers", 1, config.gpus - 1)
            ratio = max(1.0, self.gen_train_ratio * trainers / (config.gpus - trainers))
        else:
            ratio = trial.suggest_float("replay_ratio", 1, self.replay_ratio, log=True)
        horizon = trial.suggest_float("staleness_horizon", 1, self.staleness_horizon, log=True)
        low, high = self.learning_rates
        rate = trial.suggest_float("learning_rate", low, high, log=True) if low < high else low
        draw = str(trial.suggest_categorical("draw", config.draws))
        loss = str(trial.suggest_categorical("loss", config.losses))
        return self.point(batch, ratio, horizon, rate, draw, loss)

    @property
    def learning_rates(self) -> tuple[float, float]:
        """Smallest and largest step size."""
        config = self.config
        rate = config.learning_rate
        return rate / config.learning_rate_down, rate * config.learning_rate_up

    def point(
        self, batch: int, ratio: float, horizon: float, rate: float, draw: str, loss: str
    ) -> Point:
        """Return the whole design nearest to a replay ratio and a staleness horizon.

        >>> space = Space(SpaceConfig(), 5.28, 8.0, 16.0)
        >>> space.point(64, 3.0, 2.0, 3e-5, "without", "grpo").rollouts_per_update
        24
        """
        group = self.config.num_generations
        fresh = max(1, round(batch / ratio / group)) * group
        least = fresh if draw == "with" else max(fresh, batch)
        size = max(least, round(fresh * horizon / group) * group)
        return Point(batch, fresh, size, rate, draw, loss, group)

    def parameters(self, design: tuple[int, int, int], rate: float | None = None) -> dict[str, Any]:
        """Return the parameters of a trial that runs (B, R, N), at the reference's step size."""
        batch, fresh, size = design
        ratio = {"replay_ratio": batch / fresh}
        if self.config.gpus:
            ratio = {"num_trainers": self.trainers(batch / fresh)}
        low, high = self.learning_rates
        wanted = self.config.learning_rate if rate is None else min(max(rate, low), high)
        chosen = {"learning_rate": wanted} if low < high else {}
        return {
            "batch_part": self.config.batch_size // batch,
            **ratio,
            "staleness_horizon": size / fresh,
            **chosen,
            "draw": self.config.draws[0],
            "loss": self.config.losses[0],
        }

    def trainers(self, ratio: float) -> int:
        """Return the number of trainers whose replay ratio is nearest to ``ratio``."""
        gpus, mu = self.config.gpus, self.gen_train_ratio
        return min(range(1, gpus), key=lambda t: abs(max(1.0, mu * t / (gpus - t)) - ratio))


def predicted(
    config: SpaceConfig, gen_train_ratio: float, noise_to_batch: float | None
) -> dict[str, Design]:
    """Return the design that the theory predicts and the paper's own, by name."""

    def design(known: float | None) -> Design:
        return optimal_design(
            gen_train_ratio,
            1,
            batch_size=config.batch_size,
            num_generations=config.num_generations,
            noise_to_batch=known,
        )

    return {"prediction": design(noise_to_batch), "paper": design(None)}


def built_space(
    config: SpaceConfig, gen_train_ratio: float, noise_to_batch: float | None
) -> tuple[Space, dict[str, dict[str, Any]]]:
    """Return the space around the prediction, and the parameters to try first, by name.

    Raises:
        ValueError: if a value is out of range.
    """
    check_space(config)
    designs = predicted(config, gen_train_ratio, noise_to_batch)
    batch, group = config.batch_size, config.num_generations
    ratios = [design.replay_ratio for design in designs.values()]
    horizons = [design.staleness_horizon for design in designs.values()]
    space = Space(
        config,
        gen_train_ratio,
        replay_ratio=min(max(4.0, *(2 * ratio for ratio in ratios)), batch / group),
        staleness_horizon=max(config.max_staleness_horizon, *horizons),
    )
    first = {"on-policy": (batch, batch, batch)}
    for name, design in designs.items():
        # Fewer rollouts than a batch cannot be drawn without replacement.
        size = design.buffer_size if config.draws[0] == "with" else max(design.buffer_size, batch)
        first[name] = (batch, design.rollouts_per_update, size)
    found = {name: space.parameters(design) for name, design in first.items()}
    # Rollouts used y times are y times as noisy: the theory's designs are tried at the smaller
    # step size that suits them too.
    slower = config.learning_rate / designs["prediction"].replay_ratio ** 0.5
    found["prediction, smaller steps"] = space.parameters(first["prediction"], slower)
    return space, found


def with_same_together(named: Mapping[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return each of the parameters once, under all of its names.

    >>> with_same_together({"a": {"y": 1}, "b": {"y": 2}, "c": {"y": 1}})
    [('a, c', {'y': 1}), ('b', {'y': 2})]
    """
    found: list[tuple[list[str], dict[str, Any]]] = []
    for name, one in named.items():
        for names, other in found:
            if other == one:
                names.append(name)
                break
        else:
            found.append(([name], one))
    return [(", ".join(names), one) for names, one in found]


def check_space(config: SpaceConfig) -> None:
    """Raise ValueError, naming value and range, for what cannot be searched."""
    batch, group = config.batch_size, config.num_generations
    if group < 1 or batch < group or batch % group:
        raise ValueError(f"batch_size must be a multiple of num_generations = {group}, got {batch}")
    for part in config.batch_parts:
        if part < 1 or batch % (part * group):
            raise ValueError(
                f"batch_parts must divide batch_size = {batch} into multiples of "
                f"num_generations = {group}, got {part}"
            )
    if 1 not in config.batch_parts:
        raise ValueError(f"batch_parts must hold 1, the reference, got {config.batch_parts}")
    if not 0 < config.learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be finite and > 0, got {config.learning_rate}")
    for name in ("learning_rate_down", "learning_rate_up"):
        if not 1 <= getattr(config, name) <= 1000:
            raise ValueError(f"{name} must be in [1, 1000], got {getattr(config, name)}")
    if not config.draws or not config.losses:
        raise ValueError("draws and losses must hold at least one name each, got none")
    if not 2 <= config.max_staleness_horizon < float("inf"):
        raise ValueError(
            f"max_staleness_horizon must be finite and >= 2, got {config.max_staleness_horizon}"
        )
    if config.gpus and config.gpus < 2:
        raise ValueError(f"gpus must be 0 or >= 2, got {config.gpus}")
