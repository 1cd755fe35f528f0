"""The reuse law (L1, L3, L5) beside the exact dynamics (Q7): where they part, and by how much.

Quadratics of 200 modes with spectrum i^-a and noise covariance proportional to the curvature,
B = 64, target 2 % of the initial loss. For each stated beta the noise is the one for which the
updates of exact on-policy runs at B = 16, 64 and 256, fitted by U = S_min (1 + Bnoise/B), give that
beta, as a practitioner would measure it. Then the law's cost ratio to on-policy is set beside the
exact one, fill counted. Three ways to set the step size:

- tuned: every run, on-policy or not, has the best step of a grid up to 0.999 of the stable limit;
- capped: the same with eta lambda_max <= 1 (q >= 0 in every mode), beta fitted anew;
- fixed: every replay design keeps the tuned on-policy step of B = 64.

    python -m benchmarks.law_against_exact            prints, writes law_against_exact.json and the
                                                      tables of docs/reuse_law.md
    python -m benchmarks.law_against_exact --no-save  prints only
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import tyro

from theory.calibrate import noise_scale_from_updates
from theory.cost import cost_to_target
from theory.long_run import long_run_cost
from theory.pricing import BestStep, best_step_size, updates_to_target
from theory.quadratic import Quadratic, initial_loss, power_law_quadratic
from theory.reuse import large_buffer_cost_ratio, reuse_cost_ratio
from theory.sampling import Array, ReplayDesign, replay_design

MODES, TARGET, BATCH = 200, 0.02, 64
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0)
BETAS = (0.01, 0.07, 0.3, 1.0, 3.0, 10.0, 30.0)
RATIOS = (1.0, 5.28, 20.0)
USES = np.array([2, 4, 8, 16])
BUFFERS = np.array([1, 16])  # N in batches
FIT_BATCHES = np.array([16, 64, 256])
NOISE_RANGE, HALVINGS = (0.005, 10.0), 16
FEW_UPDATES = 200
PAYS = 0.995
TOLERANCE = 0.1  # of the law, of the fitted beta and of the fit of U(B)
HORIZONS = (0.0, 0.3, 1.0, 3.0, 10.0, math.inf)

DESIGNS = replay_design(BATCH, BATCH // USES, BATCH * BUFFERS[:, None])
ON_POLICY = replay_design(FIT_BATCHES, FIT_BATCHES, FIT_BATCHES)
SAVED = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "reuse_law.md"
BEGIN = "<!-- written by python -m benchmarks.law_against_exact: do not edit by hand -->"
END = "<!-- end of what the benchmark writes -->"
LAWS = {"N = B, L1": 0, "N = 16 B, L5, fill counted": 1, "N = 16 B, L3": 1}


@dataclass(frozen=True)
class Row:
    """One spectrum, beta and way to set the step size.

    Attributes:
        protocol: "tuned", "capped" or "fixed".
        spectrum_power: a.
        noise_to_batch: beta as stated.
        fitted: beta as fitted, as near to it as any noise gives.
        noise_std: the noise that gives it.
        min_updates: S_min of the fit.
        misfit: largest relative distance of the fitted U(B) from the exact one.
        on_policy_updates: exact U at B = 16, 64 and 256.
        on_policy_step: eta lambda_max at B = 64.
        updates: exact U, one list a buffer size, by y; None: not in a million.
        steps: eta lambda_max, same shape; None where not reached.
        inside: whether every tuned step lies inside its grid.
    """

    protocol: str
    spectrum_power: float
    noise_to_batch: float
    fitted: float
    noise_std: float
    min_updates: float
    misfit: float
    on_policy_updates: list[float]
    on_policy_step: float
    updates: list[list[float | None]]
    steps: list[list[float | None]]
    inside: bool

    @property
    def fault(self) -> str:
        """Why the row says nothing about the law, empty if it does."""
        if abs(self.fitted / self.noise_to_batch - 1) > TOLERANCE:
            return f"no noise gives this beta; nearest {round(self.fitted, 3):g}"
        if self.misfit > TOLERANCE:
            return f"U(B) is off its own fit by {self.misfit:.0%}"
        return ""

    @property
    def on_policy(self) -> float:
        """Exact U on-policy at B = 64."""
        return self.on_policy_updates[1]


def step_grid(problem: Quadratic, count: int, protocol: str) -> Array:
    """Equal ratios at small steps and, tuned, equal ratios of the distance to the limit near it."""
    limit = 2 / problem.curvature.max()
    if protocol == "capped":
        return np.geomspace(1e-4, 0.5, count) * limit
    odds = np.geomspace(1e-4, 1e3, count)
    return odds / (1 + odds) * limit


def setting(power: float, noise_std: float) -> tuple[Quadratic, float]:
    problem = power_law_quadratic(MODES, power, noise_std)
    return problem, TARGET * initial_loss(problem)


def best(
    problem: Quadratic, target: float, design: ReplayDesign, count: int, protocol: str
) -> BestStep:
    rates = step_grid(problem, count, protocol)
    return best_step_size(problem, design, target, 1.0, learning_rates=rates)


def on_policy_row(power: float, beta: float, noise: float, count: int, protocol: str) -> Row:
    """On-policy runs at three batches and the fit of U(B); beta is infinite if S_min is 0."""
    problem, target = setting(power, noise)
    runs = best(problem, target, ON_POLICY, count, protocol)
    updates = np.asarray(runs.updates)
    fitted, least, misfit = math.inf, math.nan, math.inf
    if np.isfinite(updates).all():
        fit = noise_scale_from_updates(FIT_BATCHES, list(updates))
        fitted, least = fit.noise_scale.value / BATCH, fit.min_updates.value
        if math.isfinite(fitted):
            law = least * (1 + fitted * BATCH / FIT_BATCHES)
            misfit = float(np.abs(law / updates - 1).max())
    step = float(np.asarray(runs.learning_rate)[1] * problem.curvature.max())
    counts, inside = updates.tolist(), bool(np.all(runs.converged))
    return Row(
        protocol, power, beta, fitted, noise, least, misfit, counts, step, [[]], [[]], inside
    )


def row_at_beta(power: float, beta: float, count: int, protocol: str) -> Row:
    """The noise whose fitted beta is nearest to the stated one, found by halving its logarithm."""
    low, high = np.log(NOISE_RANGE)
    tried = []
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried.append(on_policy_row(power, beta, float(np.exp(middle)), count, protocol))
        low, high = (middle, high) if tried[-1].fitted < beta else (low, middle)
    return min(tried, key=lambda row: abs(row.fitted - beta))


def with_designs(row: Row, count: int) -> Row:
    """The row with the exact updates of every replay design."""
    problem, target = setting(row.spectrum_power, row.noise_std)
    if row.protocol == "fixed":
        rate = row.on_policy_step / problem.curvature.max()
        updates = np.asarray(updates_to_target(problem, rate, DESIGNS, target))
        rates, inside = np.where(np.isfinite(updates), rate, np.nan), row.inside
    else:
        found = best(problem, target, DESIGNS, count, row.protocol)
        updates, rates = np.asarray(found.updates), np.asarray(found.learning_rate)
        inside = row.inside and bool(np.all(found.converged))
    steps = rates * problem.curvature.max()
    return replace(row, updates=_listed(updates), steps=_listed(steps), inside=inside)


def measured(power: float, beta: float, count: int) -> list[Row]:
    """All three rows of one spectrum and beta."""
    tuned = row_at_beta(power, beta, count, "tuned")
    rows = [tuned, row_at_beta(power, beta, count, "capped"), replace(tuned, protocol="fixed")]
    return [with_designs(row, count) for row in rows]


def exact_ratios(row: Row, mu: float) -> Array:
    """Cost over on-policy by buffer and y, fill counted; infinite where not reached."""
    updates = np.array(row.updates, dtype=float)
    counts = np.where(np.isnan(updates), np.inf, updates)
    once = cost_to_target(row.on_policy, BATCH, BATCH, BATCH, mu)
    return np.asarray(cost_to_target(counts, *DESIGNS[:3], mu)) / once


def law_ratios(row: Row, law: str, mu: float) -> Array:
    """What a law says for the fitted beta, by y."""
    if law == "N = B, L1":
        return np.asarray(reuse_cost_ratio(USES, mu, row.fitted))
    if law == "N = 16 B, L3":
        return np.asarray(large_buffer_cost_ratio(USES, mu, row.fitted))
    priced = {"noise_scale": row.fitted * BATCH, "min_updates": row.min_updates}
    large = ReplayDesign(*(field[1] for field in DESIGNS))
    once = long_run_cost(replay_design(BATCH, BATCH, BATCH), mu, **priced)
    return np.asarray(long_run_cost(large, mu, **priced)) / once


def differences(row: Row, law: str, mu: float) -> Array:
    """Law over exact, less 1, by y; -1 where the target is not reached."""
    return law_ratios(row, law, mu) / exact_ratios(row, mu)[LAWS[law]] - 1


def verdicts(row: Row, law: str, mu: float) -> tuple[bool, bool]:
    """Whether some y saves half a per cent or more: exactly, and by the law."""
    exact, said = exact_ratios(row, mu)[LAWS[law]], law_ratios(row, law, mu)
    return bool(exact.min() <= PAYS), bool(said.min() <= PAYS)


def regret(row: Row, law: str, mu: float) -> float:
    """Exact cost at the law's choice of y (1 included) over that of the best y, less 1."""
    exact = np.append(1.0, exact_ratios(row, mu)[LAWS[law]])
    said = np.append(1.0, law_ratios(row, law, mu))
    return float(exact[said.argmin()] / exact.min() - 1)


