"""A design from the published bound alone: whole rollouts, whole GPUs, a verdict, its warnings.

Model: P8's J (``theory.bound``). R and N are the best whole numbers of all
(``theory.whole_designs``), not a rounded optimum.

Fails where the bound does. The verdict compares with the bound's own on-policy baseline, which
draws with replacement; every ``replay`` verdict therefore carries the ratio to the true one.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm, log

from theory.design import Design
from theory.optimum import (
    DEFAULT_ALPHA,
    DEFAULT_RHO,
    Optimum,
    power_law_optimum,
    profile_optimum,
)
from theory.quantities import fraction, non_negative
from theory.replay_choice import batch_notes, moved_batch
from theory.split import gpu_splits, split_replay_ratio
from theory.staleness import PowerLaw, Profile
from theory.whole_designs import Job, WholeDesign, best_whole_design


def bound_design(
    gen_train_ratio: float,
    *,
    batch_size: int,
    rho: float = DEFAULT_RHO,
    alpha: float = DEFAULT_ALPHA,
    profile: Profile | None = None,
    gpus: int | None = None,
    num_generations: int = 1,
) -> Design:
    """The whole-number design that minimises P8 at this batch, against P8's own on-policy run.

    Formulas P4, P8, P9 and P10, arXiv 2604.08706. The verdict is ``replay`` where the real optimum
    has y* > 1 and x* >= 1 and the whole design's cost ratio is below 1; else ``on_policy``, with
    B = R = N. With ``gpus``, every split W + T = gpus with y = mu T/W >= 1 fixes
    R = B/y, rounded to the step lcm(G, T), with B moved to a multiple of the step or the split
    left out; N is the best for this R. An on-policy verdict names the split whose y is nearest 1.

    Args:
        gen_train_ratio: mu, > 0.
        batch_size: B, rollouts per update, 1 to 1,000,000, a multiple of ``num_generations``.
        rho: correlation of the noise of rollouts, 0 to 1.
        alpha: exponent of sigma(s) = s^alpha, > 0; not with ``profile``.
        profile: variance by age with sigma^2(0) > 0, in place of the power law.
        gpus: GPUs to divide between generation and training, >= 2.
        num_generations: G, rollouts per prompt; R and N are multiples of it.

    Returns:
        The design.

    Raises:
        ValueError: if an argument is out of range, or no finite buffer is best.

    >>> bound_design(5.28, batch_size=60).rollouts_per_update
    31
    """
    job = Job(
        gen_train_ratio,
        fraction("rho", rho),
        _profile(alpha, profile),
        batch_size,
        num_generations,
    )
    splits = () if gpus is None else gpu_splits(gpus)
    optimum = _optimum(job)
    reason = _no_replay_reason(optimum)
    if reason:
        return _on_policy(job, splits, reason)
    if not splits:
        best = best_whole_design(job)
        return _replay(job, optimum, None, best) if best.cost_ratio < 1 else _dearer(job, (), best)
    found = [(split, *_at_split(job, split)) for split in splits if _usable(job, split)]
    if not found:
        return _on_policy(job, splits, "no split of these GPUs has whole steps with y from 1 on")
    split, moved, best = min(found, key=lambda each: each[2].cost_ratio)
    if best.cost_ratio >= 1:
        return _dearer(job, splits, best)
    design = _replay(moved, optimum, split, best)
    notes = batch_notes(batch_size, moved.batch_size)
    return replace(design, warnings=design.warnings + notes)


def _usable(job: Job, split: tuple[int, int]) -> bool:
    """Whether B can move to a multiple of the split's step, and y is from 1 to B in steps."""
    uses = split_replay_ratio(*split, job.gen_train_ratio)
    step = lcm(job.group_size, split[1])
    batch = moved_batch(job.batch_size, step)
    return batch is not None and 1 <= uses <= batch // step


def _at_split(job: Job, split: tuple[int, int]) -> tuple[Job, WholeDesign]:
    """The job in the steps of a split, its batch moved, and the best design there."""
    step = lcm(job.group_size, split[1])
    batch = moved_batch(job.batch_size, step)
    moved = job._replace(batch_size=batch or job.batch_size, group_size=step)
    return moved, best_whole_design(moved, split)


def _dearer(job: Job, splits: tuple[tuple[int, int], ...], best: WholeDesign) -> Design:
    return _on_policy(job, splits, f"the best whole design costs {best.cost_ratio:.4g}")


