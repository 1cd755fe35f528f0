"""A design from a noise model: the cheapest of the set, its verdict, its interval, what decides.

The verdict of the best replay design against on-policy at the same batch, and against on-policy at
B/2, B/4 and B/8 (L4 of this project: in the long run fresh rollouts alone lower the noise, so a
smaller batch may be the better way to spend them).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from theory.design import Alternative, Design
from theory.long_run import long_run_variance
from theory.noise_models import ReuseLaw, prices
from theory.replay_choice import (
    Job,
    Priced,
    batch_notes,
    break_even_ratio,
    on_policy,
    priced_splits,
    smaller_batches,
    split_cost,
)
from theory.sampling import Array, ReplayDesign

SAMPLES = 4000
NORMAL_95 = 1.959964
VERDICTS = {
    "replay": "replay is the cheapest of these",
    "replay_only_if_batch_fixed": "replay pays if the batch must stay; a smaller batch is cheaper",
    "on_policy": "no replay design of this batch is cheaper than using each rollout once",
}


class Range(NamedTuple):
    """A 95 % range of an input whose logarithm is nearly normal around the given value."""

    low: float
    high: float


class Uncertain(NamedTuple):
    """Ranges of the inputs that are not known exactly; None where one is."""

    gen_train_ratio: Range | None = None
    noise_scale: Range | None = None


class Choice(NamedTuple):
    """The cheapest replay design of a job, if there is any, and on-policy beside it."""

    best: Priced | None
    base: Priced
    verdict: str


def chosen(job: Job) -> Choice:
    """The cheapest replay design and the verdict.

    Args:
        job: what to plan.

    Returns:
        The choice; ``best`` holds one design, ``base`` on-policy at B, B/2, B/4 and B/8.

    Raises:
        ValueError: if on-policy training does not reach the target at all.

    >>> law = ReuseLaw(noise_scale=0.07 * 64, batch_size=64)
    >>> chosen(Job(5.28, 64, 1, 0.0, law)).verdict
    'replay_only_if_batch_fixed'
    """
    base = on_policy(job, [job.batch_size, *smaller_batches(job)])
    if not np.isfinite(base.cost[0]):
        raise ValueError(
            f"batch_size = {job.batch_size} is not allowed: on-policy training does not reach the "
            "target with it; lower the noise or the learning rate, or raise the target"
        )
    best = min((_cheapest(some) for some in priced_splits(job)), key=_cost, default=None)
    if best is None or not best.cost < base.cost[0]:
        return Choice(best, base, "on_policy")
    pays = best.cost < base.cost[1:].min(initial=np.inf)
    return Choice(best, base, "replay" if pays else "replay_only_if_batch_fixed")


def planned(job: Job, uncertain: Uncertain) -> Design:
    """The design of a job, with everything ``Design`` says of it but memory and money.

    Args:
        job: what to plan.
        uncertain: ranges of its inputs.

    Returns:
        The design: the best replay design, or on-policy if that is not dearer.

    >>> law = ReuseLaw(noise_scale=0.07 * 64, batch_size=64)
    >>> design = planned(Job(5.28, 64, 1, 0.0, law), Uncertain())
    >>> design.rollouts_per_update, round(design.cost_ratio, 4)
    (7, 0.3852)
    """
    choice = chosen(job)
    base = choice.base
    replays = choice.verdict != "on_policy" and choice.best is not None
    used = choice.best if replays and choice.best is not None else _first(base)
    batch, fresh, size = (int(each) for each in used.design[:3])
    ratio = float(used.cost / base.cost[0])
    low, high = _interval(job, used, uncertain) if replays else (None, None)
    return Design(
        replay_ratio=batch / fresh,
        staleness_horizon=size / fresh,
        buffer_size=size,
        rollouts_per_update=fresh,
        batch_size=batch,
        split=used.split,
        cost_ratio=ratio,
        cost_ratio_low=low,
        cost_ratio_high=high,
        verdict=choice.verdict,
        why=_reasons(job, choice),
        warnings=_warnings(job, used),
        with_replacement=False,
        model=job.model.name,
        alternatives=_alternatives(job, base),
        break_even_gen_train_ratio=_break_even_ratio(job, base),
        break_even_noise_to_batch=_break_even_noise(job),
        deciding_inputs=_deciding(job, uncertain, choice.verdict),
        rounding_cost=_rounding_cost(job, used) if replays else None,
        learning_rate=None if np.isnan(used.learning_rate) else float(used.learning_rate),
        update_time=_update_time(job, used),
        on_policy_update_time=_on_policy_time(job),
    )


def _cheapest(some: Priced) -> Priced:
    at = int(np.argmin(some.cost))
    design = ReplayDesign(*(field[at] for field in some.design))
    return Priced(some.split, design, some.updates[at], some.learning_rate[at], some.cost[at])


def _cost(some: Priced) -> float:
    return float(some.cost)


def _first(base: Priced) -> Priced:
    design = ReplayDesign(*(field[0] for field in base.design))
    return Priced(None, design, base.updates[0], base.learning_rate[0], base.cost[0])


def _alternatives(job: Job, base: Priced) -> tuple[Alternative, ...]:
    ratios = base.cost[1:] / base.cost[0]
    known = zip(smaller_batches(job), ratios.tolist(), strict=True)
    found = [Alternative(size, ratio) for size, ratio in known if math.isfinite(ratio)]
    return tuple(sorted(found, key=lambda each: each.cost_ratio))


def _interval(job: Job, used: Priced, uncertain: Uncertain) -> tuple[float | None, float | None]:
    """95 % range of the used design's cost ratio over the ranges of the inputs, sampled."""
    if uncertain == Uncertain():
        return None, None
    rng = np.random.default_rng(0)
    mu = _sampled(rng, job.gen_train_ratio, uncertain.gen_train_ratio)
    scale = np.full(1, np.nan)
    if isinstance(job.model, ReuseLaw):
        scale = _sampled(rng, job.model.noise_scale, uncertain.noise_scale)
    low, high = np.percentile(_cost_ratios(job, used, mu, scale), [2.5, 97.5])
    return float(low), float(high)


