"""Losses against a NumPy loop, finite differences and limits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.loss import TokenBatch, asymre, cispo, grpo, m2po, reinforce, token_weights

LENGTHS = (5, 1, 3, 4)


def batch(seed=0, spread=0.3, weighting="rollout_mean", advantages=None, lengths=LENGTHS):
    """A float64 record with a ragged mask; the padding holds junk on purpose."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    old = torch.tensor(rng.uniform(-2, -0.1, shape))
    new = (old + torch.tensor(rng.normal(0, spread, shape))).requires_grad_()
    if advantages is None:
        advantages = rng.normal(size=len(lengths))
    weights = token_weights(mask, weighting).double()
    return TokenBatch(new, old, torch.tensor(advantages, dtype=torch.float64), weights)


def rows(record):
    """The record as a list of (log_probs, old, advantage, weights) without padding."""
    log_probs, old, advantages, weights = (x.detach().numpy() for x in record)
    keep = weights > 0
    return [
        (log_probs[i, keep[i]], old[i, keep[i]], advantages[i], weights[i, keep[i]])
        for i in range(len(advantages))
    ]


def ratios(new, old, level):
    log_ratio = new - old
    if level == "sequence":
        log_ratio = np.full_like(log_ratio, log_ratio.sum())
    if level == "sequence_mean":
        log_ratio = np.full_like(log_ratio, log_ratio.mean())
    return np.exp(log_ratio)


def numpy_clipped(record, level, low=0.2, high=0.2, dual=np.inf):
    total = 0.0
    for new, old, advantage, weights in rows(record):
        for ratio, weight in zip(ratios(new, old, level), weights, strict=True):
            gain = min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
            if advantage < 0:
                gain = max(gain, dual * advantage)
            total -= weight * gain
    return total


def numpy_score(record, factor):
    return -sum(
        weight * factor(ratio, advantage) * log_prob
        for new, old, advantage, weights in rows(record)
        for ratio, weight, log_prob in zip(np.exp(new - old), weights, new, strict=True)
    )


def numpy_m2po(record, threshold):
    """Drop the worst candidate, one at a time, until the mean square is small enough."""
    tokens = [
        (new[t] - old[t], advantage, weights[t])
        for new, old, advantage, weights in rows(record)
        for t in range(len(new))
    ]
    while np.mean([x**2 for x, _, _ in tokens]) > threshold:
        candidates = [token for token in tokens if token[0] * token[1] > 0]
        if not candidates:
            break
        tokens.remove(max(candidates, key=lambda token: abs(token[0])))
        if not tokens:
            break
    return -sum(w * np.exp(x) * a for x, a, w in tokens)


SECOND_ROUTES = {
    "grpo token": (grpo, lambda r: numpy_clipped(r, "token")),
    "grpo sequence": (
        lambda r: grpo(r, level="sequence"),
        lambda r: numpy_clipped(r, "sequence"),
    ),
    "grpo sequence_mean": (
        lambda r: grpo(r, level="sequence_mean"),
        lambda r: numpy_clipped(r, "sequence_mean"),
    ),
    "grpo uneven clip": (
        lambda r: grpo(r, 0.1, 0.3),
        lambda r: numpy_clipped(r, "token", 0.1, 0.3),
    ),
    "dual clip": (
        lambda r: grpo(r, dual_clip=1.5),
        lambda r: numpy_clipped(r, "token", dual=1.5),
    ),
    "reinforce": (reinforce, lambda r: numpy_score(r, lambda ratio, a: a)),
    "asymre": (asymre, lambda r: numpy_score(r, lambda ratio, a: a + 0.1)),
    "cispo": (
        lambda r: cispo(r, ratio_cap=1.2),
        lambda r: numpy_score(r, lambda ratio, a: min(ratio, 1.2) * a),
    ),
    "m2po": (m2po, lambda r: numpy_m2po(r, 0.04)),
    "m2po loose": (lambda r: m2po(r, 10.0), lambda r: numpy_m2po(r, 10.0)),
}


