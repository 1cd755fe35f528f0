"""Generation against plain forward passes: log-probabilities, distribution, ends, padding."""

import numpy as np
import pytest
import torch
from scipy import stats

from llm.generate import Sampling
from llm.generate.self_test import mismatch
from llm.generate.torch_backend import TorchGenerator, nucleus
from llm.scoring import LONGEST_TREE, bins, micro_batches, packed, response_log_probs, trees


def generator(policy, seed=0, **options):
    rng = torch.Generator().manual_seed(seed)
    return TorchGenerator(policy.model, policy.pad_token, policy.end_tokens, rng, **options)


def alone(policy, prompt, tokens):
    """Log-softmax of every response position from one unpadded forward pass, (T, V)."""
    ids = torch.tensor(np.concatenate([prompt, tokens]).astype(np.int64))[None]
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0]
    return logits[len(prompt) - 1 : -1].double().log_softmax(dim=-1).numpy()


@pytest.mark.parametrize("options", [{}, {"max_rows": 6}])
def test_log_probs_are_those_of_a_forward_pass_of_each_rollout_alone(policy, prompts, options):
    found = generator(policy, **options)(prompts, 3, Sampling(7))
    assert len(found.tokens) == 12
    for row, tokens in enumerate(found.tokens):
        expected = alone(policy, prompts[row // 3], tokens)
        chosen = expected[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(found.log_probs[row], chosen, atol=1e-5)
        entropy = -(np.exp(expected) * expected).sum(axis=-1)
        np.testing.assert_allclose(found.entropies[row], entropy, atol=1e-5)
        assert tokens.dtype == np.int32
        assert found.log_probs[row].dtype == np.float32


def test_responses_stop_at_the_end_token(policy, prompts):
    found = generator(policy)(prompts, 16, Sampling(9))
    end = policy.end_tokens[0]
    lengths = [len(tokens) for tokens in found.tokens]
    for tokens, ended in zip(found.tokens, found.ended, strict=True):
        assert ended == (tokens[-1] == end)
        assert end not in tokens[:-1]
        assert ended or len(tokens) == 9
    assert found.ended.any()
    assert not found.ended.all()
    assert len(set(lengths)) > 3


def test_tokens_are_drawn_from_the_model(policy, prompts):
    found = generator(policy)(prompts[:1], 4000, Sampling(1))
    counts = np.bincount([tokens[0] for tokens in found.tokens], minlength=14)
    chances = np.exp(alone(policy, prompts[0], np.array([2]))[0])
    assert stats.chisquare(counts, 4000 * chances / chances.sum()).pvalue > 1e-3


def test_greedy_is_the_argmax_and_needs_no_randomness(policy, prompts):
    first = generator(policy, 0)(prompts, 1, Sampling(6, temperature=0.0))
    second = generator(policy, 1)(prompts, 1, Sampling(6, temperature=0.0))
    for row, tokens in enumerate(first.tokens):
        np.testing.assert_array_equal(tokens, second.tokens[row])
        np.testing.assert_array_equal(tokens, alone(policy, prompts[row], tokens).argmax(axis=-1))


def test_same_seed_same_rollouts(policy, prompts):
    left, right = (generator(policy, 3)(prompts, 4, Sampling(6)) for _ in range(2))
    for a, b in zip(left.tokens, right.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    other = generator(policy, 4)(prompts, 4, Sampling(6))
    assert any(
        len(a) != len(b) or (a != b).any() for a, b in zip(left.tokens, other.tokens, strict=True)
    )


def test_temperature_is_part_of_the_stored_log_probs(policy, prompts):
    found = generator(policy)(prompts, 2, Sampling(5, temperature=0.7))
    batch = packed([prompts[i // 2] for i in range(8)], found.tokens, 0, torch.device("cpu"))
    scored = response_log_probs(policy.model, batch, temperature=0.7)
    for row, stored in enumerate(found.log_probs):
        np.testing.assert_allclose(scored[row, : len(stored)].detach(), stored, atol=1e-5)


def test_nucleus_keeps_the_smallest_set_with_the_mass():
    log_probs = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]]).log()
    kept = nucleus(log_probs, 0.7).exp()
    expected = torch.tensor([[0, 2 / 3, 0, 1 / 3], [1, 0, 0, 0]])
    torch.testing.assert_close(kept, expected)


def test_scores_behind_the_end_are_zero_and_padding_changes_nothing(policy, prompts):
    found = generator(policy)(prompts, 4, Sampling(8))
    lengths = [len(tokens) for tokens in found.tokens]
    assert len(set(lengths)) > 1
    repeated = [prompt for prompt in prompts for _ in range(4)]
    batch = packed(repeated, found.tokens, policy.pad_token, torch.device("cpu"))
    assert batch.mask.sum(dim=1).tolist() == lengths
    scores = response_log_probs(policy.model, batch).detach()
    assert not scores[~batch.mask].any()
    single = packed(prompts[:1], found.tokens[:1], policy.pad_token, torch.device("cpu"))
    assert single.visible is None
    expected = response_log_probs(policy.model, single).detach()[0]
    torch.testing.assert_close(scores[0, : lengths[0]], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rollouts_that_share_a_prompt_are_scored_as_each_alone(policy, prompts, attention):
    policy.model.set_attn_implementation(attention)
    rng = np.random.default_rng(1)
    # Groups of 1 to 5 in a shuffled order, as a batch drawn from a buffer has them.
    owners = rng.permutation(np.repeat(np.arange(4), [1, 5, 3, 2]))
    responses = [rng.integers(2, 14, size=rng.integers(1, 9)).astype(np.int32) for _ in owners]
    batch = packed([prompts[p] for p in owners], responses, policy.pad_token, torch.device("cpu"))
    read = sum(len(prompt) for prompt in prompts) + sum(len(r) - 1 for r in responses)
    assert batch.filled == read < batch.ids.numel()
    scores = response_log_probs(policy.model, batch).detach()
    for row, (owner, response) in enumerate(zip(owners, responses, strict=True)):
        expected = alone(policy, prompts[owner], response)[np.arange(len(response)), response]
        np.testing.assert_allclose(scores[row, : len(response)], expected, atol=1e-5)
    policy.model.set_attn_implementation("sdpa")


def test_gradients_through_a_shared_prompt_are_the_sum_of_those_alone(policy, prompts):
    rng = np.random.default_rng(2)
    responses = [rng.integers(2, 14, size=n).astype(np.int32) for n in (3, 1, 6)]
    weights = list(policy.model.parameters())

    def gradient(members):
        batch = packed([prompts[0]] * len(members), members, 0, torch.device("cpu"))
        policy.model.zero_grad()
        response_log_probs(policy.model, batch).sum().backward()
        return torch.cat([weight.grad.flatten() for weight in weights])

    together = gradient(responses)
    torch.testing.assert_close(
        together, sum(gradient([response]) for response in responses), atol=1e-4, rtol=1e-4
    )


def test_a_long_tree_is_split_and_an_unknown_attention_refused(policy, prompts, monkeypatch):
    response = np.full(500, 3, dtype=np.int32)
    assert [len(tree) for tree in trees([prompts[0]] * 5, [response] * 5)] == [2, 2, 1]
    longer = np.full(2 * LONGEST_TREE, 3, dtype=np.int32)
    assert trees([prompts[0]] * 2, [longer] * 2) == [[0], [1]]
    batch = packed([prompts[0]] * 2, [response[:3]] * 2, 0, torch.device("cpu"))
    monkeypatch.setattr(policy.model.config, "_attn_implementation_internal", "other")
    with pytest.raises(ValueError, match="attention 'other' is not supported"):
        response_log_probs(policy.model, batch)


def test_bins_hold_every_item_once_within_capacity():
    lengths = np.random.default_rng(3).integers(1, 30, size=200).tolist()
    found = bins(lengths, 30)
    assert sorted(i for members in found for i in members) == list(range(200))
    assert all(sum(lengths[i] for i in members) <= 30 for members in found)
    assert len(found) <= 1.25 * sum(lengths) / 30


def test_micro_batches_hold_every_index_once_within_the_bound():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, size=100).tolist()
    groups = micro_batches(lengths, 60)
    assert sorted(i for group in groups for i in group) == list(range(100))
    assert all(max(lengths[i] for i in group) * len(group) <= 60 for group in groups)
    assert micro_batches([7], 3) == [[0]]


def test_age_zero_ratio_is_one(policy, prompts):
    report = mismatch(policy, generator(policy), prompts, 8, Sampling(8))
    assert report.worst < 1e-5
    assert abs(report.mean_ratio - 1) < 1e-5
    assert report.tokens > 30


def test_mismatch_sees_other_weights(policy, prompts):
    class Stale:
        """A sampler whose stored log-probabilities are those of other weights."""

        policy_version = 0

        def __call__(self, *request):
            found = generator(policy)(*request)
            return found._replace(log_probs=[x - np.float32(0.01) for x in found.log_probs])

    report = mismatch(policy, Stale(), prompts, 8, Sampling(8))
    assert report.worst == pytest.approx(np.exp(0.01) - 1, rel=1e-3)


def test_windowed_layers_are_refused(policy):
    class Config:
        layer_types = ("full_attention", "sliding_attention")

    class Model:
        config = Config

    with pytest.raises(ValueError, match="sliding_attention"):
        TorchGenerator(Model(), 0, [1], torch.Generator())
