"""From a sweep's table to the answer: which design was best, and was it the predicted one?

The first half of the seeds chooses (a step size for every design, and the best design of the
grid); the second half, unseen by any choice, prices. A design's cost is the mean over seeds of its
cost to the target; if a seed did not reach it the cost is infinite. Intervals are 95 % percentile
bootstraps over the pricing seeds.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim.designs import Design, Plan
from sim.settings import SweepConfig
from sim.table import csv_line, read_rows, replace_text
from theory.cost import cost_to_target

RESAMPLES = 2000
MIN_REFERENCE_UPDATES = 200
MAX_HORIZON_SHARE = 20


@dataclass(frozen=True)
class Measured:
    """Updates to target of one design at its chosen step size, by half of the seeds.

    step_size is None, and the updates infinite, if no step size took every choosing seed there.
    """

    design: Design
    step_size: float | None
    on_grid_edge: bool
    choosing: np.ndarray
    pricing: np.ndarray

    def cost(self, updates: np.ndarray, config: SweepConfig, cost_ratio: float) -> np.ndarray:
        """Return the cost to target of runs that needed this many updates, training-cost units."""
        return cost_to_target(
            updates,
            self.design.batch_size,
            self.design.rollouts_per_update,
            self.design.buffer_size,
            cost_ratio,
            fixed_cost=config.fixed_cost,
            start=self.design.start,
        )


@dataclass(frozen=True)
class Ratio:
    """A ratio of two mean costs and its 95 % interval; NaN where a mean is infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What one cost ratio gives: costs in training-cost units, ratios to on-policy."""

    cost_ratio: float
    on_policy: Measured
    on_policy_cost: float
    best: Measured
    best_ratio: Ratio
    predicted: Measured
    verdict: str
    predicted_ratio: float
    measured_ratio: Ratio
    regret: Ratio
    smaller: Measured | None
    smaller_ratio: Ratio


def measurements(config: SweepConfig, plan: Plan, table: Path) -> dict[Design, Measured]:
    """Return what was measured of every design, its step size chosen on the first half."""
    runs: dict[tuple, dict[float, dict[int, float]]] = {}
    for row in read_rows(table):
        key = (
            *(int(row[name]) for name in ("batch_size", "rollouts_per_update", "buffer_size")),
            row["draw"],
            row["start"],
        )
        updates = float(row["updates_to_target"] or "inf")
        runs.setdefault(key, {}).setdefault(float(row["step_size"]), {})[int(row["seed"])] = updates
    return {
        design: chosen(design, runs[dataclasses.astuple(design)], config.seeds)
        for design in plan.designs
    }


def chosen(design: Design, runs: dict[float, dict[int, float]], seeds: int) -> Measured:
    """Return the measurement of a design at the step size with the fewest mean updates."""
    steps = sorted(runs)
    updates = np.array([[runs[step][seed] for seed in sorted(runs[step])] for step in steps])
    half = seeds // 2
    means = updates[:, :half].mean(axis=1)
    best = int(np.argmin(means))
    if np.isinf(means[best]):
        nothing = np.full(half, np.inf)
        return Measured(design, None, False, nothing, nothing)
    return Measured(
        design=design,
        step_size=steps[best],
        on_grid_edge=best in (0, len(steps) - 1),
        choosing=updates[best, :half],
        pricing=updates[best, half:],
    )


def mean_ratio(top: np.ndarray, bottom: np.ndarray) -> Ratio:
    """Return mean(top) / mean(bottom) with a bootstrap interval; the two are independent."""
    if not (np.isfinite(top).all() and np.isfinite(bottom).all()):
        value = np.inf if np.isfinite(bottom).all() else np.nan
        return Ratio(value, np.nan, np.nan)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(top), (2, RESAMPLES, len(top)))
    resampled = top[picks[0]].mean(axis=1) / bottom[picks[1]].mean(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Ratio(float(top.mean() / bottom.mean()), float(low), float(high))


def compared(
    config: SweepConfig, plan: Plan, found: dict[Design, Measured], prediction: tuple
) -> Comparison:
    """Return the comparison at the cost ratio of one prediction."""
    mu, design, verdict, predicted_ratio = prediction

    def choosing(run: Measured) -> float:
        return float(run.cost(run.choosing, config, mu).mean())

    def pricing(run: Measured) -> np.ndarray:
        return run.cost(run.pricing, config, mu)

    reference = found[plan.on_policy]
    best = min((found[d] for d in dict.fromkeys((plan.on_policy, *plan.grid))), key=choosing)
    smaller = min((found[d] for d in plan.smaller), key=choosing, default=None)
    nothing = Ratio(np.nan, np.nan, np.nan)
    base = pricing(reference)
    same = found[design] is best
    return Comparison(
        cost_ratio=mu,
        on_policy=reference,
        on_policy_cost=float(base.mean()),
        best=best,
        best_ratio=mean_ratio(pricing(best), base),
        predicted=found[design],
        verdict=verdict,
        predicted_ratio=predicted_ratio,
        measured_ratio=mean_ratio(pricing(found[design]), base),
        regret=Ratio(0.0, 0.0, 0.0)
        if same
        else shifted(mean_ratio(pricing(found[design]), pricing(best)), -1.0),
        smaller=smaller,
        smaller_ratio=nothing if smaller is None else mean_ratio(pricing(smaller), base),
    )


def shifted(ratio: Ratio, by: float) -> Ratio:
    """Return the ratio with a constant added to value and interval."""
    return Ratio(ratio.value + by, ratio.low + by, ratio.high + by)


def summarise(config: SweepConfig, plan: Plan, table: Path) -> list[Comparison]:
    """Return one comparison for every cost ratio of the sweep."""
    found = measurements(config, plan, table)
    return [compared(config, plan, found, prediction) for prediction in plan.predicted]


def warnings(config: SweepConfig, plan: Plan, summary: list[Comparison]) -> list[str]:
    """Return what makes the sweep's numbers less trustworthy than they look."""
    out = []
    shown = {run.design: run for row in summary for run in shown_runs(row)}
    for run in shown.values():
        if run.step_size is None:
            out.append(f"{label(run.design)}: no step size took every choosing seed to the target")
        elif run.on_grid_edge:
            out.append(
                f"{label(run.design)}: best step size {run.step_size:g} lies on the grid's edge"
            )
    updates = float(summary[0].on_policy.pricing.mean())
    longest = max(design.staleness_horizon for design in plan.designs)
    if updates < MIN_REFERENCE_UPDATES:
        out.append(
            f"the on-policy run takes only {updates:.0f} updates (< {MIN_REFERENCE_UPDATES}): "
            "designs look more alike than they are"
        )
    if longest * MAX_HORIZON_SHARE > updates:
        out.append(
            f"the longest horizon {longest:g} is more than 1/{MAX_HORIZON_SHARE} of the on-policy "
            f"run's {updates:.0f} updates: the initial fill weighs more than in a long run"
        )
    return out


