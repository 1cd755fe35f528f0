"""From a sweep's table to the answer: which design was best, and was it the predicted one?

The first half of the seeds chooses (a step size for every design, and the best design of the
grid); the second half, unseen by any choice, prices. A design's cost is the mean over seeds of its
cost to the target. A step size with a choosing seed that did not reach the target is taken only
if all have one. A pricing seed that did not reach it counts with the updates it was given: the
cost is then a lower bound and printed as such. Intervals are 95 % percentile bootstraps over the
pricing seeds.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim.designs import Design, Plan, Prediction
from sim.settings import SweepConfig
from sim.table import csv_line, read_rows
from theory.cost import cost_to_target
from theory.run_folder import replace_text

RESAMPLES = 2000
MIN_REFERENCE_UPDATES = 200
MAX_HORIZON_SHARE = 20


@dataclass(frozen=True)
class Measured:
    """Updates of one design at its chosen step size, by half of the seeds.

    choosing and pricing hold updates run, (seeds/2,); missed counts those that did not reach.
    """

    design: Design
    step_size: float
    on_grid_edge: bool
    choosing: np.ndarray
    choosing_missed: int
    pricing: np.ndarray
    pricing_missed: int

    def cost(self, updates: np.ndarray, config: SweepConfig, gen_train_ratio: float) -> np.ndarray:
        """Return the cost of runs of this many updates, training-cost units."""
        cost = cost_to_target(
            updates,
            self.design.batch_size,
            self.design.rollouts_per_update,
            self.design.buffer_size,
            gen_train_ratio,
            fixed_cost=config.fixed_cost,
            start=self.design.start,
        )
        return np.asarray(cost)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two mean costs and its 95 % interval; a lower bound if at_least.

    NaN where the denominator itself is only a lower bound, or there is nothing to compare.
    """

    value: float
    low: float
    high: float
    at_least: bool = False


