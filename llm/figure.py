"""The picture of one run: accuracy, reward, entropy, and what replay did to the rollouts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def summed(rows: list[dict[str, Any]], name: str) -> dict[str, int]:
    """Return a histogram of the log summed over all updates."""
    total: Counter[str] = Counter()
    for row in rows:
        if "histograms" in row:
            total.update(row["histograms"][name])
    ordered = sorted(total, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else 0))
    return {key: total[key] for key in ordered}


def ess_by_age(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ages, and the mean effective sample size of their rollouts as a fraction."""
    totals: dict[int, list[float]] = {}
    for row in rows:
        table = row.get("by_age", {"age": [], "rollouts": [], "ess": []})
        for age, number, ess in zip(table["age"], table["rollouts"], table["ess"], strict=True):
            weight, value = totals.get(age, [0.0, 0.0])
            totals[age] = [weight + number, value + number * ess]
    ages = np.array(sorted(totals))
    return ages, np.array([totals[age][1] / totals[age][0] for age in ages])


def draw_run(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the log of a run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    axes = figure.subplots(2, 4)
    trained = [row for row in rows if "reward" in row]
    updates = [row["update"] for row in trained]
    tested = [row for row in rows if "pass1" in row]
    axes[0, 0].plot([r["update"] for r in tested], [r["pass1"] for r in tested], label="pass@1")
    sampled = [row for row in rows if "passk" in row]
    for k in sampled[0]["passk"] if sampled else ():
        values = [row["passk"][k] for row in sampled]
        axes[0, 0].plot([r["update"] for r in sampled], values, "o--", ms=3, label=f"pass@{k}, T=1")
    axes[0, 0].set(title="test accuracy", ylim=(0, 1))
    axes[0, 0].legend(fontsize=7, loc="upper left")
    axes[0, 1].plot(updates, [row["reward"] for row in trained], lw=0.7)
    axes[0, 1].set(title="reward of new rollouts")
    axes[0, 2].plot(updates, [row["entropy"] for row in trained], lw=0.7)
    axes[0, 2].set(title="entropy, nats a token")
    axes[0, 3].plot(updates, [row["clip_share"] for row in trained], lw=0.7, label="tokens cut")
    share = [row["zero_variance_share"] for row in trained]
    axes[0, 3].plot(updates, share, lw=0.7, label="groups of equal rewards")
    axes[0, 3].set(title="shares")
    axes[0, 3].legend(fontsize=7, loc="upper left")
    for axis in axes[0]:
        axis.set_xlabel("update")
    titles = {
        "age": "age at use, updates",
        "uses_when_evicted": "uses of a rollout",
        "updates_since_last_use": "updates since last use",
    }
    for axis, (name, title) in zip(axes[1], titles.items(), strict=False):
        found = summed(rows, name)
        axis.bar(range(len(found)), found.values())
        step = max(1, len(found) // 8)
        axis.set_xticks(range(0, len(found), step), list(found)[::step])
        axis.set(title=title, ylabel="rollouts")
    ages, ess = ess_by_age(rows)
    axes[1, 3].plot(ages, ess, "o-", ms=3)
    axes[1, 3].set(title="effective sample size by age", xlabel="age, updates", ylim=(0, 1.05))
    figure.savefig(path, dpi=90, metadata={"Software": None})


def draw_curves(curves: Sequence[Sequence[tuple[float, float]]], path: Path) -> None:
    """Draw the score of several seeds against compute."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axis = figure.subplots()
    for place, curve in enumerate(curves):
        axis.plot(*zip(*curve, strict=True), "o-", ms=2, label=f"seed {place}")
    axis.set(xlabel="compute, training-cost units", ylabel="score")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=90, metadata={"Software": None})
