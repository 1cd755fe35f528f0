"""Replay buffer: against a Python list, the paper's worked example, uniformity, exact restore."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm.buffer import ReplayBuffer, Rollout


def rollout(number, reward=0.0, version=0, length=3):
    """A rollout whose prompt is its number."""
    tokens = np.arange(number, number + length, dtype=np.int32)
    log_probs = np.linspace(-1, -0.1, length, dtype=np.float32)
    return Rollout(np.array([number], np.int32), tokens, log_probs, reward, reward - 0.5, version)


def numbers(buffer):
    return [int(item.rollout.prompt[0]) for item in buffer.stored]


def drawn(buffer, rng, size, update=0):
    return [int(use.rollout.prompt[0]) for use in buffer.sample(rng, size, update)]


@given(
    capacity=st.integers(1, 12),
    share=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    sizes=st.lists(st.integers(0, 7), max_size=12),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_keeps_what_the_rule_keeps_of_the_whole_history(capacity, share, sizes, seed):
    rng = np.random.default_rng(seed)
    buffer, history, evictions = ReplayBuffer(capacity, positive_share=share), [], 0
    for size in sizes:
        new = [
            rollout(len(history) + i, float(rng.random() < 0.3), length=int(rng.integers(1, 5)))
            for i in range(size)
        ]
        history += new
        evictions += buffer.add(new).total()
        places = math.floor(share * capacity)
        older = history[: max(0, len(history) - (capacity - places))]
        kept = [r for r in older if r.reward > 0][-places:] if places else []
        expected = kept + history[len(older) :]
        assert numbers(buffer) == [int(r.prompt[0]) for r in expected]
        assert buffer.nbytes == sum(r.nbytes for r in expected)
        assert evictions == len(history) - len(buffer)
        assert buffer.empty_places == capacity - len(expected)


def test_worked_example_of_positive_bias():
    # z_-9 .. z_0 of the source paper; the printed result is the rule with delta = 3/8.
    correct = [0, 1, 1, 0, 1, 0, 1, 1, 0, 0]
    buffer = ReplayBuffer(8, positive_share=3 / 8)
    for place, reward in enumerate(correct):
        buffer.add([rollout(place, reward)])
    assert [n - 9 for n in numbers(buffer)] == [-8, -7, -5, -4, -3, -2, -1, 0]


def test_empty_places_of_positive_bias_are_reported():
    buffer = ReplayBuffer(8, positive_share=0.5)
    buffer.add([rollout(n) for n in range(20)])
    assert numbers(buffer) == [16, 17, 18, 19]
    assert buffer.empty_places == 4


def test_bytes_bound_keeps_the_newest():
    one = rollout(0).nbytes
    assert one == 4 + 12 + 12 + 40
    buffer = ReplayBuffer(100, max_bytes=5 * one + 1)
    for start in range(0, 30, 3):
        buffer.add([rollout(n) for n in range(start, start + 3)])
        assert buffer.nbytes <= 5 * one + 1
    assert numbers(buffer) == [25, 26, 27, 28, 29]
    with pytest.raises(ValueError, match=f"less than one rollout of {one} bytes"):
        ReplayBuffer(100, max_bytes=one - 1).add([rollout(0)])


@pytest.mark.parametrize("draw", ["without", "with", "without_reuse", "unused_first"])
def test_every_draw_is_uniform(draw):
    rng = np.random.default_rng(0)
    counts = Counter()
    for _ in range(300):
        buffer = ReplayBuffer(10, draw)
        buffer.add([rollout(n) for n in range(13)])
        counts.update(drawn(buffer, rng, 5))
        counts.update(drawn(buffer, rng, 4))
    assert sorted(counts) == list(range(3, 13))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("draw", ["without", "without_reuse", "unused_first"])
def test_no_repeat_within_a_batch(draw):
    rng = np.random.default_rng(1)
    buffer = ReplayBuffer(9, draw)
    for update in range(50):
        buffer.add([rollout(3 * update + i) for i in range(3)])
        size = min(len(buffer), 1 + update % 9)
        batch = drawn(buffer, rng, size)
        assert len(set(batch)) == size


def test_with_replacement_may_exceed_what_is_stored():
    buffer = ReplayBuffer(4, "with")
    buffer.add([rollout(0)])
    uses = buffer.sample(np.random.default_rng(0), 3, update=0)
    assert [use.since_last_use for use in uses] == [None, 0, 0]


def test_without_reuse_draws_every_rollout_once_a_pass():
    rng = np.random.default_rng(2)
    buffer = ReplayBuffer(12, "without_reuse")
    buffer.add([rollout(n) for n in range(12)])
    for batch in range(1, 30):
        drawn(buffer, rng, 5)
        uses = [item.uses for item in buffer.stored]
        passes = batch * 5 / 12
        assert {min(uses), max(uses)} == {math.floor(passes), math.ceil(passes)}


def test_unused_first():
    rng = np.random.default_rng(3)
    buffer = ReplayBuffer(12, "unused_first")
    buffer.add([rollout(n) for n in range(8)])
    assert sorted(drawn(buffer, rng, 8)) == list(range(8))
    drawn(buffer, rng, 2)
    buffer.add([rollout(n) for n in range(8, 12)])
    assert set(range(8, 12)) <= set(drawn(buffer, rng, 6))
    plain = ReplayBuffer(12, "without_reuse")
    plain.add([rollout(n) for n in range(12)])
    drawn(plain, rng, 4)
    waiting = {n for n, item in enumerate(plain.stored) if not item.uses}
    assert set(drawn(plain, rng, 8)) == waiting


def test_ages_and_updates_since_last_use():
    # The example of the source paper: once in batch 3, three times in batch 5: new, 2, 0, 0.
    buffer = ReplayBuffer(1, "with")
    buffer.add([rollout(0, version=1)])
    rng = np.random.default_rng(0)
    uses = [use for update, size in ((3, 1), (5, 3)) for use in buffer.sample(rng, size, update)]
    assert [use.since_last_use for use in uses] == [None, 2, 0, 0]
    assert [use.age for use in uses] == [2, 4, 4, 4]
    assert buffer.add([rollout(1, version=6)]) == {4: 1}


@pytest.mark.parametrize("draw", ["without", "with", "without_reuse", "unused_first"])
def test_restored_buffer_goes_on_exactly(draw):
    buffer = ReplayBuffer(10, draw, positive_share=0.3)
    rng = np.random.default_rng(4)
    for update in range(9):
        new = [rollout(4 * update + i, float(i == 0), update, 1 + i) for i in range(4)]
        buffer.add(new)
        drawn(buffer, rng, 4, update)
    other = ReplayBuffer(10, draw, positive_share=0.3)
    other.restore(buffer.state())
    assert other.nbytes == buffer.nbytes
    for key, array in buffer.state().items():
        restored = other.state()[key]
        assert restored.dtype == array.dtype
        np.testing.assert_array_equal(restored, array)
    rngs = np.random.default_rng(5), np.random.default_rng(5)
    for update in range(9, 20):
        new = [rollout(4 * update + i, float(i == 0), update) for i in range(4)]
        assert buffer.add(new) == other.add(new)
        uses = [b.sample(r, 4, update) for b, r in zip((buffer, other), rngs, strict=True)]
        for left, right in zip(*uses, strict=True):
            assert left[1:] == right[1:]
            np.testing.assert_array_equal(left.rollout.tokens, right.rollout.tokens)
            np.testing.assert_array_equal(left.rollout.log_probs, right.rollout.log_probs)


def test_empty_buffer_is_restored_too():
    buffer = ReplayBuffer(3)
    buffer.add([rollout(0)])
    buffer.restore(ReplayBuffer(3).state())
    assert len(buffer) == 0
    assert buffer.nbytes == 0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ReplayBuffer(0), "buffer_size must be an integer >= 1, got 0"),
        (lambda: ReplayBuffer(4, positive_share=1.0), r"positive_share must be in \[0, 1\)"),
        (lambda: ReplayBuffer(4, max_bytes=0), "max_buffer_bytes"),
        (lambda: rollout(0, length=0), "one length >= 1"),
    ],
)
def test_refusals(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_too_few_and_too_new_are_refused():
    buffer = ReplayBuffer(4)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="needs more than 0"):
        buffer.sample(rng, 1, 0)
    buffer.add([rollout(0, version=2)])
    with pytest.raises(ValueError, match="needs more than 1"):
        buffer.sample(rng, 2, 2)
    with pytest.raises(ValueError, match="version 2 is newer than update 1"):
        buffer.sample(rng, 1, 1)
    with pytest.raises(ValueError, match="int32 vector"):
        Rollout(np.zeros(1), np.zeros(1), np.zeros(1), 0.0, 0.0, 0)
