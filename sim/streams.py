"""Random numbers of a lane: one key a stream, and the counter-based generator in bulk.

The same Threefry-2x32 as ``jax.random``, but both words of every block are used, where the default
there, made for arrays sharded over devices, computes two and keeps one. Half of the simulator's
time goes into random numbers, so this counts.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

Array = jax.Array


def random_bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Return uniform uint32 random bits of a shape.

    Args:
        key: one typed key.
        shape: its product is at most 2^32.
    """
    first, second = jax.random.key_data(key)
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return threefry_2x32((first, second), count).reshape(shape)


def uniforms(key: Array, shape: tuple[int, ...]) -> Array:
    """Return float32 numbers uniform on the multiples of 2^-24 in [0, 1)."""
    return (random_bits(key, shape) >> 8).astype(jnp.float32) * jnp.float32(2**-24)
