"""Advantages, effective sample size, ratios by age, pass@k: closed forms and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.evaluate import pass_at_k
from llm.measures import by_age, counts, ess_fraction, group_advantages, zero_variance_share


@given(st.lists(st.lists(st.floats(-2, 2), min_size=4, max_size=4), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_advantages_of_every_group_alone(rewards):
    found = group_advantages(np.array(rewards), scale=True)
    for row, group in zip(found, rewards, strict=True):
        if np.std(group) > 1e-6:
            np.testing.assert_allclose(row, (group - np.mean(group)) / np.std(group))
        else:
            assert not row.any()
    centred = group_advantages(np.array(rewards), scale=False)
    np.testing.assert_allclose(centred.mean(axis=1), 0, atol=1e-12)


def test_groups_without_variance():
    rewards = np.array([[1, 1], [0, 0], [1, 0]], dtype=float)
    assert group_advantages(rewards, scale=True).tolist() == [[0, 0], [0, 0], [1, -1]]
    assert zero_variance_share(rewards) == pytest.approx(2 / 3)
    assert zero_variance_share(np.ones((4, 1))) == 1
    # Rewards that rounding keeps apart are still one reward.
    nearly = np.array([[0.3, 0.1 + 0.2, 0.3]])
    assert nearly.std() > 0
    assert not group_advantages(nearly, scale=True).any()


def test_effective_sample_size():
    assert ess_fraction(np.full(7, -3.0)) == pytest.approx(1)
    assert ess_fraction(np.array([0.0, -800.0])) == pytest.approx(0.5)
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 0.5, 200_000)
    assert ess_fraction(logs) == pytest.approx(np.exp(-0.25), rel=0.01)
    assert ess_fraction(logs + 1000) == pytest.approx(ess_fraction(logs))


def test_by_age_against_a_loop():
    rng = np.random.default_rng(0)
    ages = np.array([3, 0, 3, 1, 3])
    logs = [rng.normal(0, 0.1, n).astype(np.float32) for n in (2, 1, 4, 3, 3)]
    cut = [rng.random(len(row)) < 0.5 for row in logs]
    found = by_age(ages, logs, cut)
    assert found["age"] == [0, 1, 3]
    assert found["rollouts"] == [1, 1, 3]
    for place, age in enumerate(found["age"]):
        mine = [(log, c) for a, log, c in zip(ages, logs, cut, strict=True) if a == age]
        ratios = np.exp(np.concatenate([log for log, _ in mine]).astype(float))
        products = np.array([np.exp(log.astype(float).sum()) for log, _ in mine])
        expected = {
            "ess": products.sum() ** 2 / (products**2).sum() / len(products),
            "ratio_mean": ratios.mean(),
            "ratio_second_moment": (ratios**2).mean(),
            "log_ratio_second_moment": (np.log(ratios) ** 2).mean(),
            "sequence_ratio_mean": products.mean(),
            "clip_share": np.concatenate([c for _, c in mine]).mean(),
        }
        for name, value in expected.items():
            assert found[name][place] == pytest.approx(value), name


@pytest.mark.parametrize(("right", "samples", "k"), [(0, 5, 2), (2, 5, 1), (2, 5, 3), (5, 5, 5)])
def test_pass_at_k_is_the_mean_over_all_subsets(right, samples, k):
    answers = [1] * right + [0] * (samples - right)
    expected = np.mean([any(picked) for picked in itertools.combinations(answers, k)])
    assert pass_at_k(np.array([right]), samples, k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses(k):
    with pytest.raises(ValueError, match=f"k = {k} is not allowed"):
        pass_at_k(np.array([1]), 4, k)


def test_counts_are_ordered():
    assert list(counts([10, 9, "new", 9]).items()) == [("9", 2), ("10", 1), ("new", 1)]