def page_text(rows: list[Row], grid_change: list[float]) -> str:
    """Everything between the two markers of docs/reuse_law.md."""
    return "\n\n".join(
        [
            "### Shares",
            _shares(rows),
            "With half as many step sizes no cost ratio at mu = 5.28 changes by more than "
            f"{grid_change[0]:.1%}, and none by more than {grid_change[1]:.1%} where U >= "
            f"{FEW_UPDATES}.",
            "### Median difference by beta, mu = 5.28",
            _by_beta(rows),
            "### By eta lambda_max x, mu = 5.28",
            _by_horizon(rows),
            "### Tuned step size, mu = 5.28",
            _cells(rows, "tuned"),
            "### Fixed step size, mu = 5.28",
            _cells(rows, "fixed"),
            *_all_verdicts(rows),
        ]
    )


def _chosen(rows: Iterable[Row], protocol: str, long_only: bool = False) -> list[Row]:
    """The rows of a protocol that say something about the law."""
    least = FEW_UPDATES if long_only else 0
    some = [row for row in rows if row.protocol == protocol and row.on_policy >= least]
    return [row for row in some if not row.fault]


def _shares(rows: list[Row]) -> str:
    head = ["step", "law", "mu", "cells", "within 10 %", "law too dear", "law too cheap"]
    head += [f"within 10 %, U >= {FEW_UPDATES}", "verdict agrees", "regret: median", "largest"]
    lines = [_line(head), _line(["---"] * len(head))]
    for protocol, mu in [("tuned", mu) for mu in RATIOS] + [("capped", 5.28), ("fixed", 5.28)]:
        for law in LAWS:
            some, long = _chosen(rows, protocol), _chosen(rows, protocol, long_only=True)
            off = np.array([differences(row, law, mu) for row in some])
            off_long = np.array([differences(row, law, mu) for row in long])
            agree = [len(set(verdicts(row, law, mu))) == 1 for row in some]
            lost = np.array([regret(row, law, mu) for row in some])
            parts = [np.abs(off) <= TOLERANCE, off > TOLERANCE, off < -TOLERANCE]
            within = np.abs(off_long) <= TOLERANCE
            cells = [protocol, law, f"{mu:g}", off.size, *(f"{part.mean():.0%}" for part in parts)]
            cells += [f"{within.mean():.0%} of {within.size}", f"{sum(agree)} of {len(agree)}"]
            lines.append(_line([*cells, _percent(float(np.median(lost))), _percent(lost.max())]))
    return "\n".join(lines)


