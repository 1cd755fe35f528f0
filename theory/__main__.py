"""Command line of the theory: a recommendation for one job, its GPU splits, the derivations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from theory.command import run_command
from theory.cost import gen_train_ratio
from theory.derivation import as_latex, as_text, derivations
from theory.design import Design
from theory.plan import optimal_design
from theory.split import compute_ratio, split_replay_ratio

PROG = "python -m theory"


@dataclass(frozen=True)
class Recommend:
    """Recommend a replay ratio, a buffer and, with --gpus, a GPU split for one job."""

    cost_gen: float
    """Cost of generating one rollout, any unit (GPU-seconds best), > 0."""
    batch_size: int
    """Rollouts per update, a multiple of --num-generations."""
    cost_train: float = 1.0
    """Cost of one forward and backward pass on one rollout, same unit as --cost-gen, > 0."""
    rho: float = 1.0
    """Correlation of the gradient noise of rollouts, 0 to 1, no unit."""
    alpha: float = 0.1
    """Exponent of noise over age, sigma(s) = s^alpha with s in updates, > 0, no unit."""
    gpus: int | None = None
    """GPUs to divide between generation and training, >= 2."""
    num_generations: int = 1
    """Rollouts per prompt; new rollouts and buffer are multiples of it."""
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass(frozen=True)
class Table:
    """Show, for each GPU split, its compute ratio gamma (P3) and its replay ratio y (P4)."""

    cost_gen: float
    """Cost of generating one rollout, any unit (GPU-seconds best), > 0."""
    cost_train: float = 1.0
    """Cost of one forward and backward pass on one rollout, same unit as --cost-gen, > 0."""
    splits: tuple[str, ...] = ("7,1", "6,2", "5,3", "4,4", "3,5", "2,6", "1,7")
    """GPU splits W,T: GPUs that generate, GPUs that train."""


@dataclass(frozen=True)
class Derive:
    """Derive the formulas step by step, each step proved by SymPy as it is printed."""

    only: str | None = None
    """Formula id, such as P10 or L3; all of them if not given."""
    latex: bool = False
    """Print LaTeX for the body of a document instead of text."""


def recommend(config: Recommend) -> None:
    """Print the design of one job."""
    design = optimal_design(
        config.cost_gen,
        config.cost_train,
        batch_size=config.batch_size,
        rho=config.rho,
        alpha=config.alpha,
        gpus=config.gpus,
        num_generations=config.num_generations,
    )
    print(json.dumps(record(design), allow_nan=False) if config.json else text(design))


def table(config: Table) -> None:
    """Print gamma and y of the splits."""
    mu = gen_train_ratio(config.cost_gen, config.cost_train)
    splits = [parsed_split(split) for split in config.splits]
    print(
        f"{'W,T':>7}  {'gamma':>8}  {'y':>8}   (gamma: cost of an update over one without buffer)"
    )
    for split in splits:
        gamma, uses = compute_ratio(*split, mu), split_replay_ratio(*split, mu)
        name = f"{split[0]},{split[1]}"
        print(f"{name:>7}  {gamma:>8.4f}  {uses:>8.4f}")


def derive(config: Derive) -> None:
    """Print the derivations, a blank line between two."""
    shown = as_latex if config.latex else as_text
    for number, derivation in enumerate(derivations(config.only)):
        print("\n" * (number > 0) + shown(derivation))


def record(design: Design) -> dict[str, Any]:
    """The design as JSON types, the split as ``num_generators`` and ``num_trainers``."""
    fields = asdict(design)
    generators, trainers = fields.pop("split") or (None, None)
    return {**fields, "num_generators": generators, "num_trainers": trainers}


def text(design: Design) -> str:
    """The design in at most twelve lines."""
    lines = [
        f"verdict              {design.verdict}",
        f"replay ratio         {design.replay_ratio:.4g} uses per rollout",
        f"new rollouts         {design.rollouts_per_update} per update of {design.batch_size}",
        f"buffer size          {design.buffer_size} rollouts "
        f"({design.staleness_horizon:.4g} updates)",
        f"cost ratio           {design.cost_ratio:.4g} of the bound's on-policy at this batch",
    ]
    if design.split is not None:
        lines.insert(4, "GPU split            {} generate, {} train".format(*design.split))
    lines += [f"why: {reason}" for reason in design.why[:3]]
    return "\n".join(lines + [f"warning: {warning}" for warning in design.warnings])


def parsed_split(split: str) -> tuple[int, int]:
    """(W, T) of a text such as ``6,2``.

    Args:
        split: two whole numbers >= 1, in decimal digits, with a comma between.

    Returns:
        (W, T), GPUs.

    Raises:
        ValueError: if the text is anything else.

    >>> parsed_split("6,2")
    (6, 2)
    """
    parts = split.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"split = {split!r} is not allowed: it must be W,T, as in 6,2")
    generators, trainers = int(parts[0]), int(parts[1])
    if not (generators and trainers):
        raise ValueError(f"split = {split!r} is not allowed: W and T must be >= 1")
    return generators, trainers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments after the program name; None reads them from the process.

    Returns:
        0, or 2 after a usage error.

    >>> main(["table", "--cost-gen", "5.28", "--splits", "6,2"])
        W,T     gamma         y   (gamma: cost of an update over one without buffer)
        6,2    0.6369    1.7600
    0
    """
    return run_command(
        {
            "recommend": (Recommend, recommend),
            "table": (Table, table),
            "derive": (Derive, derive),
        },
        argv,
        PROG,
        description="Closed-form answers: does replay pay in an RL job, and with which design?",
    )


if __name__ == "__main__":
    raise SystemExit(main())
