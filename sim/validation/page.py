"""The validation's page: numbers as JSON, the same as a readable page, and one figure."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim.validation.judge import (
    BATCH_RULES,
    GROUPS,
    PROTOCOLS,
    Verdicts,
    in_group,
    judged,
    scored,
    undecided_share,
)
from sim.validation.measure import GEN_TRAIN_RATIOS, Runs, rollouts
from sim.validation.predictors import PREDICTORS
from sim.validation.score import Interval, Scores, outcomes, over_environments, predicted_costs
from theory.run_folder import replace_text

BEST = "finite_memory"
TITLES = {
    "tuned": "Step size tuned for every design",
    "fixed_step": "Step size of the reference run for every design",
    "fixed_batch": "batch fixed",
    "free_batch": "smaller on-policy batches allowed",
}


def write_page(found: Sequence[Runs], half: str, folders: Sequence[Path]) -> str:
    """Judge the runs, write validation.json, .md and .png to the folders; return the page."""
    verdicts = [judged(runs) for runs in found]
    table = {
        protocol: {
            batch: {
                group: {name: scored(verdicts, protocol, batch, group, name) for name in PREDICTORS}
                for group in GROUPS
                if any(in_group(one, group) for one in verdicts)
            }
            for batch in BATCH_RULES
        }
        for protocol in PROTOCOLS
    }
    text = page(table, verdicts, found, half)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "validation.json", json.dumps(plain(table), indent=1) + "\n")
        replace_text(folder / "validation.md", text)
        draw(verdicts, folder / "validation.png")
    return text


def plain(node: object) -> object:
    """Return the scores as nested plain values, null for what is not known."""
    if isinstance(node, dict):
        return {name: plain(one) for name, one in node.items()}
    if isinstance(node, Scores | Interval):
        return {one.name: plain(getattr(node, one.name)) for one in dataclasses.fields(node)}
    return round(node, 6) if isinstance(node, float) and np.isfinite(node) else None


def percent(one: Interval) -> str:
    """Return a share and its interval."""
    if np.isnan(one.value):
        return "-"
    return f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]".replace("%", " %")


def page(table: dict, verdicts: Sequence[Verdicts], found: Sequence[Runs], half: str) -> str:
    """Return the page."""
    scored_ones = [one for one in verdicts if not one.trapped]
    families = list(dict.fromkeys(one.environment.family for one in verdicts))
    lines = [
        "# Does it predict?",
        "",
        f"Written by `python -m sim.validate{'' if half == 'judgement' else f' --half {half}'}"
        " --page docs` from the rows it measured.",
        "",
        f"{len(verdicts)} environments of the {half} half, {len(scored_ones)} of them scored; "
        f"cost ratios {', '.join(f'{mu:g}' for mu in GEN_TRAIN_RATIOS)}. Regret: measured cost of "
        "the design a predictor takes, over that of the best measured one, minus 1. Verdict: "
        "whether replay costs less than on-policy, scored where the 95 % interval of the measured "
        "ratio excludes 1. Brackets: 95 % intervals over environments.",
        "",
    ]
    for protocol in PROTOCOLS:
        lines += [f"## {TITLES[protocol]}", ""]
        for batch in BATCH_RULES:
            for group, by_name in table[protocol][batch].items():
                out = undecided_share(verdicts, protocol, batch, group)
                count = sum(in_group(one, group) for one in verdicts)
                lines += [
                    f"### {TITLES[batch]}, {group} ({count} environments)",
                    "",
                    "| predictor | median regret | 90th percentile | verdict right |",
                    "|---|---|---|---|",
                ]
                lines += [
                    f"| {name} | {percent(one.median_regret)} | {percent(one.p90_regret)} | "
                    f"{percent(one.verdict_accuracy)} |"
                    for name, one in by_name.items()
                ]
                lines += ["", f"Left out of the verdicts as undecided: {out:.0%}.", ""]
    lines += beside_others(scored_ones)
    lines += wrong_verdicts(scored_ones)
    lines += ["## Environments and budget", ""]
    lines += [
        "| family | environments | left out: trapped | beta | reference updates | "
        "rollouts of the sweep | pilot's share |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in families:
        members = [one for one in found if one.environment.family == family]
        own = [one for one in verdicts if one.environment.family == family]
        betas = [one.environment.noise_to_batch for one in members]
        updates = [one.environment.updates for one in members]
        rows = [row for one in members for row in one.all_rows()]
        pilot = rollouts([row for row in rows if row.phase == "pilot"])
        sweep = rollouts([row for row in rows if row.phase != "pilot"])
        lines.append(
            f"| {family} | {len(members)} | {sum(one.trapped for one in own)} | "
            f"{min(betas):.2g} to {max(betas):.2g} | {min(updates):.0f} to {max(updates):.0f} | "
            f"{sweep:.2e} | {pilot / sweep:.1%} |"
        )
    return "\n".join([*lines, ""])


def beside_others(verdicts: Sequence[Verdicts]) -> list[str]:
    """Return how far the best predictor is ahead of each other on the same cases."""
    lines = [
        f"## {BEST} beside each other predictor",
        "",
        "Step size tuned, batch fixed, environment by environment: mean regret of the other less "
        f"that of {BEST}, and the same of verdicts right; above 0 is better than the other. The "
        "share of pairs of environments and cost ratios where one's design costs less:",
        "",
        f"| other | regret saved | verdicts gained | {BEST} cheaper | other cheaper |",
        "|---|---|---|---|---|",
    ]
    mine = outcomes_of(verdicts, BEST)
    for name in PREDICTORS:
        if name == BEST:
            continue
        other = outcomes_of(verdicts, name)
        saved, gained = other[0] - mine[0], mine[1] - other[1]
        lines.append(
            f"| {name} | {percent(over_environments(saved))} | "
            f"{percent(over_environments(gained))} | {np.mean(saved > 0):.0%} | "
            f"{np.mean(saved < 0):.0%} |"
        )
    return [*lines, ""]


def outcomes_of(verdicts: Sequence[Verdicts], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return regret and whether the verdict is right, step size tuned, batch fixed."""
    cases = [case for one in verdicts for case in one.cases["tuned", "fixed_batch"]]
    choices = [choice for one in verdicts for choice in one.choices["tuned", "fixed_batch", name]]
    return outcomes(cases, choices)