def _by_beta(rows: list[Row]) -> str:
    head = ["step", "law", *(f"beta {beta:g}" for beta in BETAS)]
    lines = [_line(head), _line(["---"] * len(head))]
    for protocol in ("tuned", "capped", "fixed"):
        for law in list(LAWS)[:2]:
            cells = [protocol, law]
            for beta in BETAS:
                some = [r for r in _chosen(rows, protocol) if r.noise_to_batch == beta]
                off = np.array([differences(row, law, 5.28) for row in some])
                cells.append(_summary(off))
            lines.append(_line(cells))
    return "\n".join(lines)


def _by_horizon(rows: list[Row]) -> str:
    head = ["eta lambda_max x", "law", "cells", "within 10 %", "median difference", "largest"]
    lines = [_line(head), _line(["---"] * len(head))]
    for law in list(LAWS)[:2]:
        some = [r for r in _chosen(rows, "tuned", long_only=True) if r.noise_to_batch >= 0.3]
        off = np.concatenate([differences(row, law, 5.28) for row in some])
        horizon = (DESIGNS.buffer_size / DESIGNS.rollouts_per_update)[LAWS[law]]
        steps = np.concatenate([np.array(row.steps, float)[LAWS[law]] * horizon for row in some])
        for low, high in pairwise(HORIZONS):
            there = off[(steps >= low) & (steps < high)]
            if there.size:
                name = f"{low:g} to {high:g}" if np.isfinite(high) else f"{low:g} and more"
                share = f"{(np.abs(there) <= TOLERANCE).mean():.0%}"
                largest = there[np.abs(there).argmax()]
                parts = [name, law, there.size, share, _signed(np.median(there)), _signed(largest)]
                lines.append(_line(parts))
    return "\n".join(lines)