def shown_runs(row: Comparison) -> list[Measured]:
    """Return the runs a comparison prints."""
    runs = [row.on_policy, row.best, row.predicted]
    return runs if row.smaller is None else [*runs, row.smaller]


def label(design: Design) -> str:
    """Return a short name of a design: its (x, y), or its batch when on-policy."""
    if design.rollouts_per_update == design.buffer_size == design.batch_size:
        return f"on-policy B={design.batch_size}"
    note = " repl." if design.draw == "with" else ""
    return f"x={design.staleness_horizon:.3g} y={design.replay_ratio:.3g}{note}"


def number(ratio: Ratio, form: str = ".2f") -> str:
    """Return ``value [low, high]``, or ``value`` alone where there is no interval."""
    if np.isnan(ratio.value):
        return "-"
    if np.isnan(ratio.low):
        return "not reached"
    return f"{ratio.value:{form}} [{ratio.low:{form}}, {ratio.high:{form}}]"


def table_lines(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return text lines with aligned columns."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *rows)
    ]


def text(summary: list[Comparison], config: SweepConfig, plan: Plan) -> str:
    """Return the report that the command prints."""
    half = config.seeds // 2
    lines = [
        f"{config.problem}, B = {config.batch_size}, target {config.target:g} of the initial gap; "
        f"on-policy needs {summary[0].on_policy.pricing.mean():.0f} updates.",
        f"Costs relative to on-policy at the same batch; step size and best design chosen on "
        f"{half} seeds, priced on {half} others; [95 % interval].",
        "",
    ]
    header = ("cost ratio", "on-policy cost", "best measured", "its cost")
    header += ("predicted", "predicted cost", "its measured cost", "regret")
    header += ("cheapest smaller batch", "its cost")
    rows = [
        (
            f"{row.cost_ratio:g}",
            f"{row.on_policy_cost:.4g}",
            label(row.best.design),
            number(row.best_ratio),
            label(row.predicted.design),
            f"{row.predicted_ratio:.2f}",
            number(row.measured_ratio),
            number(row.regret),
            "-" if row.smaller is None else f"B={row.smaller.design.batch_size}",
            number(row.smaller_ratio),
        )
        for row in summary
    ]
    lines += table_lines(header, rows)
    notes = warnings(config, plan, summary)
    return "\n".join([*lines, *(f"warning: {note}" for note in notes)])


