"""GPUs by hand: both sides of an update, measured splits joined by power laws, refusals."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.cost import async_cost_with_buffer
from theory.gpu_pool import GpuPool, ratios_at_batch
from theory.split import split_replay_ratio

PAPER = {(6, 2): 5.34, (5, 3): 5.7, (4, 4): 7.0}

# W, T, mu, B, R, c0, share: time by hand, the slower of (B/share + c0)/T and mu R/W.
BY_HAND = [
    ((6, 2), 6.0, 60, 30, 0.0, {}, 30.0),
    ((6, 2), 6.0, 60, 60, 0.0, {}, 60.0),
    ((6, 2), 6.0, 60, 10, 0.0, {}, 30.0),
    ((6, 2), 6.0, 60, 10, 8.0, {}, 34.0),
    ((6, 2), 6.0, 60, 10, 8.0, {2: 0.5}, 64.0),
    ((6, 2), 6.0, 60, 10, 8.0, {3: 0.5}, 34.0),
    ((1, 1), 0.5, 4, 4, 0.0, {}, 4.0),
    ((4, 4), 7.0, 64, 32, 0.0, {4: 0.25}, 64.0),
    ((4, 4), 7.0, 64, 64, 0.0, {4: 0.25}, 112.0),
]


@pytest.mark.parametrize(("split", "mu", "batch", "fresh", "fixed", "share", "time"), BY_HAND)
def test_update_time_by_hand(split, mu, batch, fresh, fixed, share, time):
    pool = GpuPool(sum(split), mu, efficiency=share)
    assert pool.update_time(split, np.array(batch), np.array(fresh), fixed) == time


@given(st.integers(1, 16), st.integers(1, 16), st.floats(0.1, 50), st.integers(1, 512))
def test_where_neither_side_waits_it_is_the_cost_with_a_buffer(generators, trainers, mu, batch):
    split = (generators, trainers)
    fresh = batch / split_replay_ratio(*split, mu)
    pool = GpuPool(generators + trainers, mu)
    cost = pool.gpus * pool.update_time(split, np.array(batch), np.array(fresh), 0.0)
    assert cost == pytest.approx(async_cost_with_buffer(batch, *split), rel=1e-12)
    for more, times in ((1.01, 1.01), (0.5, 1.0)):
        time = pool.update_time(split, np.array(batch), np.array(fresh * more), 0.0)
        assert pool.gpus * time == pytest.approx(cost * times, rel=1e-12)


def test_update_time_of_many_designs_is_one_by_one():
    pool, batch, fresh = GpuPool(8, 5.28, PAPER), np.array([60, 120]), np.array([[30], [60]])
    every = pool.update_time((6, 2), batch, fresh, 3.0)
    for place in np.ndindex(2, 2):
        one = pool.update_time((6, 2), batch[place[1]], fresh[place[0], 0], 3.0)
        assert every[place] == one


@pytest.mark.parametrize("gpus", [2, 3, 8, 16])
def test_splits_are_all_the_ways_to_divide(gpus):
    splits = GpuPool(gpus, 1.0).splits()
    assert set(splits) == {(w, t) for w in range(1, gpus) for t in range(1, gpus) if w + t == gpus}
    assert len(splits) == gpus - 1


@given(st.dictionaries(st.integers(1, 15), st.floats(0.1, 50), min_size=1))
def test_measured_splits_are_exact(by_trainers):
    measured = {(16 - trainers, trainers): mu for trainers, mu in by_trainers.items()}
    pool = GpuPool(16, 9.9, measured)
    for split, mu in measured.items():
        assert pool.ratio(split) == pytest.approx(mu, rel=1e-12)


@given(st.floats(0.1, 20), st.floats(-1, 1), st.sets(st.integers(1, 15), min_size=2))
def test_a_power_law_is_recovered_at_every_split(scale, power, trainers):
    law = {(16 - t, t): scale * (t / (16 - t)) ** power for t in range(1, 16)}
    pool = GpuPool(16, 9.9, {(16 - t, t): law[16 - t, t] for t in trainers})
    for split, mu in law.items():
        assert pool.ratio(split) == pytest.approx(mu, rel=1e-9)


def test_between_two_measured_splits_only_they_count():
    """5,3 lies between 6,2 and 4,4: log(T/W) is log(3/5) of the way from log(1/3) to 0."""
    share = 1 - math.log(3 / 5) / math.log(1 / 3)
    expected = 5.34 ** (1 - share) * 7.0**share
    for others in ({}, {(7, 1): 1.0}, {(2, 6): 90.0}):
        pool = GpuPool(8, 1.0, {(6, 2): 5.34, (4, 4): 7.0, **others})
        assert pool.ratio((5, 3)) == pytest.approx(expected, rel=1e-12)


def test_one_or_no_measured_split_holds_everywhere():
    for split in GpuPool(8, 1.0).splits():
        assert GpuPool(8, 5.28).ratio(split) == 5.28
        assert GpuPool(8, 5.28, {(6, 2): 4.0}).ratio(split) == pytest.approx(4.0, rel=1e-15)


@given(st.floats(0.01, 100), st.sampled_from([{}, {(6, 2): 5.34}, PAPER]))
def test_scaled_multiplies_the_ratio_of_every_split(factor, measured):
    pool = GpuPool(8, 5.28, measured)
    for split in pool.splits():
        scaled = pool.scaled(factor).ratio(split)
        assert scaled == pytest.approx(factor * pool.ratio(split), rel=1e-9)


@given(st.floats(0.01, 1), st.integers(1, 64), st.floats(0, 100))
def test_a_trainers_share_stretches_training_alone(share, batch, fixed):
    full, part = GpuPool(4, 1e-9), GpuPool(4, 1e-9, efficiency={2: share})
    counts = np.array(batch), np.array(1)
    lost = part.update_time((2, 2), *counts, fixed) - full.update_time((2, 2), *counts, fixed)
    assert lost == pytest.approx(batch * (1 / share - 1) / 2, rel=1e-9, abs=1e-9)
    assert part.update_time((1, 3), *counts, fixed) == full.update_time((1, 3), *counts, fixed)


BAD = [
    (lambda: GpuPool(1, 5.0), "gpus = 1"),
    (lambda: GpuPool(8.0, 5.0), "gpus = 8.0"),
    (lambda: GpuPool(8, 0.0), "gen_train_ratio = 0.0"),
    (lambda: GpuPool(8, 5.0, {(6, 0): 5.0}), "(6, 0)"),
    (lambda: GpuPool(8, 5.0, {(6.5, 2): 5.0}), "6.5"),
    (lambda: GpuPool(8, 5.0, {(True, 2): 5.0}), "True"),
    (lambda: GpuPool(8, 5.0, {("6", "2"): 5.0}), "'6'"),
    (lambda: GpuPool(8, 5.0, {(6, 1, 1): 5.0}), "(6, 1, 1)"),
    (lambda: GpuPool(8, 5.0, {6: 5.0}), "split = 6"),
    (lambda: GpuPool(8, 5.0, {"62": 5.0}), "split = '62'"),
    (lambda: GpuPool(8, 5.0, {(6, 2): -5.0}), "(6, 2) = -5.0"),
    (lambda: GpuPool(8, 5.0, {(6, 2): "5"}), "(6, 2) = '5'"),
    (lambda: GpuPool(8, 5.0, efficiency={2: 0}), "2 trainers = 0"),
    (lambda: GpuPool(8, 5.0, efficiency={2: 1.5}), "2 trainers = 1.5"),
    (lambda: GpuPool(8, 5.0, efficiency={2: math.nan}), "2 trainers = nan"),
    (lambda: GpuPool(8, 5.0, efficiency={0: 0.5}), "num_trainers = 0"),
    (lambda: GpuPool(8, 5.0, efficiency={"2": 0.5}), "num_trainers = '2'"),
    (lambda: GpuPool(8, 5.0, {(6, 2): 5.0, (3, 1): 6.0}).ratio((6, 2)), "(3, 1): 6.0"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_values_are_named(call, text):
    with pytest.raises(ValueError, match="is not allowed") as error:
        call()
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_ratios_at_batch_are_exact_where_measured_and_straight_in_logs_between():
    measured = {(4, 4, 32): 8.0, (4, 4, 128): 6.0, (4, 4, 512): 5.0, (6, 2): 5.3}
    for batch, mu in [(32, 8.0), (128, 6.0), (512, 5.0)]:
        found = ratios_at_batch(measured, batch)
        assert found[(4, 4)] == pytest.approx(mu, rel=1e-12)
        assert found[(6, 2)] == 5.3
    assert ratios_at_batch(measured, 256)[(4, 4)] == pytest.approx((6.0 * 5.0) ** 0.5)
    assert ratios_at_batch(measured, 8)[(4, 4)] == pytest.approx(8.0 * 8.0 / 6.0)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({(4,): 5.0}, "(4,)"),
        ({"4,4": 5.0}, "'4,4'"),
        ({(4, 4, 0): 5.0}, "= 0"),
        ({(4, 4, 64): -5.0}, "-5.0"),
        ({(4, 4, 64): 5.0, (4, 4): 6.0}, "(4, 4)"),
    ],
)
def test_ratios_at_batch_refuse(measured, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        ratios_at_batch(measured, 64)