def _cells(rows: list[Row], protocol: str) -> str:
    head = ["a", "beta", "U", *(f"N = B, y = {uses}" for uses in USES)]
    head += [f"N = 16 B, y = {uses}" for uses in USES]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in (row for row in rows if row.protocol == protocol):
        few = "*" if row.on_policy < FEW_UPDATES else ""
        cells = [f"{row.spectrum_power:g}", f"{row.noise_to_batch:g}", f"{row.on_policy:.0f}{few}"]
        if row.fault:
            lines.append(_line([*cells, row.fault, *[""] * 7]))
            continue
        for law in list(LAWS)[:2]:
            exact, said = exact_ratios(row, 5.28)[LAWS[law]], law_ratios(row, law, 5.28)
            cells += [_cell(e, s) for e, s in zip(exact, said, strict=True)]
        lines.append(_line(cells))
    return "\n".join(lines)


def _all_verdicts(rows: list[Row]) -> list[str]:
    parts = []
    for protocol, mu in [("tuned", mu) for mu in RATIOS] + [("fixed", 5.28)]:
        parts += [f"### Does replay pay? {protocol} step size, mu = {mu:g}"]
        lines = [_line(["a", *(f"beta {b:g}" for b in BETAS)]), _line(["---"] * (len(BETAS) + 1))]
        for power in POWERS:
            some = [r for r in rows if (r.protocol, r.spectrum_power) == (protocol, power)]
            lines.append(_line([f"{power:g}", *(_verdict(row, mu) for row in some)]))
        parts.append("\n".join(lines))
    return parts


def _verdict(row: Row, mu: float) -> str:
    if row.fault:
        return "—"
    words = []
    for law in list(LAWS)[:2]:
        exact, said = verdicts(row, law, mu)
        yes = "yes" if exact else "no"
        words.append(yes if exact == said else f"**{yes}** (law {'yes' if said else 'no'})")
    return " / ".join(words)


