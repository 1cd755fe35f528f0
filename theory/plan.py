"""One question, three models: does replay pay in this job, with which design, at what price?

The model follows from what is known of the gradient noise: its spectrum (exact, Q7), its scale
(the reuse law, L1, L3 and L5), or nothing (the published bound, P8). Memory, hours and money are
added here, whichever predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from theory.bound_plan import bound_design
from theory.cost import gen_train_ratio
from theory.design import Design
from theory.gpu_pool import GpuPool, ratios_at_batch
from theory.noise_models import ExactQuadratic, ReuseLaw
from theory.optimum import DEFAULT_ALPHA, DEFAULT_RHO
from theory.quadratic import Quadratic, initial_loss
from theory.quantities import non_negative, positive, whole
from theory.replay_choice import Job
from theory.reuse_plan import Range, Uncertain, planned
from theory.staleness import Profile

LARGEST_BATCH = 1_000_000
BUFFERS = ("batch", "large")
DEFAULT_TARGET = 0.02
TOKEN_BYTES = 4 + 4
ROLLOUT_BYTES = 32


def optimal_design(
    cost_gen: float,
    cost_train: float,
    *,
    batch_size: int,
    rho: float = DEFAULT_RHO,
    alpha: float = DEFAULT_ALPHA,
    profile: Profile | None = None,
    noise_to_batch: float | None = None,
    noise_scale: float | None = None,
    noise_scale_range: tuple[float, float] | None = None,
    gen_train_range: tuple[float, float] | None = None,
    spectrum: Quadratic | None = None,
    target: float = DEFAULT_TARGET,
    learning_rate: float | None = None,
    buffer: str = "batch",
    fixed_cost: float = 0.0,
    reference_updates: float | None = None,
    gpus: int | None = None,
    gen_train_by_split: Mapping[tuple[int, ...], float] | None = None,
    train_efficiency: Mapping[int, float] | None = None,
    num_generations: int = 1,
    tokens_per_rollout: float | None = None,
    gpu_hour_price: float | None = None,
) -> Design:
    """The cheapest design in whole rollouts and GPUs at this batch, against on-policy training.

    With ``spectrum`` the exact dynamics decide (Q7), with a noise scale the reuse law (L1; L3 with
    a large buffer; L5 with a profile), else the bound of arXiv 2604.08706 (P8). Verdicts:
    ``on_policy`` if no replay design of the set is cheaper than using each of B rollouts once;
    ``replay`` if one is, also than on-policy at B/2, B/4 and B/8; ``replay_only_if_batch_fixed``
    if a smaller batch is cheaper still. The bound alone gives the first two.

    Args:
        cost_gen: cost of generating one rollout, any unit (GPU-seconds best), > 0.
        cost_train: cost of training on it once, same unit, > 0.
        batch_size: B, rollouts per update, 1 to 1,000,000, a multiple of ``num_generations``.
        rho: correlation of the noise of rollouts, 0 to 1; bound only.
        alpha: exponent of sigma(s) = s^alpha, > 0; bound only, not with ``profile``.
        profile: variance by age with sigma^2(0) > 0.
        noise_to_batch: beta, gradient noise scale over batch size, > 0.
        noise_scale: the gradient noise scale itself, rollouts, > 0; instead of ``noise_to_batch``.
        noise_scale_range: its 95 % range, rollouts.
        gen_train_range: 95 % range of cost_gen / cost_train.
        spectrum: the modes of the objective with their noise, ``theory.quadratic``.
        target: loss to reach as a fraction of the loss at the start, in (0, 1); with ``spectrum``.
        learning_rate: step size kept for every design, > 0; with ``spectrum``. None: the best of
            a grid for each design.
        buffer: "batch" for N = B, "large" for N of 2 to 16 B.
        fixed_cost: cost of an update that depends on neither B nor R, unit of ``cost_train`` = 1.
        reference_updates: updates an on-policy run takes at B, > 0; pays for the first fill and
            gives GPU-hours, which need costs in GPU-seconds.
        gpus: GPUs to divide between generation and training, >= 2.
        gen_train_by_split: cost_gen / cost_train measured at splits, by (W, T) or (W, T, B).
        train_efficiency: share of the training speed left with T trainers, by T, in (0, 1].
        num_generations: G, rollouts per prompt; B, R and N are multiples of it, with GPUs of
            lcm(G, T).
        tokens_per_rollout: mean tokens of prompt and completion, > 0; gives the buffer's bytes.
        gpu_hour_price: price of one GPU-hour, any currency, >= 0.

    Returns:
        The design.

    Raises:
        ValueError: if an argument is out of range or does not go with another.

    >>> optimal_design(5.28, 1, batch_size=60).rollouts_per_update
    31
    >>> optimal_design(5.28, 1, batch_size=64, noise_to_batch=0.5).verdict
    'replay_only_if_batch_fixed'
    """
    mu = gen_train_ratio(cost_gen, cost_train)
    batch, group = _batch(batch_size, num_generations)
    scale = _noise_scale(batch, noise_to_batch, noise_scale)
    if buffer not in BUFFERS:
        raise ValueError(f"buffer = {buffer!r} is not allowed: it must be 'batch' or 'large'")
    needs_noise: dict[str, object] = {
        "noise_scale_range": noise_scale_range,
        "gen_train_range": gen_train_range,
        "reference_updates": reference_updates,
        "gen_train_by_split": gen_train_by_split,
        "train_efficiency": train_efficiency,
        "learning_rate": learning_rate,
        "buffer": None if buffer == "batch" else buffer,
        "fixed_cost": None if fixed_cost == 0 else fixed_cost,
        "gpu_hour_price": gpu_hour_price,
        "target": None if target == DEFAULT_TARGET else target,
    }
    if scale is None and spectrum is None:
        _refuse_without_noise(needs_noise)
        design = bound_design(
            mu,
            batch_size=batch,
            rho=rho,
            alpha=alpha,
            profile=profile,
            gpus=gpus,
            num_generations=group,
        )
        return _with_memory(design, tokens_per_rollout)
    for name, value, default in (("rho", rho, DEFAULT_RHO), ("alpha", alpha, DEFAULT_ALPHA)):
        if value != default:
            raise ValueError(f"{name} = {value} is not allowed beside a measured noise")
    if not (profile is None or callable(profile)):
        raise ValueError(f"profile = {profile!r} is not allowed: it must be a profile by age")
    law = profile if profile is not None else 1.0
    job = Job(
        gen_train_ratio=mu,
        batch_size=batch,
        num_generations=group,
        fixed_cost=non_negative("fixed_cost", fixed_cost),
        model=_exact(spectrum, scale, target, learning_rate, law, reference_updates)
        if spectrum is not None
        else _law(scale, batch, law, reference_updates, learning_rate, target),
        large_buffer=buffer == "large",
        pool=_pool(gpus, mu, batch, gen_train_by_split, train_efficiency),
    )
    uncertain = Uncertain(
        _range("gen_train_range", gen_train_range, mu),
        _range("noise_scale_range", noise_scale_range, scale),
    )
    design = _with_memory(planned(job, uncertain), tokens_per_rollout)
    return _with_hours(design, job, cost_train, reference_updates, gpu_hour_price)


def buffer_bytes(buffer_size: int, tokens_per_rollout: float) -> int:
    """Memory of a replay buffer: token ids and log-probabilities, and a record a rollout.

    4 bytes for each token's id and 4 for its log-probability at generation, 32 for reward,
    advantage, policy version and uses. The buffer of arXiv 2604.08706 (size N in P6).

    Args:
        buffer_size: N, rollouts, >= 1.
        tokens_per_rollout: mean tokens of prompt and completion, > 0.

    Returns:
        Bytes.

    Raises:
        ValueError: if an argument is out of range.

    >>> buffer_bytes(4096, 120_000)
    3932291072
    """
    tokens = positive("tokens_per_rollout", tokens_per_rollout)
    return round(whole("buffer_size", buffer_size) * (tokens * TOKEN_BYTES + ROLLOUT_BYTES))


def _batch(batch_size: int, num_generations: int) -> tuple[int, int]:
    group = whole("num_generations", num_generations)
    batch = whole("batch_size", batch_size, high=LARGEST_BATCH)
    if batch % group:
        multiple = f"it must be a multiple of num_generations = {group}"
        raise ValueError(f"batch_size = {batch} is not allowed: {multiple}")
    return batch, group


def _noise_scale(
    batch: int, noise_to_batch: float | None, noise_scale: float | None
) -> float | None:
    if noise_to_batch is not None and noise_scale is not None:
        raise ValueError(
            f"noise_scale = {noise_scale} is not allowed beside noise_to_batch: they are the same"
        )
    if noise_to_batch is not None:
        return batch * positive("noise_to_batch", noise_to_batch)
    return None if noise_scale is None else positive("noise_scale", noise_scale)


def _refuse_without_noise(needs_noise: Mapping[str, object]) -> None:
    """The bound has no place for what only a noise model can use."""
    for name, value in needs_noise.items():
        if value is not None:
            raise ValueError(
                f"{name} = {value} is not allowed without a noise scale or a spectrum: the bound "
                "has no use for it"
            )


def _law(
    scale: float | None,
    batch: int,
    profile: Profile | float,
    reference_updates: float | None,
    learning_rate: float | None,
    target: float,
) -> ReuseLaw:
    for name, value, default in (
        ("learning_rate", learning_rate, None),
        ("target", target, DEFAULT_TARGET),
    ):
        if value != default:
            raise ValueError(
                f"{name} = {value} is not allowed without a spectrum: the reuse law knows none"
            )
    return ReuseLaw(scale or 0.0, batch, profile, reference_updates)


def _exact(
    spectrum: Quadratic,
    scale: float | None,
    target: float,
    learning_rate: float | None,
    profile: Profile | float,
    reference_updates: float | None,
) -> ExactQuadratic:
    if not isinstance(spectrum, Quadratic):
        raise ValueError(f"spectrum = {spectrum!r} is not allowed: it must be a Quadratic")
    for name, value in (("noise_scale", scale), ("reference_updates", reference_updates)):
        if value is not None:
            raise ValueError(
                f"{name} = {value} is not allowed with a spectrum, which holds noise and updates"
            )
    if not 0 < positive("target", target) < 1:
        raise ValueError(f"target = {target} is not allowed: it must be in (0, 1)")
    return ExactQuadratic(spectrum, target * initial_loss(spectrum), learning_rate, profile)


def _pool(
    gpus: int | None,
    mu: float,
    batch: int,
    by_split: Mapping[tuple[int, ...], float] | None,
    efficiency: Mapping[int, float] | None,
) -> GpuPool | None:
    if gpus is None:
        if by_split or efficiency:
            raise ValueError(f"gpus = None is not allowed with {by_split or efficiency}")
        return None
    for name, table in (("gen_train_by_split", by_split), ("train_efficiency", efficiency)):
        if not (table is None or isinstance(table, Mapping)):
            raise ValueError(f"{name} = {table!r} is not allowed: it must be a mapping")
    return GpuPool(gpus, mu, ratios_at_batch(by_split or {}, batch), efficiency or {})


def _range(name: str, given: tuple[float, float] | None, value: float | None) -> Range | None:
    if given is None:
        return None
    if value is None:
        raise ValueError(f"{name} = {given} is not allowed without a noise scale")
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise ValueError(f"{name} = {given!r} is not allowed: it must be two numbers, low and high")
    low, high = (positive(name, end) for end in given)
    if not low <= value <= high:
        raise ValueError(f"{name} = {given} is not allowed: it must hold the value {value:g}")
    return Range(low, high)


def _with_memory(design: Design, tokens_per_rollout: float | None) -> Design:
    if tokens_per_rollout is None:
        return design
    return replace(design, buffer_bytes=buffer_bytes(design.buffer_size, tokens_per_rollout))


def _with_hours(
    design: Design,
    job: Job,
    cost_train: float,
    reference_updates: float | None,
    gpu_hour_price: float | None,
) -> Design:
    """GPU-hours of the run, with costs in GPU-seconds."""
    hour = None if gpu_hour_price is None else non_negative("gpu_hour_price", gpu_hour_price)
    if reference_updates is None:
        if hour is not None:
            raise ValueError(f"gpu_hour_price = {hour} is not allowed without reference_updates")
        return design
    per_update = job.fixed_cost + job.batch_size * (1 + job.gen_train_ratio)
    own = reference_updates * per_update * cost_train / 3600
    spent = own * design.cost_ratio
    return replace(
        design,
        gpu_hours=float(np.float64(spent)),
        on_policy_gpu_hours=float(own),
        price=None if hour is None else spent * hour,
    )