def summary_row(row: Comparison) -> dict[str, object]:
    """Return a comparison as one flat row of the summary table."""
    flat: dict[str, object] = {"cost_ratio": row.cost_ratio, "on_policy_cost": row.on_policy_cost}
    flat |= {"verdict": row.verdict, "predicted_cost_ratio": row.predicted_ratio}
    runs = {"on_policy": row.on_policy, "best": row.best, "predicted": row.predicted}
    if row.smaller is not None:
        runs["smaller"] = row.smaller
    for name, run in runs.items():
        for key, value in dataclasses.asdict(run.design).items():
            flat[f"{name}_{key}"] = value
        flat[f"{name}_step_size"] = run.step_size
    ratios = {"best_ratio": row.best_ratio, "measured_ratio": row.measured_ratio}
    ratios |= {"regret": row.regret, "smaller_ratio": row.smaller_ratio}
    for name, ratio in ratios.items():
        for key, value in dataclasses.asdict(ratio).items():
            flat[f"{name}_{key}"] = value if np.isfinite(value) else None
    return flat


def save(summary: list[Comparison], config: SweepConfig, plan: Plan, folder: Path) -> None:
    """Write summary.csv, summary.json and heatmap.png beside the table."""
    rows = [summary_row(row) for row in summary]
    body = csv_line(list(rows[0])) + "".join(csv_line(list(row.values())) for row in rows)
    replace_text(folder / "summary.csv", body)
    replace_text(folder / "summary.json", json.dumps(rows, indent=2) + "\n")
    found = measurements(config, plan, folder / "table.csv")
    draw_heat_map(summary, config, plan, found, folder / "heatmap.png")


def draw_heat_map(
    summary: list[Comparison],
    config: SweepConfig,
    plan: Plan,
    found: dict[Design, Measured],
    path: Path,
) -> None:
    """Draw the cost relative to on-policy over (x, y), one panel a cost ratio."""
    from matplotlib.figure import Figure

    columns = min(3, len(summary))
    lines = -(-len(summary) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.7 * lines + 0.6), layout="constrained")
    image = None
    for place, row in enumerate(summary):
        axes = figure.add_subplot(lines, columns, place + 1)
        image = draw_panel(axes, row, config, plan, found)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.8, extend="both")
    bar.set_label("cost to target / on-policy (log scale)")
    bar.set_ticks([np.log2(value) for value in (0.25, 0.5, 1, 2, 4)], labels="¼ ½ 1 2 4".split())
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_panel(axes, row: Comparison, config: SweepConfig, plan: Plan, found: dict):
    """Draw one panel and return its image; crossed cells did not reach the target."""
    horizons, ratios = sorted(config.horizons), sorted(config.replay_ratios)
    base = float(row.on_policy.cost(row.on_policy.pricing, config, row.cost_ratio).mean())
    values = np.full((len(ratios), len(horizons)), np.nan)
    for design in plan.grid:
        run = found[design]
        j, i = ratios.index(design.replay_ratio), horizons.index(design.staleness_horizon)
        values[j, i] = run.cost(run.pricing, config, row.cost_ratio).mean() / base
    shown = np.where(np.isfinite(values), values, np.nan)
    image = axes.imshow(
        np.log2(shown), origin="lower", aspect="auto", cmap="PuOr_r", vmin=-2, vmax=2
    )
    for j, i in np.ndindex(values.shape):
        if np.isfinite(values[j, i]):
            axes.text(i, j, f"{values[j, i]:.2f}", ha="center", va="bottom", fontsize=7)
        elif np.isinf(values[j, i]):
            axes.text(i, j, "x", ha="center", va="bottom", fontsize=7)

    def place(design: Design) -> tuple[float, float]:
        at = (design.staleness_horizon, design.replay_ratio)
        return tuple(
            np.interp(np.log(v), np.log(grid), range(len(grid)))
            for v, grid in zip(at, (horizons, ratios), strict=True)
        )

    marks = [
        (row.on_policy, "o", "on-policy", "#009e73"),
        (row.best, "s", "best measured", "#0072b2"),
        (row.predicted, "*", "predicted", "#d55e00"),
    ]
    for run, marker, name, colour in marks:
        x, y = place(run.design)
        axes.plot(
            x, y - 0.2, marker, label=name, color=colour, markersize=11, markeredgecolor="white"
        )
    axes.set_xticks(range(len(horizons)), [f"{h:g}" for h in horizons])
    axes.set_yticks(range(len(ratios)), [f"{r:g}" for r in ratios])
    axes.set_xlabel("staleness horizon x = N/R (updates)")
    axes.set_ylabel("replay ratio y = B/R")
    axes.set_title(f"cost_gen / cost_train = {row.cost_ratio:g}", fontsize=10)
    return image