def _cell(exact: float, said: float) -> str:
    if not math.isfinite(exact):
        return f"never (**law {said:.2f}**)"
    off = said / exact - 1
    text = _signed(off)
    return f"{exact:.2f} (**{text}**)" if abs(off) > TOLERANCE else f"{exact:.2f} ({text})"


def _summary(off: Array) -> str:
    if not off.size:
        return "—"
    middle = float(np.median(off))
    return "never" if middle == -1 else _signed(middle)


def _signed(value: float) -> str:
    return f"{100 * value + 0.0:+.0f} %".replace("-0 %", "+0 %")


def _percent(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "never reached"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _listed(values: Array) -> list[list[float | None]]:
    rounded = ((float(f"{v:.7g}") if np.isfinite(v) else None for v in line) for line in values)
    return [list(line) for line in rounded]


def grid_changes(rows: Iterable[Row], count: int) -> list[float]:
    """Largest relative change of a usable cost ratio with ``count`` step sizes, the noise kept.

    Over all rows, and over those with enough updates.
    """
    changes, long = [0.0], [0.0]
    for row in rows:
        if row.protocol != "fixed" and not row.fault:
            args = (row.spectrum_power, row.noise_to_batch, row.noise_std, count, row.protocol)
            other = with_designs(on_policy_row(*args), count)
            ratio = exact_ratios(other, 5.28) / exact_ratios(row, 5.28)
            changes.append(float(np.abs(ratio - 1).max()))
            if row.on_policy >= FEW_UPDATES:
                long.append(changes[-1])
    return [max(changes), max(long)]


def saved_result() -> tuple[list[Row], list[float]]:
    """Rows and changes by the grid as saved."""
    record = json.loads(SAVED.read_text())
    return [Row(**row) for row in record["rows"]], record["grid_change"]


def write(rows: list[Row], grid_change: list[float], count: int) -> None:
    settings = {
        "modes": MODES,
        "target": TARGET,
        "batch_size": BATCH,
        "step_sizes": count,
        "replay_ratios": USES.tolist(),
        "buffers_in_batches": BUFFERS.tolist(),
        "fit_batches": FIT_BATCHES.tolist(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "grid_change": grid_change,
    }
    lines = ",\n".join("    " + json.dumps(asdict(row)) for row in rows)
    head = json.dumps(settings, indent=2).removesuffix("\n}")
    SAVED.write_text(f'{head},\n  "rows": [\n{lines}\n  ]\n}}\n')
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{page_text(*saved_result())}\n\n{END}{after}")


def main(step_sizes: int = 240, save: bool = True) -> None:
    """Measure every cell, check the step-size grid, print the tables and write them.

    Args:
        step_sizes: step sizes tried for each design, >= 160.
        save: write the JSON file beside this one and the tables of docs/reuse_law.md.
    """
    if step_sizes < 160:
        print(f"step_sizes = {step_sizes} is not allowed: it must be >= 160", file=sys.stderr)
        raise SystemExit(2)
    started, rows = time.perf_counter(), []
    for power in POWERS:
        for beta in BETAS:
            rows += measured(power, beta, step_sizes)
        spent = time.perf_counter() - started
        print(f"spectrum i^-{power:g}: {spent:.0f} s", file=sys.stderr)
    rows.sort(key=lambda row: (row.protocol, row.spectrum_power, row.noise_to_batch))
    grid_change = grid_changes(rows, step_sizes // 2)
    outside = [row for row in rows if row.protocol == "tuned" and not (row.inside or row.fault)]
    if outside:
        print(f"{len(outside)} rows have their best step at an end of the grid", file=sys.stderr)
    print(page_text(rows, grid_change))
    if save:
        write(rows, grid_change, step_sizes)


if __name__ == "__main__":
    tyro.cli(main)
