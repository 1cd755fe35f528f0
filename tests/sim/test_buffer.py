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
draw = jax.jit(replay.draw_ranks)


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


def drawn(bits, capacity, batch, replace):
    shape = bits.shape[:-1]
    return np.asarray(
        draw(bits, np.full(shape, capacity), np.full(shape, batch), np.full(shape, replace))
    )[..., :batch]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("capacity", [8, 11, 40])
def test_every_rank_is_equally_likely(replace, capacity):
    bits = jax.random.bits(jax.random.key(capacity), (20_000, 8))
    ranks = drawn(bits, capacity, 5, replace)
    counts = np.bincount(ranks.ravel(), minlength=capacity)
    assert len(counts) == capacity
    # Drawing without replacement makes counts less variable, so the test is conservative there.
    assert chisquare(counts).pvalue > 1e-4


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 300), data=st.data())
def test_without_replacement_repeats_nothing(capacity, data):
    batch = data.draw(st.integers(1, min(capacity, 16)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31 - 1)))
    bits = rng.integers(0, 2**32, (50, 16), np.uint32)
    ranks = drawn(bits, capacity, batch, False)
    assert ranks.min() >= 0
    assert ranks.max() < capacity
    assert all(len(set(row)) == batch for row in ranks.tolist())


def test_whole_buffer_is_drawn_when_batch_equals_capacity():
    bits = jax.random.bits(jax.random.key(0), (100, 8))
    assert (np.sort(drawn(bits, 8, 8, False)) == np.arange(8)).all()


def test_all_subsets_are_equally_likely():
    bits = jax.random.bits(jax.random.key(5), (60_000, 3))
    ranks = np.sort(drawn(bits, 6, 3, False))
    _, counts = np.unique(ranks @ [36, 6, 1], return_counts=True)
    assert len(counts) == 20
    assert chisquare(counts).pvalue > 1e-4


def test_replacement_flag_is_per_draw():
    bits = jax.random.bits(jax.random.key(1), (2000, 6))
    flags = jnp.arange(2000) % 2 == 0
    ranks = np.asarray(replay.draw_ranks(bits, jnp.full(2000, 6), jnp.full(2000, 6), flags))
    distinct = np.array([len(set(row)) for row in ranks.tolist()])
    assert (distinct[1::2] == 6).all()
    assert (distinct[::2] < 6).mean() > 0.9


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