def _sampled(rng: np.random.Generator, value: float, given: Range | None) -> Array:
    if given is None or value == 0:
        return np.full(1, value)
    spread = math.log(given.high / given.low) / (2 * NORMAL_95)
    return value * np.exp(spread * rng.standard_normal(SAMPLES))


def _cost_ratios(job: Job, used: Priced, mu: Array, scale: Array) -> Array:
    """Cost ratio of the used design at other mu and, for the law, other noise scales."""
    base = _first(on_policy(job, [job.batch_size]))
    updates, base_updates = used.updates, base.updates
    if isinstance(job.model, ReuseLaw):
        variance = np.asarray(long_run_variance(used.design, job.model.profile))
        relative = (1 + scale * variance) / (1 + scale / job.batch_size)
        updates = base_updates * relative
    own = prices(job.model, base_updates, base.design, mu, job.fixed_cost)
    if used.split is None:
        return prices(job.model, updates, used.design, mu, job.fixed_cost) / own
    factor = mu / job.gen_train_ratio
    return split_cost(job, used.split, used.design, updates, factor) / own


def _deciding(job: Job, uncertain: Uncertain, verdict: str) -> tuple[str, ...]:
    """Inputs whose range holds another verdict, the others as given."""
    found = []
    for name, given in zip(uncertain._fields, uncertain, strict=True):
        if given is not None and any(
            chosen(_with(job, **{name: value})).verdict != verdict for value in given
        ):
            found.append(name)
    return tuple(found)


def _with(job: Job, gen_train_ratio: float | None = None, noise_scale: float | None = None) -> Job:
    """The job at another value of one of its uncertain inputs."""
    if noise_scale is not None and isinstance(job.model, ReuseLaw):
        return replace(job, model=job.model.with_noise_scale(noise_scale))
    if gen_train_ratio is None:
        return job
    pool = job.pool
    if pool is not None:
        pool = pool.scaled(gen_train_ratio / job.gen_train_ratio)
    return replace(job, gen_train_ratio=gen_train_ratio, pool=pool)


