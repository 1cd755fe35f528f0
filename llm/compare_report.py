"""From the logs of a comparison to its tables, picture and headline numbers.

A setting's curve is the median over seeds of pass@1, averaged over SMOOTHING evaluations. The
saving of a setting is 1 - cost at which its curve first reaches the final pass@1 of the reference
(median over seeds of the mean of the last evaluations) over the cost at which the reference's own
curve first does. The best replay setting is chosen on one half of the seeds and priced on the
other, and the other way round; the mean of both is the headline, so that a lucky choice is not
quoted at its own luck. Intervals are 95 % percentile bootstraps over seeds, choice included.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm.many_runs import SMOOTHING
from llm.settings import TrainConfig
from theory.run_folder import replace_text

LAST = 5
RESAMPLES = 1000
PER_SEED = ("pass1", "passk8", "passk1", "entropy", "clip_share", "zero_variance", "ess")
# Headline numbers of docs/llm.json that benchmarks/ measures: what they are, and the command.
MEASURED_ELSEWHERE = {
    "trl_speed_ratio": ("rollouts trained per second over TRL's", "benchmarks/trl_speed.py"),
    "learns_minutes": (
        "minutes of the tiny preset to pass@1 up by 0.35, slower of on-policy and replay",
        "benchmarks/tiny_preset.py",
    ),
    "final_pass1": (
        "pass@1 at its end, lower of on-policy and replay",
        "benchmarks/tiny_preset.py",
    ),
}


@dataclass(frozen=True)
class Curves:
    """One setting at S seeds: E tests of pass@1, K of pass@k, U updates.

    pass1: (S, E). cost: by cost ratio, (E,), the same for all seeds. passk8: (S, K), pass@8.
    passk1: (S, K), pass@1 at temperature 1. entropy: (S,), mean of the last tenth of updates.
    clip_share, zero_variance, ess: (S,), means over the run. updates: of the run.
    """

    pass1: np.ndarray
    cost: dict[str, np.ndarray]
    passk8: np.ndarray
    passk1: np.ndarray
    entropy: np.ndarray
    clip_share: np.ndarray
    zero_variance: np.ndarray
    ess: np.ndarray
    updates: int

    def final_pass1(self, seeds: np.ndarray) -> np.ndarray:
        """Return the median over seeds (..., S') of the mean of the last tests, (...)."""
        return np.median(self.pass1[:, -LAST:].mean(axis=1)[seeds], axis=-1)

    def median_curve(self, seeds: np.ndarray) -> np.ndarray:
        """Return the smoothed median of pass@1 over seeds (..., S'), (..., E)."""
        median = np.median(self.pass1[seeds], axis=-2)
        total = np.cumsum(np.insert(median, 0, 0.0, axis=-1), axis=-1)
        end = np.arange(1, median.shape[-1] + 1)
        first = np.maximum(end - SMOOTHING, 0)
        return (total[..., end] - total[..., first]) / (end - first)

    @property
    def all_seeds(self) -> np.ndarray:
        """Places of all seeds, (S,)."""
        return np.arange(len(self.pass1))


def run_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the comparison keeps of one run's log, as plain data of a few kilobytes."""
    scored = [row for row in rows if "pass1" in row]
    sampled = [row["passk"] for row in rows if "passk" in row]
    ages = [row["by_age"] for row in rows if "by_age" in row]

    def mean_of(some: Sequence[dict[str, Any]], name: str) -> float:
        return float(np.mean([row[name] for row in some if name in row]))

    return {
        "updates": rows[-1]["update"],
        "pass1": [round(row["pass1"], 5) for row in scored],
        "cost": {mu: [round(row["cost"][mu], 2) for row in scored] for mu in scored[0]["cost"]},
        "passk8": [round(row["8"], 5) for row in sampled],
        "passk1": [round(row["1"], 5) if "1" in row else None for row in sampled],
        "entropy": mean_of(rows[-max(1, len(rows) // 10) :], "entropy"),
        "clip_share": mean_of(rows, "clip_share"),
        "zero_variance": mean_of(rows, "zero_variance_share"),
        "ess": float(np.mean([np.average(a["ess"], weights=a["rollouts"]) for a in ages])),
    }


def curves_of(runs: Sequence[dict[str, Any]]) -> Curves:
    """Return the curves of one setting from the summaries of its seeds."""

    def stacked(name: str) -> np.ndarray:
        return np.array([run[name] for run in runs], dtype=float)

    return Curves(
        cost={mu: np.array(cost) for mu, cost in runs[0]["cost"].items()},
        updates=runs[0]["updates"],
        **{name: stacked(name) for name in PER_SEED},
    )


def cost_to_reach(
    curves: Curves, mu: str, target: np.ndarray | float, seeds: np.ndarray
) -> np.ndarray:
    """Return the cost at which the median curve first reaches a target; infinity if never.

    Args:
        curves: of one setting.
        mu: cost ratio, a key of ``curves.cost``.
        target: pass@1, (...).
        seeds: places of the seeds, (..., S').

    Returns:
        Training-cost units, (...).
    """
    # A running mean is off by rounding.
    reached = curves.median_curve(seeds) >= np.asarray(target)[..., None] - 1e-9
    return np.where(reached.any(axis=-1), curves.cost[mu][reached.argmax(axis=-1)], np.inf)


def saving(reference: Curves, other: Curves, mu: str, seeds: np.ndarray) -> np.ndarray:
    """Return 1 - cost / cost of the reference at its own final accuracy, over seeds (..., S').

    Minus infinity where the other never reaches it, NaN where the reference does not, or did from
    the start: (...).
    """
    target = reference.final_pass1(seeds)
    own = cost_to_reach(reference, mu, target, seeds)
    own = np.where(np.isfinite(own) & (own > 0), own, np.nan)
    return 1 - cost_to_reach(other, mu, target, seeds) / own


def cross_chosen(
    score: Callable[[str, np.ndarray], np.ndarray], names: Sequence[str], seeds: np.ndarray
) -> np.ndarray:
    """Return the score of the best name, chosen on one half of the seeds, on the other half.

    Args:
        score: of a name over seeds (..., S'), (...).
        names: to choose from.
        seeds: (..., S); the halves are the even and the odd places.

    Returns:
        Mean over both ways round, (...).
    """
    halves = [np.array([score(name, seeds[..., start::2]) for name in names]) for start in (0, 1)]
    priced = [
        np.take_along_axis(other, np.nan_to_num(half, nan=-np.inf).argmax(axis=0)[None], axis=0)[0]
        for half, other in (halves, halves[::-1])
    ]
    return np.mean(priced, axis=0)


def with_interval(
    value_of: Callable[[np.ndarray], np.ndarray], seeds: int
) -> dict[str, float | None]:
    """Return value, low and high; null where a curve did not reach the target."""
    draws = value_of(np.random.default_rng(0).integers(0, seeds, (RESAMPLES, seeds)))
    ordered = np.sort(np.nan_to_num(draws, nan=-np.inf))
    low, high = ordered[round(0.025 * RESAMPLES)], ordered[round(0.975 * RESAMPLES) - 1]
    value = float(value_of(np.arange(seeds)))
    return {
        name: round(float(number), 4) if np.isfinite(number) else None
        for name, number in (("value", value), ("low", low), ("high", high))
    }


def headline(
    found: dict[str, Curves], replay: list[str], reference: str, equal_cost: str
) -> dict[str, Any]:
    """Return the headline numbers of docs/llm.json."""
    base = found[reference]
    seeds = len(base.pass1)

    def best_saving(mu: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda chosen: cross_chosen(
            lambda name, half: saving(base, found[name], mu, half), replay, chosen
        )

    def gain(name: str, half: np.ndarray) -> np.ndarray:
        mine, own = found[name].passk8[:, -1][half], base.passk8[:, -1][half]
        return np.median(mine, axis=-1) - np.median(own, axis=-1)

    return {
        "saving_at_baseline_accuracy": {
            mu: with_interval(best_saving(mu), seeds) for mu in base.cost
        },
        "passk_gain": {
            "k": 8,
            "gen_train_ratio": equal_cost,
            **with_interval(lambda chosen: cross_chosen(gain, replay, chosen), seeds),
        },
        "seeds": seeds,
    }


def numbers_of(docs: Path) -> dict[str, Any]:
    """Return the headline numbers on disk, none if there are none."""
    path = docs / "llm.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save_numbers(docs: Path, numbers: Mapping[str, Any]) -> None:
    """Put headline numbers in place of those on disk, and leave the others."""
    replace_text(docs / "llm.json", json.dumps({**numbers_of(docs), **numbers}, indent=2) + "\n")


def quartiles(values: np.ndarray) -> str:
    """Return ``median [first quartile, third quartile]``."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def saved_part(value: float) -> str:
    """Return a saving as text."""
    if np.isnan(value):
        return "-"
    return "not reached" if value == -np.inf else f"{100 * value:.0f} %"


def tables(found: dict[str, Curves], reference: str) -> str:
    """Return the Markdown tables of all settings."""
    base = found[reference]
    names = list(base.cost)
    head = ["setting", "updates", "final pass@1", *(f"saving at mu {mu}" for mu in names)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, curves in found.items():
        final = curves.pass1[:, -LAST:].mean(axis=1)
        row = [name, str(curves.updates), quartiles(final)]
        row += [saved_part(float(saving(base, curves, mu, base.all_seeds))) for mu in names]
        lines.append("| " + " | ".join(row) + " |")
    head = ["setting", "pass@1, T = 1", "pass@8, T = 1", "entropy, nats", "tokens cut"]
    head += ["ESS", "groups of equal rewards"]
    lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, curves in found.items():
        row = [name, quartiles(curves.passk1[:, -1]), quartiles(curves.passk8[:, -1])]
        row += [quartiles(curves.entropy), f"{np.median(curves.clip_share):.4f}"]
        row += [f"{np.median(curves.ess):.3f}", f"{np.median(curves.zero_variance):.2f}"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def at_costs(found: dict[str, Curves], mu: str, places: int = 6) -> str:
    """Return a Markdown table of pass@1, median and quartiles, at equal compute."""
    end = min(curves.cost[mu][-1] for curves in found.values())
    costs = np.linspace(end / places, end, places)
    head = ["setting", *(f"{cost / 1000:.0f}k" for cost in costs)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, curves in found.items():
        at = [np.flatnonzero(curves.cost[mu] <= cost * (1 + 1e-9))[-1] for cost in costs]
        cells = [quartiles(curves.pass1[:, place]) for place in at]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def write_report(
    docs: Path,
    train: TrainConfig,
    found: dict[str, Curves],
    replay: list[str],
    tuning: dict[str, dict[float, float]],
    equal_cost_ratio: float,
) -> None:
    """Write llm.md, llm.json and llm.png."""
    reference, equal = next(iter(found)), f"{equal_cost_ratio:g}"
    save_numbers(docs, headline(found, replay, reference, equal))
    numbers = dict.fromkeys(MEASURED_ELSEWHERE) | numbers_of(docs)
    save_numbers(docs, numbers)
    draw(found, docs / "llm.png")
    replace_text(docs / "llm.md", text(train, found, replay, tuning, numbers, equal))


def text(
    train: TrainConfig,
    found: dict[str, Curves],
    replay: list[str],
    tuning: dict[str, dict[float, float]],
    numbers: dict[str, Any],
    equal: str,
) -> str:
    """Return the report as Markdown."""
    reference = next(iter(found))
    base = found[reference]
    parts = [
        "# Replay in real GRPO training, at equal compute",
        "",
        f"A {train.model} policy on {train.task.name}, G = {train.num_generations}, B = "
        f"{train.batch_size}, {numbers['seeds']} seeds, `python -m llm.compare`. Compute is P1: "
        f"rollouts trained + mu x rollouts generated, fill included; every setting got the same "
        f"compute at mu = {equal}. One set of runs prices every mu. Warm start: greedy pass@1 "
        f"{np.median(base.pass1[:, 0]):.3f}.",
        "",
        "![pass@1 against compute, median and quartiles](llm.png)",
        "",
        f"The reference ends at pass@1 {base.final_pass1(base.all_seeds):.3f}. Saving is 1 - the "
        "cost at which a setting's median curve first reaches that, over the cost at which the "
        "reference's does:",
        "",
        tables(found, reference),
        "",
        f"pass@1 [quartiles] at equal compute, mu = {equal}, in thousands of training-cost units:",
        "",
        at_costs(found, equal),
        "",
        "Best replay setting, chosen on one half of the seeds and priced on the other (crossed), "
        "[95 % bootstrap interval]:",
        "",
    ]
    for mu, saved in numbers["saving_at_baseline_accuracy"].items():
        parts.append(f"- mu = {mu}: saving {shown(saved)}")
    parts += [
        f"- pass@8 of the best replay setting minus the reference's, mu = {equal}: "
        f"{shown(numbers['passk_gain'])}",
        "",
        "Learning rates tried on seeds of their own, final pass@1:",
        "",
    ]
    for name, final in tuning.items():
        tried = ", ".join(f"{rate:g}: {score:.3f}" for rate, score in final.items())
        best = max(final, key=lambda rate: final[rate])
        edge = " (on the grid's edge)" if best in (min(final), max(final)) else ""
        parts.append(f"- {name}: {tried}; chosen {best:g}{edge}")
    parts += [
        "",
        "Replay settings train with the reference's learning rate.",
        "",
        "Measured apart, each command on an otherwise idle machine of 2 cores:",
        "",
    ]
    for name, (label, command) in MEASURED_ELSEWHERE.items():
        value = "not measured" if numbers[name] is None else f"{numbers[name]:.3g}"
        parts.append(f"- {label}: {value} (`python {command} --save`)")
    return "\n".join(parts) + "\n"


def shown(number: dict[str, Any]) -> str:
    """Return ``value [low, high]``."""
    value, low, high = (
        "not reached" if number[name] is None else f"{number[name]:.3f}"
        for name in ("value", "low", "high")
    )
    return f"{value} [{low}, {high}]"


def draw(found: dict[str, Curves], path: Path) -> None:
    """Draw pass@1 against compute at every mu, and pass@8."""
    from matplotlib.figure import Figure

    base = next(iter(found.values()))
    figure = Figure(figsize=(4.6 * (len(base.cost) + 1), 4.4), layout="constrained")
    axes = figure.subplots(1, len(base.cost) + 1)
    for axis, mu in zip(axes, base.cost, strict=False):
        for place, (name, curves) in enumerate(found.items()):
            low, middle, high = np.percentile(curves.pass1, [25, 50, 75], axis=0)
            axis.plot(curves.cost[mu] / 1000, middle, color=f"C{place}", label=name, lw=1.4)
            axis.fill_between(
                curves.cost[mu] / 1000, low, high, color=f"C{place}", alpha=0.12, lw=0
            )
        axis.axhline(base.final_pass1(base.all_seeds), color="grey", lw=0.7, ls="--")
        axis.set(title=f"mu = {mu}", xlabel="compute, thousands", ylabel="greedy test pass@1")
        axis.set_xlim(0, base.cost[mu][-1] / 1000)
    for place, curves in enumerate(found.values()):
        low, middle, high = np.percentile(curves.passk8[:, -1], [25, 50, 75])
        axes[-1].errorbar(
            place, middle, [[middle - low], [high - middle]], fmt="o", color=f"C{place}"
        )
    axes[-1].set(title="pass@8 at the end, temperature 1")
    axes[-1].set_xticks(range(len(found)), list(found), rotation=60, ha="right", fontsize=7)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=90, metadata={"Software": None})