def wrong_verdicts(verdicts: Sequence[Verdicts]) -> list[str]:
    """Return the decided cases that the best predictor gets wrong."""
    lines = [
        f"## Where {BEST}'s verdict is wrong",
        "",
        "Step size tuned, batch fixed. Cost of the best replay design over on-policy:",
        "",
        "| environment | beta | cost ratio mu | measured | predicted |",
        "|---|---|---|---|---|",
    ]
    for one in verdicts:
        arena, predicted = one.arenas["tuned"], one.predicted["tuned", BEST]
        for case, choice in zip(
            one.cases["tuned", "fixed_batch"],
            one.choices["tuned", "fixed_batch", BEST],
            strict=True,
        ):
            if not case.decided or case.pays == choice.pays:
                continue
            cost = predicted_costs(arena, "fixed_batch", predicted, case.gen_train_ratio)
            ratio = min(cost[design] for design in arena.replay) / cost[arena.reference]
            lines.append(
                f"| {one.environment.id} | {one.environment.noise_to_batch:.2g} | "
                f"{case.gen_train_ratio:g} | {case.ratio:.2f} [{case.low:.2f}, {case.high:.2f}] | "
                f"{ratio:.2f} |"
            )
    return [*lines, ""]


def draw(verdicts: Sequence[Verdicts], path: Path) -> None:
    """Draw predicted beside measured cost of every replay design, and regret by predictor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    name = BEST if BEST in PREDICTORS else list(PREDICTORS)[-1]
    for smooth, colour in ((True, "#0072b2"), (False, "#d55e00")):
        said, seen = [], []
        for one in verdicts:
            if one.trapped or one.environment.smooth != smooth:
                continue
            arena, predicted = one.arenas["tuned"], one.predicted["tuned", name]
            base = arena.runs[arena.reference].mean
            for design in arena.replay:
                if np.isfinite(predicted.get(design, np.inf)):
                    said.append(predicted[design] / predicted[arena.reference])
                    seen.append(arena.runs[design].mean / base)
        label = "smooth" if smooth else "plain"
        axes[0].loglog(said, seen, ".", color=colour, label=label, alpha=0.6)
    span = np.array(axes[0].get_xlim())
    axes[0].plot(span, span, color="black", linewidth=0.8)
    axes[0].set_xlabel(f"updates predicted / on-policy ({name})")
    axes[0].set_ylabel("updates measured / on-policy")
    axes[0].legend(frameon=False)
    scored_ones = [one for one in verdicts if not one.trapped]
    for each in PREDICTORS:
        values = np.sort(outcomes_of(scored_ones, each)[0], axis=None)
        axes[1].plot(values, np.linspace(0, 1, len(values)), label=each)
    axes[1].set_xscale("symlog", linthresh=0.05)
    ticks = (-0.1, 0, 0.1, 1, 10)
    axes[1].set_xticks(ticks, [f"{tick:.0%}" for tick in ticks])
    axes[1].set_xlabel("design regret, step size tuned, batch fixed")
    axes[1].set_ylabel("share of cases below")
    axes[1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
