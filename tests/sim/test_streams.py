"""The bulk generator is Threefry as jax.random has it, and uniform."""

import jax
import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from sim.streams import random_bits, uniforms


@pytest.mark.parametrize("shape", [(8,), (7,), (3, 5), (4, 2, 6)])
def test_bits_are_those_of_the_original_threefry(shape):
    key = jax.random.key(17)
    with jax.threefry_partitionable(False):
        expected = np.asarray(jax.random.bits(key, shape))
    assert (np.asarray(random_bits(key, shape)) == expected).all()


def test_uniforms_are_uniform_and_below_one():
    values = np.asarray(uniforms(jax.random.key(3), (400, 500))).ravel()
    assert values.min() >= 0
    assert values.max() < 1
    assert kstest(values, "uniform").pvalue > 1e-4
    pairs = (values[::2] * 16).astype(int) * 16 + (values[1::2] * 16).astype(int)
    assert chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-4