def _break_even_ratio(job: Job, base: Priced) -> float | None:
    if job.pool is not None:
        return None
    found = priced_splits(job)
    return break_even_ratio(job, found[0], base) if found else math.inf


def _break_even_noise(job: Job) -> float | None:
    """Beta below which some replay design of the set is cheaper than on-policy (L0, L5)."""
    law, mu = job.model, job.gen_train_ratio
    if job.pool is not None or not isinstance(law, ReuseLaw):
        return None
    found = priced_splits(job)
    if not found:
        return 0.0
    design = found[0].design
    variance = np.asarray(long_run_variance(design, law.profile))
    cost = job.fixed_cost + design.batch_size + mu * design.rollouts_per_update
    own = np.full(cost.shape, job.fixed_cost + job.batch_size * (1 + mu))
    if law.reference_updates is not None:
        own -= mu * (design.buffer_size - design.rollouts_per_update) / law.reference_updates
    slope, saved = variance * cost - own / job.batch_size, np.maximum(own - cost, 0.0)
    limit = np.where(saved > 0, np.inf, 0.0)
    np.divide(saved, slope, out=limit, where=slope > 0)
    return float(np.max(limit)) / job.batch_size


def _rounding_cost(job: Job, used: Priced) -> float | None:
    """Cost over that of the best real R, less 1 (L1): N = B, constant noise, no GPUs."""
    law = job.model
    if not isinstance(law, ReuseLaw) or callable(law.profile) or law.counts_fill:
        return None
    if job.pool is not None or job.large_buffer or law.noise_scale == 0:
        return None
    overhead, mu, scale = job.fixed_cost + job.batch_size, job.gen_train_ratio, law.noise_scale
    best = (math.sqrt(overhead) + math.sqrt(mu * scale)) ** 2
    return float(used.cost) / best - 1


def _on_policy_time(job: Job) -> float | None:
    if job.pool is None:
        return None
    return (job.fixed_cost + job.batch_size * (1 + job.gen_train_ratio)) / job.pool.gpus


def _update_time(job: Job, used: Priced) -> float | None:
    if job.pool is None or used.split is None:
        return _on_policy_time(job)
    batch, fresh = used.design.batch_size, used.design.rollouts_per_update
    return float(job.pool.update_time(used.split, batch, fresh, job.fixed_cost))


def _reasons(job: Job, choice: Choice) -> tuple[str, ...]:
    mu, base, best = job.gen_train_ratio, choice.base, choice.best
    reasons = [f"a rollout costs {mu:.4g} times as much to generate as to train on once"]
    if isinstance(job.model, ReuseLaw):
        beta = job.model.noise_scale / job.batch_size
        reasons.append(
            f"the noise scale is {beta:.4g} batches: each further use costs that share of updates"
        )
    if best is None:
        return (*reasons, "no replay design fits this batch, these groups and these GPUs")
    uses = float(best.design.batch_size / best.design.rollouts_per_update)
    split = "" if best.split is None else " on {} generators and {} trainers".format(*best.split)
    reasons.append(
        f"the cheapest replay design uses a rollout {uses:.4g} times{split} and costs "
        f"{float(best.cost / base.cost[0]):.4g} of on-policy at batch {job.batch_size}"
    )
    others = _alternatives(job, base)
    if others:
        cheapest = others[0]
        reasons.append(
            f"on-policy at batch {cheapest.batch_size} costs {cheapest.cost_ratio:.4g} of it"
        )
    reasons.append(VERDICTS[choice.verdict])
    return tuple(reasons)


def _warnings(job: Job, used: Priced) -> tuple[str, ...]:
    warnings = ["exact for a quadratic objective with unchanging curvature and noise"]
    if isinstance(job.model, ReuseLaw):
        warnings = [
            "the reuse law holds where eta lambda x is small; a spectrum makes the answer exact"
        ]
        if not callable(job.model.profile):
            warnings.append("noise is taken as the same at every age: stale rollouts are noisier")
        if not job.model.counts_fill and used.design.buffer_size > used.design.rollouts_per_update:
            warnings.append("the first fill of the buffer is not counted: no updates were given")
    return (*warnings, *batch_notes(job.batch_size, int(used.design.batch_size)))
