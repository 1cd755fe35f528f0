"""From what was predicted and what was measured to confirm.md, confirm.json and confirm.png.

A cost is the mean over seeds of the P1 cost of a run to its target, the buffer growing from the
start. Intervals of what is measured are 95 % percentile bootstraps over the seeds of the
head-to-head, the same seeds for every design. The measured verdict takes the best replay design of
all that were measured, chosen on one half of the seeds and priced on the other, both ways round,
so that the luckiest of many designs is not quoted at its luck.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm.compare_report import cross_chosen, shown, with_interval
from llm.confirm_predict import Prediction, Shape, arrays, fitted, run_cost
from llm.settings import TrainConfig
from theory.calibrate import Estimate, MeasuredProfile, UpdatesFit
from theory.run_folder import replace_text

# A regret of so much is the aim.
CLOSE = 0.10
PAYS, NOT, UNDECIDED = "pays", "does not pay", "undecided"


@dataclass(frozen=True)
class Found:
    """What was found on one task.

    Attributes:
        task: its name.
        start: test pass@1 of the warm start.
        pilot: updates to the target, (seeds,), of each design of the pilot, the reference first.
        rates: step size of every design, its best on the tuning seeds.
        rollouts: that the pilot generated, step sizes apart.
        tuning_rollouts: that the search for step sizes generated at most.
        noise: the noise scale.
        profile: noise by age.
        ratio: mu on the machine that ran the pilot.
        predictions: at each cost ratio.
        fresh: updates to the target on fresh seeds, (S,), of each design at its step size.
        studies: by cost ratio the best design of the study, its step size, and its updates on the
            same seeds; a ratio is left out where no trial arrived.
        given: updates after which a run of a design is over, arrived or not.
    """

    task: str
    start: float
    pilot: Mapping[Shape, np.ndarray]
    rates: Mapping[Shape, float]
    rollouts: int
    tuning_rollouts: int
    noise: UpdatesFit
    profile: MeasuredProfile
    ratio: Estimate
    predictions: Sequence[Prediction]
    fresh: Mapping[Shape, np.ndarray]
    studies: Mapping[float, tuple[Shape, float, np.ndarray]]
    given: Mapping[Shape, int]

    @property
    def reference(self) -> Shape:
        """On-policy training at the reference batch."""
        return next(iter(self.pilot))


def saving_of(
    updates: np.ndarray, shape: Shape, found: Found, mu: float, seeds: np.ndarray
) -> np.ndarray:
    """Return 1 - cost of a design / cost of the reference, over seeds (..., S'), (...)."""
    base = run_cost(found.reference, found.fresh[found.reference], mu)
    return 1 - run_cost(shape, updates, mu)[seeds].mean(-1) / base[seeds].mean(-1)


def row_of(found: Found, predicted: Prediction) -> dict[str, Any]:
    """Return the row of docs/confirm.json for one task and cost ratio.

    Besides the fields the row promises it holds what the page shows of the other designs.
    """
    mu = predicted.gen_train_ratio
    count = len(found.fresh[found.reference])
    measured = {str(shape): (shape, updates) for shape, updates in found.fresh.items()}
    study = found.studies.get(mu)
    if study is not None:
        measured["study"] = study[0], study[2]

    def saving(name: str, seeds: np.ndarray) -> np.ndarray:
        shape, updates = measured[name]
        return np.asarray(saving_of(updates, shape, found, mu, seeds))

    def interval(name: str) -> dict[str, float | None]:
        return with_interval(lambda seeds: saving(name, seeds), count)

    replay = [name for name, (shape, _) in measured.items() if not shape.on_policy]
    best = with_interval(lambda seeds: cross_chosen(saving, replay, seeds), count)
    smaller = [
        str(shape)
        for shape in found.fresh
        if shape.on_policy and shape.batch_size < found.reference.batch_size
    ]
    everyone = np.arange(count)
    regret = None
    if study is not None:
        chosen = 1 - float(saving(str(predicted.design), everyone))
        regret = round(chosen / (1 - float(saving("study", everyone))) - 1, 4)
    return {
        "task": found.task,
        "gen_train_ratio": mu,
        "predicted_saving": {
            name: round(getattr(predicted.saving, name), 4) for name in ("value", "low", "high")
        },
        "measured_saving": interval(str(predicted.replay)),
        "design_regret": regret,
        "verdict_predicted": PAYS if predicted.pays else NOT,
        "verdict_measured": verdict_of(best),
        "predicted_design": str(predicted.design),
        "best_replay_design": str(predicted.replay),
        "best_replay_saving": best,
        "paper_design": str(predicted.paper),
        "paper_saving": interval(str(predicted.paper)),
        "study_design": None if study is None else str(study[0]),
        "study_saving": None if study is None else interval("study"),
        "smaller_batch_saving": None
        if not smaller
        else with_interval(lambda seeds: cross_chosen(saving, smaller, seeds), count),
    }


def verdict_of(saving: Mapping[str, float | None]) -> str:
    """Return what an interval of the best replay design's saving says.

    >>> verdict_of({"value": 0.2, "low": 0.1, "high": 0.3})
    'pays'
    >>> verdict_of({"value": 0.2, "low": -0.1, "high": 0.3})
    'undecided'
    """
    low, high = saving["low"], saving["high"]
    if low is not None and low > 0:
        return PAYS
    if high is None or high < 0:
        return NOT
    return UNDECIDED


def inside(row: Mapping[str, Any]) -> bool:
    """Whether the measured saving lies in the interval predicted for it."""
    value, interval = row["measured_saving"]["value"], row["predicted_saving"]
    return value is not None and interval["low"] <= value <= interval["high"]


def counted(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return how often each aim was met, and out of how many."""
    decided = [row for row in rows if row["verdict_measured"] != UNDECIDED]
    priced = [row for row in rows if row["design_regret"] is not None]
    return {
        "close": (sum(row["design_regret"] <= CLOSE for row in priced), len(priced)),
        "right": (
            sum(row["verdict_predicted"] == row["verdict_measured"] for row in decided),
            len(decided),
        ),
        "inside": (sum(inside(row) for row in rows), len(rows)),
    }


def write_report(
    docs: Path, train: TrainConfig, lift: float, every: Sequence[Found], flags: str
) -> None:
    """Write confirm.md, confirm.json and confirm.png."""
    rows = [[row_of(found, each) for each in found.predictions] for found in every]
    flat = [row for some in rows for row in some]
    replace_text(docs / "confirm.json", json.dumps(flat, indent=2) + "\n")
    draw(every, rows, docs / "confirm.png")
    replace_text(docs / "confirm.md", text(train, lift, every, rows, flags))


def text(
    train: TrainConfig,
    lift: float,
    every: Sequence[Found],
    rows: Sequence[Sequence[Mapping[str, Any]]],
    flags: str,
) -> str:
    """Return the report as Markdown."""
    seeds = len(every[0].fresh[every[0].reference])
    met = counted([row for some in rows for row in some])
    parts = [
        "# Does the prediction hold in real training?",
        "",
        f"`python -m llm.confirm{flags}`: a {train.model} policy, G = {train.num_generations}, "
        f"reference batch B = {train.batch_size}, compute (P1) until greedy test pass@1 is up by "
        f"{lift:g}. The pilot and the search for step sizes have seeds of their own; everything "
        f"below is measured on {seeds} fresh ones. Intervals are 95 %.",
        "",
        "![saving against the cost ratio, predicted and measured](confirm.png)",
        "",
        "| aim | met in |",
        "|---|---|",
        f"| predicted design within {100 * CLOSE:.0f} % of the study's best | {of(met['close'])} |",
        f"| verdict right, where the measurement decides | {of(met['right'])} |",
        f"| measured saving inside the predicted interval (aim 80 %) | {of(met['inside'])} |",
    ]
    for found, some in zip(every, rows, strict=True):
        parts += task_section(found, some)
    parts += [
        "",
        "Saving is 1 - cost / cost of on-policy training at the reference batch, each design at "
        "its best step size. The predicted saving is that of the cheapest replay design, and "
        "negative where the theory says replay does not pay; the predicted design is then "
        "on-policy training. Its interval resamples the pilot's seeds and has the law's own error "
        "from the simulator (`docs/validation_notes.md`). The measured verdict is of the best "
        "replay design of all measured, chosen on one half of the seeds and priced on the other. "
        "Regret is the cost of the predicted design over that of the study's best, less 1.",
    ]
    return "\n".join(parts) + "\n"


def of(count: tuple[int, int]) -> str:
    """Return ``a of b``."""
    return f"{count[0]} of {count[1]}"


def task_section(found: Found, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the part of the page on one task."""
    law = fitted(found.pilot)
    beta = found.noise.noise_scale
    batch = found.reference.batch_size
    profile = found.profile.profile
    ages = [age for age in (1, 2, 4, 8, 16, 32) if age < len(profile.values)]
    staleness = ", ".join(f"{float(profile(age)):.3f} at {age}" for age in ages)
    total = found.rollouts + found.tuning_rollouts
    once = found.fresh[found.reference].mean() * batch
    parts = [
        "",
        f"## {found.task}",
        "",
        f"Warm start: pass@1 {found.start:.3f}. Noise scale {span(beta)} rollouts, so beta = "
        f"{beta.value / batch:.2f}; S_min {span(found.noise.min_updates)} updates"
        f"{remark(found.noise.message)}. Noise of stale rollouts over that of fresh ones, by age "
        f"in updates: {staleness or 'no age measured'}. mu of the machine that ran this: "
        f"{span(found.ratio)}.",
        "",
        f"The pilot generated {found.rollouts:,} rollouts, {found.rollouts / once:.0f} times what "
        f"one reference run needs, and the search for step sizes {found.tuning_rollouts:,} more "
        f"({total:,} in all).",
        "",
        "| pilot | step size | updates to target, mean (seeds) | law | not arrived |",
        "|---|---|---|---|---|",
    ]
    for shape, runs in found.pilot.items():
        guess = float(np.ravel(law.updates(arrays([shape])))[0])
        each = ", ".join(f"{run:.0f}" for run in runs)
        late = int(np.sum(runs >= found.given[shape]))
        parts.append(
            f"| {shape} | {found.rates[shape]:.2g} | {runs.mean():.0f} ({each}) | {guess:.0f} "
            f"| {late} |"
        )
    parts += [
        "",
        "| mu | predicted design | best replay: predicted saving | measured | paper's closed form "
        "| study's best | best smaller batch on-policy | regret | verdict predicted | measured |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        regret = "-" if row["design_regret"] is None else f"{100 * row['design_regret']:.0f} %"
        study = "no trial arrived"
        if row["study_design"] is not None:
            study = f"{row['study_design']}: {shown(row['study_saving'])}"
        smaller = row["smaller_batch_saving"]
        parts.append(
            f"| {row['gen_train_ratio']:g} | {row['predicted_design']} | "
            f"{row['best_replay_design']}: {shown(row['predicted_saving'])} | "
            f"{shown(row['measured_saving'])} "
            f"| {row['paper_design']}: {shown(row['paper_saving'])} "
            f"| {study} | {'-' if smaller is None else shown(smaller)} | {regret} | "
            f"{row['verdict_predicted']} | {row['verdict_measured']} |"
        )
    parts += [
        "",
        "| fresh seeds | step size | updates to target, mean [quartiles] | not arrived |",
        "|---|---|---|---|",
    ]
    entries = [(str(shape), found.rates[shape], shape, runs) for shape, runs in found.fresh.items()]
    entries += [
        (f"study, mu {mu:g}: {shape}", rate, shape, runs)
        for mu, (shape, rate, runs) in found.studies.items()
    ]
    for name, rate, shape, runs in entries:
        low, high = np.percentile(runs, [25, 75])
        late = int(np.sum(runs >= found.given[shape]))
        parts.append(
            f"| {name} | {rate:.2g} | {runs.mean():.0f} [{low:.0f}, {high:.0f}] | {late} |"
        )
    return parts


def span(estimate: Estimate) -> str:
    """Return ``value [low, high]``."""
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


def remark(message: str) -> str:
    """Return a message in brackets, nothing if there is none."""
    return f" ({message})" if message else ""


def draw(every: Sequence[Found], rows: Sequence[Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw predicted and measured savings against mu, one panel a task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 4.6 * len(every), 4.4), layout="constrained")
    panels = figure.subplots(1, len(every), squeeze=False)[0]
    kinds = [
        ("measured_saving", "prediction, measured", "C0", "o"),
        ("paper_saving", "paper's closed form", "C1", "s"),
        ("study_saving", "study's best", "C2", "^"),
        ("smaller_batch_saving", "smaller batch on-policy", "C3", "D"),
    ]
    for axis, found, some in zip(panels, every, rows, strict=True):
        some = sorted(some, key=lambda row: row["gen_train_ratio"])
        places = np.arange(len(some))
        guess = [row["predicted_saving"] for row in some]
        axis.fill_between(
            places,
            [one["low"] for one in guess],
            [one["high"] for one in guess],
            color="C0",
            alpha=0.15,
            lw=0,
            label="best replay, predicted",
        )
        axis.plot(places, [one["value"] for one in guess], color="C0", lw=1)
        for offset, (name, label, color, marker) in enumerate(kinds):
            known = [
                (place, row[name])
                for place, row in zip(places, some, strict=True)
                if row[name] is not None and row[name]["value"] is not None
            ]
            for place, one in known:
                ends = [one[end] if one[end] is not None else math.nan for end in ("low", "high")]
                where = place + 0.08 * (offset - 1.5)
                axis.plot([where, where], ends, color=color, lw=1)
                axis.plot(where, one["value"], marker, color=color, ms=4.5)
            axis.plot([], [], marker, color=color, label=label)
        axis.axhline(0, color="grey", lw=0.7, ls="--")
        axis.set_xticks(places, [f"{row['gen_train_ratio']:g}" for row in some])
        axis.set(title=found.task, xlabel="mu", ylabel="saving")
        axis.set_ylim(-1.5, 1)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=100, metadata={"Software": None})
