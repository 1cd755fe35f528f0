"""Command line of the theory: a recommendation for one job, its GPU splits, the derivations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from theory.command import run_command
from theory.cost import gen_train_ratio
from theory.derivation import as_latex, as_text, derivations
from theory.recommend import Recommend, parsed_split, recommend
from theory.split import compute_ratio, split_replay_ratio

PROG = "python -m theory"


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