@pytest.mark.parametrize("name", SECOND_ROUTES)
@pytest.mark.parametrize("weighting", ["rollout_mean", "token_mean", "rollout_sum"])
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.01, 0.3, 1.0]))
@settings(max_examples=6, deadline=None)
def test_value_against_numpy(name, weighting, seed, spread):
    loss, expected = SECOND_ROUTES[name]
    record = batch(seed, spread, weighting)
    assert loss(record)[0].item() == pytest.approx(expected(record), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [n for n in SECOND_ROUTES if n != "cispo"])
def test_gradient_against_finite_differences(name):
    loss, expected = SECOND_ROUTES[name]
    record = batch(3)
    loss(record)[0].backward()
    step = 1e-6
    for index in np.ndindex(*record.log_probs.shape):
        change = torch.zeros_like(record.log_probs)
        change[index] = step
        up, down = (
            expected(record._replace(log_probs=(record.log_probs + sign * change).detach()))
            for sign in (1, -1)
        )
        slope = (up - down) / (2 * step)
        assert record.log_probs.grad[index].item() == pytest.approx(slope, abs=1e-7), index


def test_cispo_gradient_is_that_of_a_fixed_weight():
    record = batch(3)
    cispo(record, ratio_cap=1.2)[0].backward()
    weight = (record.log_probs - record.old_log_probs).exp().clamp(max=1.2)
    expected = -record.weights * weight * record.advantages[:, None]
    torch.testing.assert_close(record.log_probs.grad, expected.detach())


def test_at_ratio_one_every_ratio_loss_has_the_gradient_of_reinforce():
    gradients = {}
    for name in SECOND_ROUTES:
        record = batch(5, spread=0.0)
        SECOND_ROUTES[name][0](record)[0].backward()
        gradients[name] = record.log_probs.grad
    for name, gradient in gradients.items():
        if name in ("asymre", "grpo sequence", "grpo sequence_mean"):
            continue
        torch.testing.assert_close(gradient, gradients["reinforce"])
    # One ratio a rollout: each of its T tokens carries the weight of all.
    count = (batch(5).weights > 0).sum(dim=1, keepdim=True)
    torch.testing.assert_close(gradients["grpo sequence"], gradients["reinforce"] * count)
    torch.testing.assert_close(gradients["grpo sequence_mean"], gradients["reinforce"])


@pytest.mark.parametrize("name", [n for n in SECOND_ROUTES if n != "asymre"])
def test_zero_advantage_gives_zero_gradient_and_no_nan(name):
    record = batch(1, advantages=[0.0] * 4)
    loss, metrics = SECOND_ROUTES[name][0](record)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(record.log_probs.grad, torch.zeros_like(record.log_probs))
    assert name == "cispo" or not metrics.cut.any()


@pytest.mark.parametrize("name", [n for n in SECOND_ROUTES if not n.startswith("m2po")])
def test_micro_batches_add_up_to_the_batch(name):
    loss, record = SECOND_ROUTES[name][0], batch(2, weighting="token_mean")
    whole = loss(record)[0].item()
    parts = [loss(TokenBatch(*(x[i : i + 2] for x in record)))[0].item() for i in (0, 2)]
    assert sum(parts) == pytest.approx(whole)


def test_clipped_tokens_are_counted_where_the_gradient_is_zero():
    record = batch(4, spread=0.6)
    loss, metrics = grpo(record)
    loss.backward()
    present = record.weights > 0
    assert metrics.cut.any()
    assert torch.equal(metrics.cut, (record.log_probs.grad == 0) & present)
    assert not metrics.log_ratio[~present].any()
    assert not metrics.log_ratio.requires_grad


@pytest.mark.parametrize("weighting", ["rollout_mean", "token_mean", "rollout_sum"])
def test_weights(weighting):
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    weights = token_weights(mask, weighting)
    total = {"rollout_mean": 1.0, "token_mean": 1.0, "rollout_sum": sum(LENGTHS) / 4}[weighting]
    assert weights.sum().item() == pytest.approx(total)
    assert torch.equal(weights > 0, mask)
    if weighting == "rollout_mean":
        torch.testing.assert_close(weights.sum(dim=1), torch.full((4,), 0.25))
