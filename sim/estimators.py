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


def per_decision_ratio(logp: Array, behaviour_logp: Array) -> Array:
    """Return the ratio of a path up to and including each of its steps, ``prod_{u <= t} ratio_u``.

    Args:
        logp: log-probability of each action now, (..., H).
        behaviour_logp: the same at generation, (..., H).

    Returns:
        (..., H); 1 for a fresh rollout.
    """
    return jnp.exp(jax.lax.associative_scan(jnp.add, logp - behaviour_logp, axis=-1))


def per_decision_corrected(ratio: Array, residual: Array) -> Array:
    """Return ``sum_{u >= t} ratio_u residual_u``, the factor in front of ``grad log pi(a_t)``.

    With the discounted residuals ``gamma^u (r_u + gamma V(s_{u+1}) - V(s_u))`` of any values V
    that vanish at the end of the path, it is unbiased at any age: ratios up to u correct reward
    u, and V cancels in the mean. Fresh, it is the discounted return-to-go minus V.

    Args:
        ratio: per-decision ratios, (..., H).
        residual: discounted residuals, (..., H).

    Returns:
        (..., H).
    """
    pulls = ratio * residual
    return jax.lax.associative_scan(jnp.add, pulls, axis=pulls.ndim - 1, reverse=True)


def sequence_ratio(logp: Array, behaviour_logp: Array) -> Array:
    """Return the ratio of whole sequences, the product over tokens (..., H) -> (..., 1)."""
    return jnp.exp(jnp.sum(logp - behaviour_logp, axis=-1, keepdims=True))


def geometric_ratio(logp: Array, behaviour_logp: Array) -> Array:
    """Return the geometric mean of the token ratios, (..., H) -> (..., 1); biased, as in GSPO."""
    return jnp.exp(jnp.mean(logp - behaviour_logp, axis=-1, keepdims=True))


def truncated(ratio: Array, largest: Array) -> Array:
    """Return the ratio cut at ``largest`` (> 0, infinite: not at all), as in V-trace; biased."""
    return jnp.minimum(ratio, largest)


def clipped(ratio: Array, advantage: Array, clip_low: Array, clip_high: Array) -> Array:
    """Return the ratio, 0 where PPO's clip stops the gradient.

    That is above ``1 + clip_high`` for a positive advantage and below ``1 - clip_low`` for a
    negative one; infinite bounds never clip.
    """
    stopped = jnp.where(advantage > 0, ratio > 1 + clip_high, ratio < 1 - clip_low)
    return jnp.where(stopped, 0.0, ratio)
