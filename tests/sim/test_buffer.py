"""The buffer against a Python list, and its draws against exact probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sim import buffer as replay

WIDTH, ROWS = 8, 6
SLOTS = ROWS * WIDTH
add = jax.jit(replay.add)
drawn_ranks = jax.jit(replay.drawn_ranks, static_argnums=4)


@jax.jit
def by_rank(buffer, tick, new):
    row, column = replay.locate(jnp.arange(SLOTS), new, tick, ROWS)
    return replay.take(buffer, row % ROWS, jnp.minimum(column, WIDTH - 1))


def stored_ids(buffer, tick, capacity, new):
    """Ids at ranks 0..capacity-1, newest first."""
    return np.asarray(by_rank(buffer, jnp.int32(tick), jnp.int32(new)))[:capacity].tolist()


@settings(max_examples=30, deadline=None)
@given(
    new=st.integers(1, WIDTH),
    extra=st.integers(0, WIDTH * (ROWS - 1)),
    updates=st.integers(1, 2 * ROWS),
)
def test_holds_what_a_list_holds(new, extra, updates):
    capacity = min(new + extra, new * ROWS)
    buffer = replay.filled(jnp.asarray(-1 - np.arange(SLOTS)), ROWS, WIDTH)
    fifo = stored_ids(buffer, 0, capacity, new)[::-1]
    assert len(set(fifo)) == capacity
    for tick in range(1, updates):
        ids = tick * 100 + np.arange(WIDTH)
        buffer = add(buffer, np.int32(tick), ids, np.int32(tick))
        # Within a row the last column in use is the oldest.
        fifo = (fifo + ids[:new][::-1].tolist())[-capacity:]
    assert stored_ids(buffer, updates - 1, capacity, new) == fifo[::-1]


def test_rows_keep_their_policy_version():
    buffer = replay.filled(jnp.zeros(ROWS * WIDTH), ROWS, WIDTH)
    for tick in range(1, 9):
        buffer = add(buffer, jnp.int32(tick), jnp.zeros(WIDTH), jnp.int32(tick))
    assert np.asarray(buffer.version).tolist() == [6, 7, 8, 3, 4, 5]


def drawn(seed, draws, capacity, batch, replace, width=8, lanes=10):
    """Draws of several lanes with the same settings, (draws * lanes, batch)."""
    keys = jax.random.split(jax.random.key(seed), lanes)
    ranks = drawn_ranks(
        keys,
        np.full((draws, lanes), capacity),
        np.full(lanes, batch),
        np.full(lanes, replace),
        width,
    )
    return np.asarray(ranks).reshape(-1, width)[:, :batch]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("capacity", [8, 11, 40])
def test_every_rank_is_equally_likely(replace, capacity):
    ranks = drawn(capacity, 2000, capacity, 5, replace)
    counts = np.bincount(ranks.ravel(), minlength=capacity)
    assert len(counts) == capacity
    # Drawing without replacement makes counts less variable, so the test is conservative there.
    assert chisquare(counts).pvalue > 1e-4


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 300), data=st.data())
def test_without_replacement_repeats_nothing(capacity, data):
    batch = data.draw(st.integers(1, min(capacity, 16)))
    ranks = drawn(data.draw(st.integers(0, 2**31 - 1)), 5, capacity, batch, False, width=16)
    assert ranks.min() >= 0
    assert ranks.max() < capacity
    assert all(len(set(row)) == batch for row in ranks.tolist())


def test_whole_buffer_is_drawn_when_batch_equals_capacity():
    assert (np.sort(drawn(0, 10, 8, 8, False)) == np.arange(8)).all()


def test_all_subsets_are_equally_likely():
    ranks = np.sort(drawn(5, 6000, 6, 3, False, width=3))
    _, counts = np.unique(ranks @ [36, 6, 1], return_counts=True)
    assert len(counts) == 20
    assert chisquare(counts).pvalue > 1e-4


def test_lanes_of_every_kind_mix():
    """Per lane: with replacement, without, the whole buffer; each as if it were alone."""
    keys = jax.random.split(jax.random.key(1), 3)
    capacity = np.array([6, 7, 6])[None].repeat(700, axis=0)
    replace = np.array([True, False, False])
    ranks = np.asarray(drawn_ranks(keys, capacity, np.full(3, 6), replace, 6))
    distinct = np.array([[len(set(row)) for row in lane] for lane in ranks.transpose(1, 0, 2)])
    assert (distinct[0] < 6).mean() > 0.9
    assert (distinct[1:] == 6).all()
    assert set(ranks[:, 1].ravel().tolist()) == set(range(7))
    assert (ranks[:, 2] == np.arange(6)).all()
    for i in range(3):
        one = slice(i, i + 1)
        alone = drawn_ranks(keys[one], capacity[:, one], np.full(1, 6), replace[one], 6)
        assert (np.asarray(alone)[:, 0] == ranks[:, i]).all()


@pytest.mark.parametrize("bound", [1, 2, 3, 640, replay.MAX_CAPACITY])
def test_below_stays_below(bound):
    bits = jnp.array([0, 1, 2**31, 2**32 - 1], jnp.uint32)
    values = np.asarray(replay.below(bits, jnp.int32(bound)))
    exact = [(int(b) * bound) >> 32 for b in bits]
    assert values.tolist() == exact


@pytest.mark.parametrize("new", [1, 3, 7, 64])
def test_location_is_exact_up_to_the_largest_capacity(new):
    rank = np.arange(replay.MAX_CAPACITY)
    rows = 2**17
    row, column = replay.locate(jnp.asarray(rank), jnp.int32(new), jnp.int32(rows - 1), rows)
    assert (rows - 1 - np.asarray(row) == rank // new).all()
    assert (np.asarray(column) == rank % new).all()
