"""Policy-gradient losses as pure functions of one typed record.

Each takes tokens of B rollouts and returns (loss, metrics). The loss is a sum of token terms times
``weights``, which hold the whole average: a batch may be cut into micro-batches whose losses add
up to that of the whole. Old log-probabilities and advantages are those stored at generation; there
is no KL term. With r = pi / pi_old, a token's term is

    grpo       -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
    dual_clip  the same, but for A < 0 not above -dual_clip A
    reinforce  -A log pi
    asymre     -(A - offset) log pi, where A = reward - group mean
    cispo      -sg[min(r, ratio_cap)] A log pi
    m2po       -r A, without the tokens that carry the second moment of log r above a threshold

Sources: GRPO as in arXiv 2604.08706, section 5; dual clip arXiv 1912.09729; AsymRE arXiv
2506.20520; CISPO arXiv 2506.13585; M2PO arXiv 2510.01161 (the paper's text, not its code).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Level = Literal["token", "sequence", "sequence_mean"]
Weighting = Literal["rollout_mean", "token_mean", "rollout_sum"]


class TokenBatch(NamedTuple):
    """Response tokens of B rollouts, T the longest.

    log_probs: log pi, (B, T), with gradient. old_log_probs: log pi_old stored at generation,
    (B, T). advantages: (B,). weights: share of each token in the loss, (B, T), 0 on padding.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    weights: Tensor


class Metrics(NamedTuple):
    """What a loss saw, without gradient: log r and whether the gradient was cut, both (B, T)."""

    log_ratio: Tensor
    cut: Tensor


Loss = Callable[[TokenBatch], tuple[Tensor, Metrics]]


def token_weights(
    mask: Tensor, weighting: Weighting, rollouts: int | None = None, tokens: int | None = None
) -> Tensor:
    """Return the weights of tokens in the loss of their batch.

    Args:
        mask: (B, T) bool, the response tokens; every rollout has one.
        weighting: ``rollout_mean`` averages over the tokens of a rollout, then over rollouts;
            ``token_mean`` over all tokens; ``rollout_sum`` sums over tokens, averages rollouts.
        rollouts: how many the whole batch has, where ``mask`` is a part of it.
        tokens: the same for response tokens.

    Returns:
        (B, T) float32.

    >>> token_weights(torch.tensor([[True, False], [True, True]]), "rollout_mean").tolist()
    [[0.5, 0.0], [0.25, 0.25]]
    """
    present = mask.float()
    if weighting == "token_mean":
        return present / (present.sum() if tokens is None else tokens)
    shared = present / (len(mask) if rollouts is None else rollouts)
    return shared if weighting == "rollout_sum" else shared / present.sum(dim=1, keepdim=True)


def log_ratio_at(batch: TokenBatch, level: Level) -> Tensor:
    """Return log r of each token, (B, T), 0 on padding.

    ``token``: of the token. ``sequence``: of the whole rollout, the sum over its tokens.
    ``sequence_mean``: that sum over the number of tokens (the geometric mean of the ratios).
    """
    present = batch.weights > 0
    log_ratio = (batch.log_probs - batch.old_log_probs).masked_fill(~present, 0.0)
    if level == "token":
        return log_ratio
    whole = log_ratio.sum(dim=1, keepdim=True)
    if level == "sequence_mean":
        whole = whole / present.sum(dim=1, keepdim=True)
    return whole.expand_as(log_ratio).masked_fill(~present, 0.0)


def seen(batch: TokenBatch, cut: Tensor) -> Metrics:
    """Return the metrics of a batch whose gradient was cut at some tokens."""
    present = batch.weights > 0
    log_ratio = (batch.log_probs - batch.old_log_probs).detach()
    return Metrics(log_ratio.masked_fill(~present, 0.0), cut & present)


def grpo(
    batch: TokenBatch,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: Level = "token",
    dual_clip: float = torch.inf,
) -> tuple[Tensor, Metrics]:
    """Clipped ratio times advantage; a finite ``dual_clip`` > 1 also bounds it for A < 0."""
    ratio = log_ratio_at(batch, level).exp()
    advantage = batch.advantages[:, None]
    free = ratio * advantage
    gain = torch.minimum(free, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    cut = gain != free
    if dual_clip != torch.inf:
        floor = dual_clip * advantage
        below = (advantage < 0) & (gain < floor)
        gain, cut = torch.where(below, floor, gain), cut | below
    return -(batch.weights * gain).sum(), seen(batch, cut.detach())


def reinforce(batch: TokenBatch) -> tuple[Tensor, Metrics]:
    """Advantage times log-probability, no ratio."""
    return asymre(batch, offset=0.0)


def asymre(batch: TokenBatch, offset: float = -0.1) -> tuple[Tensor, Metrics]:
    """REINFORCE with the baseline moved by ``offset``; A must be reward - group mean."""
    gain = (batch.advantages[:, None] - offset) * batch.log_probs
    return -(batch.weights * gain).sum(), seen(batch, torch.zeros_like(gain, dtype=torch.bool))


def cispo(
    batch: TokenBatch, ratio_cap: float = 2.0, level: Level = "token"
) -> tuple[Tensor, Metrics]:
    """REINFORCE weighted by the capped ratio; a capped token keeps a gradient."""
    ratio = log_ratio_at(batch, level).exp().detach()
    gain = ratio.clamp(max=ratio_cap) * batch.advantages[:, None] * batch.log_probs
    return -(batch.weights * gain).sum(), seen(batch, ratio > ratio_cap)


def m2po(batch: TokenBatch, threshold: float = 0.04) -> tuple[Tensor, Metrics]:
    """Ratio times advantage without the tokens that push the second moment of log r too high.

    Candidates are the tokens that PPO's clip could act on (A > 0 and r > 1, or A < 0 and r < 1).
    They are left out by falling abs(log r) until the mean of (log r)^2 over the tokens left is at
    most ``threshold``. The mean is over this record: cut into micro-batches, over each of them.
    """
    log_ratio = log_ratio_at(batch, "token")
    advantage = batch.advantages[:, None]
    dropped = outlying(log_ratio.detach(), advantage, batch.weights > 0, threshold)
    gain = (log_ratio.exp() * advantage).masked_fill(dropped, 0.0)
    return -(batch.weights * gain).sum(), seen(batch, dropped)


def outlying(log_ratio: Tensor, advantage: Tensor, present: Tensor, threshold: float) -> Tensor:
    """Return which tokens M2PO leaves out, (B, T) bool; see ``m2po``."""
    squares = log_ratio.square()
    candidate = present & (advantage * log_ratio > 0)
    ordered = squares[candidate].sort(descending=True).values
    # Row k of both: after the k largest candidates are gone.
    gone = torch.cat([ordered.new_zeros(1), ordered.cumsum(dim=0)])
    left = present.sum() - torch.arange(len(gone), device=ordered.device)
    mean = (squares[present].sum() - gone).clamp(min=0) / left.clamp(min=1)
    enough = (mean <= threshold).nonzero()
    count = int(enough[0]) if len(enough) else len(ordered)
    smallest = ordered[count - 1] if count else ordered.new_tensor(torch.inf)
    return candidate & (squares >= smallest)