NOTHING = Ratio(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Comparison:
    """What cost_gen / cost_train gives: costs in training-cost units, ratios to on-policy."""

    gen_train_ratio: float
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
    runs: dict[Design, dict[float, list[tuple[int, int, bool]]]] = {}
    for row in read_rows(table):
        design = Design(
            batch_size=int(row["batch_size"]),
            rollouts_per_update=int(row["rollouts_per_update"]),
            buffer_size=int(row["buffer_size"]),
            draw="with" if row["draw"] == "with" else "without",
            start="growing" if row["start"] == "growing" else "full",
        )
        run = (int(row["seed"]), int(row["updates"]), row["status"] == "reached")
        runs.setdefault(design, {}).setdefault(float(row["step_size"]), []).append(run)
    return {
        design: chosen(design, runs[design], config.seeds, config.max_updates)
        for design in plan.designs
    }


def chosen(
    design: Design, runs: dict[float, list[tuple[int, int, bool]]], seeds: int, max_updates: int
) -> Measured:
    """Return the measurement of a design at its best step size on the choosing seeds."""
    steps, half = sorted(runs), seeds // 2
    ordered = [sorted(runs[step]) for step in steps]
    reached = np.array([[ok for _, _, ok in row] for row in ordered])
    # A run that diverged early has not reached the target either: it counts as a full one.
    updates = np.where(reached, [[used for _, used, _ in row] for row in ordered], max_updates)
    missed = (~reached[:, :half]).any(axis=1)
    best = int(np.lexsort((updates[:, :half].mean(axis=1), missed))[0])
    return Measured(
        design=design,
        step_size=steps[best],
        on_grid_edge=best in (0, len(steps) - 1),
        choosing=updates[best, :half],
        choosing_missed=int((~reached[best, :half]).sum()),
        pricing=updates[best, half:],
        pricing_missed=int((~reached[best, half:]).sum()),
    )


def priced_ratio(
    top: Measured, bottom: Measured, config: SweepConfig, gen_train_ratio: float
) -> Ratio:
    """Return the ratio of mean costs on the pricing seeds, with its bootstrap interval."""
    if top.design == bottom.design:
        return Ratio(1.0, 1.0, 1.0)
    if bottom.pricing_missed:
        return NOTHING
    above = top.cost(top.pricing, config, gen_train_ratio)
    below = bottom.cost(bottom.pricing, config, gen_train_ratio)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(above), (2, RESAMPLES, len(above)))
    resampled = above[picks[0]].mean(axis=1) / below[picks[1]].mean(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    value = above.mean() / below.mean()
    return Ratio(float(value), float(low), float(high), at_least=top.pricing_missed > 0)


def compared(
    config: SweepConfig, plan: Plan, found: dict[Design, Measured], prediction: Prediction
) -> Comparison:
    """Return the comparison at the cost_gen / cost_train of one prediction."""
    mu = prediction.gen_train_ratio

    def on_choosing_seeds(run: Measured) -> tuple[bool, float]:
        return run.choosing_missed > 0, float(run.cost(run.choosing, config, mu).mean())

    reference, predicted = found[plan.on_policy], found[prediction.design]
    grid = dict.fromkeys((plan.on_policy, *plan.grid))
    best = min((found[design] for design in grid), key=on_choosing_seeds)
    smaller = min((found[d] for d in plan.smaller), key=on_choosing_seeds, default=None)
    regret = priced_ratio(predicted, best, config, mu)
    return Comparison(
        gen_train_ratio=mu,
        on_policy=reference,
        on_policy_cost=float(reference.cost(reference.pricing, config, mu).mean()),
        best=best,
        best_ratio=priced_ratio(best, reference, config, mu),
        predicted=predicted,
        verdict=prediction.verdict,
        predicted_ratio=prediction.cost_ratio,
        measured_ratio=priced_ratio(predicted, reference, config, mu),
        regret=dataclasses.replace(
            regret, value=regret.value - 1, low=regret.low - 1, high=regret.high - 1
        ),
        smaller=smaller,
        smaller_ratio=NOTHING if smaller is None else priced_ratio(smaller, reference, config, mu),
    )


def summarise(config: SweepConfig, plan: Plan, found: dict[Design, Measured]) -> list[Comparison]:
    """Return one comparison for every cost ratio of the sweep."""
    return [compared(config, plan, found, prediction) for prediction in plan.predicted]


def warnings(config: SweepConfig, plan: Plan, summary: list[Comparison]) -> list[str]:
    """Return what makes the sweep's numbers less trustworthy than they look."""
    out = []
    shown = {run.design: run for row in summary for run in shown_runs(row)}
    for run in shown.values():
        if run.pricing_missed:
            out.append(
                f"{label(run.design)}: {run.pricing_missed} of {len(run.pricing)} pricing seeds "
                f"did not reach the target in {config.max_updates} updates; its cost is at least "
                "what is printed"
            )
        if run.on_grid_edge:
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


def number(ratio: Ratio) -> str:
    """Return ``value [low, high]``; an interval of no width, from equal runs, is left out."""
    if np.isnan(ratio.value):
        return "-"
    value = f"{'>= ' if ratio.at_least else ''}{ratio.value:.2f}"
    return value if ratio.low == ratio.high else f"{value} [{ratio.low:.2f}, {ratio.high:.2f}]"


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
    header = ("gen/train cost", "on-policy cost", "best measured", "its cost")
    header += ("predicted", "predicted cost", "its measured cost", "regret")
    header += ("cheapest smaller batch", "its cost")
    rows = [
        (
            f"{row.gen_train_ratio:g}",
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
    skipped = len(config.horizons) * len(config.replay_ratios) - len(plan.grid)
    if skipped:
        lines.append(f"{skipped} grid cells left out: N < B cannot be drawn without replacement.")
    notes = warnings(config, plan, summary)
    return "\n".join([*lines, *(f"warning: {note}" for note in notes)])


def summary_row(row: Comparison) -> dict[str, object]:
    """Return a comparison as one flat row of the summary table."""
    flat: dict[str, object] = {
        "gen_train_ratio": row.gen_train_ratio,
        "on_policy_cost": row.on_policy_cost,
        "verdict": row.verdict,
        "predicted_cost_ratio": row.predicted_ratio,
    }
    runs = {"on_policy": row.on_policy, "best": row.best, "predicted": row.predicted}
    if row.smaller is not None:
        runs["smaller"] = row.smaller
    for name, run in runs.items():
        for key, value in dataclasses.asdict(run.design).items():
            flat[f"{name}_{key}"] = value
        flat[f"{name}_step_size"] = run.step_size
        flat[f"{name}_updates"] = float(run.pricing.mean())
        flat[f"{name}_missed"] = run.pricing_missed
    ratios = {"best_ratio": row.best_ratio, "measured_ratio": row.measured_ratio}
    ratios |= {"regret": row.regret, "smaller_ratio": row.smaller_ratio}
    for name, ratio in ratios.items():
        for key, value in dataclasses.asdict(ratio).items():
            flat[f"{name}_{key}"] = value if np.isfinite(value) else None
    return flat


def save(
    summary: list[Comparison],
    config: SweepConfig,
    plan: Plan,
    found: dict[Design, Measured],
    folder: Path,
) -> None:
    """Write summary.csv, summary.json and heatmap.png beside the table."""
    rows = [summary_row(row) for row in summary]
    body = csv_line(list(rows[0])) + "".join(csv_line(list(row.values())) for row in rows)
    replace_text(folder / "summary.csv", body)
    replace_text(folder / "summary.json", json.dumps(rows, indent=2) + "\n")
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
    images = [
        draw_panel(figure.add_subplot(lines, columns, place + 1), row, config, plan, found)
        for place, row in enumerate(summary)
    ]
    bar = figure.colorbar(images[0], ax=figure.axes, shrink=0.8, extend="both")
    bar.set_label("cost to target / on-policy (log scale)")
    bar.set_ticks(
        [np.log2(value) for value in (0.25, 0.5, 1, 2, 4)], labels=["1/4", "1/2", "1", "2", "4"]
    )
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_panel(axes, row: Comparison, config: SweepConfig, plan: Plan, found: dict):
    """Draw one panel and return its image; ">" marks cells with a seed that did not reach."""
    horizons, ratios = sorted(config.horizons), sorted(config.replay_ratios)
    base = float(row.on_policy.cost(row.on_policy.pricing, config, row.gen_train_ratio).mean())
    values = np.full((len(ratios), len(horizons)), np.nan)
    missed = np.zeros(values.shape, bool)
    for design in plan.grid:
        run = found[design]
        j, i = ratios.index(design.replay_ratio), horizons.index(design.staleness_horizon)
        values[j, i] = run.cost(run.pricing, config, row.gen_train_ratio).mean() / base
        missed[j, i] = run.pricing_missed > 0
    image = axes.imshow(
        np.log2(values), origin="lower", aspect="auto", cmap="PuOr_r", vmin=-2, vmax=2
    )
    for j, i in np.ndindex(values.shape):
        if np.isfinite(values[j, i]):
            bound = ">" if missed[j, i] else ""
            axes.text(i, j + 0.22, f"{bound}{values[j, i]:.2f}", ha="center", fontsize=7)

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
        axes.plot(x, y, marker, label=name, color=colour, markersize=11, markeredgecolor="white")
    axes.set_xticks(range(len(horizons)), [f"{h:g}" for h in horizons])
    axes.set_yticks(range(len(ratios)), [f"{r:g}" for r in ratios])
    axes.set_xlabel("staleness horizon x = N/R (updates)")
    axes.set_ylabel("replay ratio y = B/R")
    axes.set_title(f"cost_gen / cost_train = {row.gen_train_ratio:g}", fontsize=10)
    return image
