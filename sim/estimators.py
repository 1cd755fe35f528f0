"""Weights that turn stale rollouts into a gradient of the current objective.

An estimator maps the importance ratio ``pi(a) / pi_behaviour(a)`` and the advantage frozen at
generation to the factor in front of ``grad log pi(a)``, elementwise over a batch.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def importance_ratio(logp: Array, behaviour_logp: Array) -> Array:
    """Return ``exp(logp - behaviour_logp)``, elementwise; 1 for a fresh rollout."""
    return jnp.exp(logp - behaviour_logp)


def importance_corrected(ratio: Array, advantage: Array) -> Array:
    """Return ``ratio * advantage``: unbiased at any age, at the price of ratio noise."""
    return ratio * advantage
