"""Which replay designs a sweep compares: the grid, smaller batches, and the predictions."""

from dataclasses import dataclass
from typing import Literal

from sim.buffer import MAX_CAPACITY
from sim.settings import SweepConfig
from theory import optimal_design

Draw = Literal["without", "with"]
Start = Literal["full", "growing"]
SMALLER_BATCHES = (2, 4, 8)


@dataclass(frozen=True)
class Design:
    """One way to use the buffer: batch, new rollouts, capacity, and how batches are drawn."""

    batch_size: int
    rollouts_per_update: int
    buffer_size: int
    draw: Draw
    start: Start

    @property
    def replay_ratio(self) -> float:
        """Mean uses of a rollout, y = B/R."""
        return self.batch_size / self.rollouts_per_update

    @property
    def staleness_horizon(self) -> float:
        """Updates a rollout stays, x = N/R."""
        return self.buffer_size / self.rollouts_per_update


@dataclass(frozen=True)
class Prediction:
    """What the theory says at one cost_gen / cost_train: design, verdict, cost ratio."""

    gen_train_ratio: float
    design: Design
    verdict: str
    cost_ratio: float


@dataclass(frozen=True)
class Plan:
    """Every design of a sweep, by its role."""

    on_policy: Design
    grid: tuple[Design, ...]
    smaller: tuple[Design, ...]
    predicted: tuple[Prediction, ...]

    @property
    def designs(self) -> tuple[Design, ...]:
        """All designs, each once."""
        extra = tuple(prediction.design for prediction in self.predicted)
        return tuple(dict.fromkeys((self.on_policy, *self.grid, *self.smaller, *extra)))


def design_of(batch_size: int, new: int, stored: int, draw: Draw, start: Start) -> Design:
    """Return a design; a buffer no larger than the first batch has nothing left to grow to."""
    filled_at_once = stored <= max(batch_size, new)
    return Design(batch_size, new, stored, draw, "full" if filled_at_once else start)


def on_policy(batch_size: int) -> Design:
    """Return the design that trains once on every rollout and stores nothing."""
    return Design(batch_size, batch_size, batch_size, "without", "full")


def whole(value: float, what: str, unit: int) -> int:
    """Return value as an integer, or raise ValueError if it is not a positive multiple of unit."""
    nearest = round(value)
    if nearest < 1 or abs(value - nearest) > 1e-9 * nearest or nearest % unit:
        raise ValueError(f"{what} must be a positive multiple of {unit}, got {value:g}")
    return nearest


def grid_design(config: SweepConfig, horizon: float, ratio: float) -> Design | None:
    """Return the grid's design at (x, y), None where N < B cannot be drawn without replacement."""
    unit = config.num_generations
    new = whole(config.batch_size / ratio, f"R = batch_size / replay ratio {ratio:g}", unit)
    stored = whole(horizon * new, f"N = horizon {horizon:g} x R {new}", unit)
    if stored < new:
        raise ValueError(f"horizons must be >= 1 update, got {horizon:g}")
    if stored > MAX_CAPACITY:
        raise ValueError(f"N = horizon {horizon:g} x R {new} must be <= {MAX_CAPACITY}")
    if config.draw == "without" and stored < config.batch_size:
        return None
    return design_of(config.batch_size, new, stored, config.draw, config.start)


def predicted_design(config: SweepConfig, gen_train_ratio: float) -> Prediction:
    """Return what the theory predicts; N < B is drawn with replacement, as its bound assumes."""
    found = optimal_design(
        gen_train_ratio, 1.0, batch_size=config.batch_size, num_generations=config.num_generations
    )
    design = on_policy(config.batch_size)
    if found.verdict != "on_policy":
        draw = "with" if found.with_replacement else config.draw
        new, stored = found.rollouts_per_update, found.buffer_size
        design = design_of(config.batch_size, new, stored, draw, config.start)
    return Prediction(gen_train_ratio, design, found.verdict, found.cost_ratio)


def planned(config: SweepConfig) -> Plan:
    """Return the designs of a sweep; the on-policy run uses each rollout once."""
    size = config.batch_size
    cells = [
        grid_design(config, horizon, ratio)
        for ratio in config.replay_ratios
        for horizon in config.horizons
    ]
    grid = tuple(cell for cell in cells if cell is not None)
    if not grid:
        raise ValueError(
            f"no (horizon, replay ratio) has N >= B for drawing without replacement: horizons "
            f"{config.horizons}, replay_ratios {config.replay_ratios}; add a horizon >= the ratio"
        )
    smaller = tuple(
        on_policy(size // part)
        for part in SMALLER_BATCHES
        if size % (part * config.num_generations) == 0
    )
    predicted = tuple(predicted_design(config, mu) for mu in sorted(config.gen_train_ratios))
    return Plan(on_policy(size), grid, smaller, predicted)
