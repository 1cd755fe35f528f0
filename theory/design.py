"""What a recommendation holds: a design in whole rollouts and GPUs, its price, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alternative:
    """On-policy training with a smaller batch, each rollout used once.

    Attributes:
        batch_size: rollouts per update.
        cost_ratio: predicted cost over on-policy at the job's own batch.
    """

    batch_size: int
    cost_ratio: float


@dataclass(frozen=True)
class Design:
    """A design in whole rollouts, what it is predicted to save, and why.

    Attributes:
        replay_ratio: y = B/R, mean uses per rollout.
        staleness_horizon: x = N/R, updates a rollout stays.
        buffer_size: N, rollouts.
        rollouts_per_update: R, new rollouts per update.
        batch_size: B, rollouts per update.
        split: (W, T), GPUs that generate and GPUs that train; None if no GPU count was given.
        cost_ratio: predicted cost over on-policy at the same batch.
        cost_ratio_low: lower end of its 95 % interval; None if no input came with a range.
        cost_ratio_high: upper end of its 95 % interval; None if no input came with a range.
        verdict: "replay", "replay_only_if_batch_fixed" or "on_policy".
        why: the reasons, one plain sentence each, at most five.
        warnings: what could make the prediction wrong, one sentence each.
        with_replacement: whether a batch must be drawn with replacement (N < B).
        model: what predicted it: "bound" (P8), "reuse_law" (L1, L3, L5) or "exact" (Q7).
        alternatives: on-policy at B/2, B/4 and B/8, cheapest first; empty for the bound.
        break_even_gen_train_ratio: mu above which the verdict is no longer on_policy; infinite if
            at no mu; None for the bound, or with GPUs, where every split has its own.
        break_even_noise_to_batch: beta below which it is no longer on_policy; None unless the
            reuse law predicts and no GPU count was given.
        deciding_inputs: uncertain inputs that alone change the verdict within their range.
        rounding_cost: cost over that of the best real-valued design, less 1; None where no closed
            form knows the latter.
        learning_rate: step size the prediction assumes; None unless the model is exact.
        buffer_bytes: memory of N rollouts; None if the tokens of one were not given.
        update_time: wall-clock time of one update, in the costs' unit per GPU; None without GPUs.
        on_policy_update_time: the same on-policy, all GPUs busy with both phases in turn.
        gpu_hours: predicted for the run; None without the updates of an on-policy run.
        on_policy_gpu_hours: the same for on-policy.
        price: ``gpu_hours`` times the price of an hour; None without one.
    """

    replay_ratio: float
    staleness_horizon: float
    buffer_size: int
    rollouts_per_update: int
    batch_size: int
    split: tuple[int, int] | None
    cost_ratio: float
    cost_ratio_low: float | None
    cost_ratio_high: float | None
    verdict: str
    why: tuple[str, ...]
    warnings: tuple[str, ...]
    with_replacement: bool
    model: str = "bound"
    alternatives: tuple[Alternative, ...] = ()
    break_even_gen_train_ratio: float | None = None
    break_even_noise_to_batch: float | None = None
    deciding_inputs: tuple[str, ...] = ()
    rounding_cost: float | None = None
    learning_rate: float | None = None
    buffer_bytes: int | None = None
    update_time: float | None = None
    on_policy_update_time: float | None = None
    gpu_hours: float | None = None
    on_policy_gpu_hours: float | None = None
    price: float | None = None