def _profile(alpha: float, profile: Profile | None) -> Profile:
    if profile is not None and alpha != DEFAULT_ALPHA:
        raise ValueError(f"alpha = {alpha} is not allowed with a profile: the profile replaces it")
    law = PowerLaw(non_negative("alpha", alpha)) if profile is None else profile
    if isinstance(law, PowerLaw) and law.alpha == 0:
        raise ValueError("alpha = 0 is not allowed: no finite buffer is best, it must be > 0")
    return law


def _optimum(job: Job) -> Optimum:
    if isinstance(job.profile, PowerLaw):
        return power_law_optimum(job.gen_train_ratio, job.rho, job.profile.alpha)
    optimum = profile_optimum(job.profile, job.gen_train_ratio, job.rho)
    if not optimum.converged:
        raise ValueError(f"profile = {job.profile} is not allowed: {optimum.message}")
    return optimum


def _no_replay_reason(optimum: Optimum) -> str:
    if not optimum.converged or optimum.staleness_horizon < 1:
        return optimum.message
    if optimum.replay_ratio <= 1:
        return f"best y* = {optimum.replay_ratio:.4g} is not above 1"
    return ""


def _on_policy(job: Job, splits: tuple[tuple[int, int], ...], reason: str) -> Design:
    why = [f"on-policy: {reason}"]
    split = None
    if splits:
        mu = job.gen_train_ratio
        split = min(splits, key=lambda pair: abs(log(split_replay_ratio(*pair, mu))))
        uses = split_replay_ratio(*split, mu)
        why.append(f"split {split[0]},{split[1]} is nearest to no reuse: it gives y = {uses:.4g}")
    batch = job.batch_size
    return Design(
        replay_ratio=1.0,
        staleness_horizon=1.0,
        buffer_size=batch,
        rollouts_per_update=batch,
        batch_size=batch,
        split=split,
        cost_ratio=1.0,
        cost_ratio_low=None,
        cost_ratio_high=None,
        verdict="on_policy",
        why=tuple(why),
        warnings=(),
        with_replacement=False,
    )


def _replay(
    job: Job, optimum: Optimum, split: tuple[int, int] | None, found: WholeDesign
) -> Design:
    fresh, size, ratio, _ = found
    return Design(
        replay_ratio=job.batch_size / fresh,
        staleness_horizon=size / fresh,
        buffer_size=size,
        rollouts_per_update=fresh,
        batch_size=job.batch_size,
        split=split,
        cost_ratio=ratio,
        cost_ratio_low=None,
        cost_ratio_high=None,
        verdict="replay",
        why=_replay_reasons(job, optimum, split, found),
        warnings=_warnings(job, split, found),
        with_replacement=size < job.batch_size,
    )


def _replay_reasons(
    job: Job, optimum: Optimum, split: tuple[int, int] | None, found: WholeDesign
) -> tuple[str, ...]:
    mu = job.gen_train_ratio
    reasons = [
        f"a rollout costs {mu:.4g} times as much to generate as to train on once",
        f"the bound is least at y* = {optimum.replay_ratio:.4g} uses per rollout, kept for "
        f"x* = {optimum.staleness_horizon:.4g} updates",
        f"the best whole design costs {found.cost_ratio:.4g} of the bound's own on-policy design",
    ]
    if split is not None:
        uses = split_replay_ratio(*split, mu)
        reasons.append(f"split {split[0]},{split[1]} is the best: it gives y = {uses:.4g}")
    return tuple(reasons)


def _warnings(job: Job, split: tuple[int, int] | None, found: WholeDesign) -> tuple[str, ...]:
    overstated = 2 + job.rho
    true_ratio = found.cost_ratio * overstated
    loss = ", a loss" if true_ratio > 1 else ""
    warnings = [
        f"the bound overstates on-policy cost {overstated:.4g} times, as it draws with "
        "replacement: against on-policy that uses each rollout once (variance sigma^2/B) the "
        f"cost ratio is {true_ratio:.4g}{loss}"
    ]
    if found.buffer_size < job.batch_size:
        warnings.append(
            f"the buffer of {found.buffer_size} is smaller than the batch of {job.batch_size}: "
            "draw with replacement, as the bound assumes"
        )
    if split is not None:
        warnings.append("measured replay ratios exceed mu T/W, more so the larger T/W is")
    if not found.certain:
        warnings.append("the search ended before the longest horizon that could be better")
    return tuple(warnings)
