"""Exact quadratic with replayed gradient noise: the model that the noise theory solves.

Objective ``1/2 sum_i lambda_i theta_i^2`` with power-law spectrum ``lambda_i = i^-a``. A rollout
is its noise vector z; used at age s it gives the gradient ``lambda theta + sigma(s) std * z``.
The true gradient is always fresh: only the noise is replayed, which is what makes it solvable.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.problems import Array, Problem, StreamKeys


class QuadraticEnv(NamedTuple):
    """Arrays of a quadratic: curvature (dim,), noise_std (dim,), sigma by age (ages,)."""

    curvature: Array
    noise_std: Array
    sigma: Array


def forward(env: QuadraticEnv, theta: Array) -> Array:
    """Return theta itself, (dim,): nothing else is needed of it."""
    return theta


def noise(keys: StreamKeys, shape: tuple[int, ...], *, dim: int) -> Array:
    """Return standard normal gradient noise, ``shape + (dim,)``, from the reward stream."""
    return jax.random.normal(keys.reward, (*shape, dim))


def rollout(env: QuadraticEnv, view: Array, noise: Array) -> Array:
    """Return the rollouts (K, dim): each is its noise vector."""
    return noise


def gradient(env: QuadraticEnv, view: Array, rollouts: Array, age: Array, weight: Array) -> Array:
    """Return the ascent direction (dim,): minus the batch mean of the per-rollout gradients."""
    scale = weight * env.sigma[age]
    return -(env.curvature * view + env.noise_std * (scale @ rollouts))


def loss(env: QuadraticEnv, view: Array) -> Array:
    """Return ``1/2 sum_i lambda_i theta_i^2``."""
    return 0.5 * jnp.sum(env.curvature * view**2)


def quadratic(
    *,
    dim: int = 32,
    spectrum_power: float = 1.0,
    noise_std: float = 1.0,
    noise_power: float = 1.0,
    sigma2: Callable[[np.ndarray], np.ndarray] | None = None,
    max_age: int = 1024,
) -> Problem:
    """Build the quadratic problem, started at theta = 1 in every mode.

    Args:
        dim: number of modes, >= 1.
        spectrum_power: a in ``lambda_i = i^-a``, >= 0 (0: all modes alike).
        noise_std: noise of one fresh rollout's gradient in a mode of curvature 1, >= 0.
        noise_power: noise covariance ``noise_std^2 lambda^noise_power``, >= 0; 1 is the usual
            noise proportional to the curvature, 0 is white.
        sigma2: relative noise variance by age, a staleness profile; None: 1 at every age.
        max_age: largest age tabulated, >= the longest staleness horizon used.

    Returns:
        The problem; ``initial_loss`` is ``1/2 sum lambda``.

    Raises:
        ValueError: for a value outside the ranges above.
    """
    if dim < 1 or max_age < 1:
        raise ValueError(f"dim and max_age must be >= 1, got {dim} and {max_age}")
    for name, value in [
        ("spectrum_power", spectrum_power),
        ("noise_std", noise_std),
        ("noise_power", noise_power),
    ]:
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, got {value}")
    curvature = np.arange(1, dim + 1, dtype=float) ** -spectrum_power
    ages = np.arange(max_age + 1)
    by_age = np.ones(max_age + 1) if sigma2 is None else np.asarray(sigma2(ages), float)
    env = QuadraticEnv(
        curvature=jax.device_put(np.float32(curvature)),
        noise_std=jax.device_put(np.float32(noise_std * curvature ** (noise_power / 2))),
        sigma=jax.device_put(np.float32(np.sqrt(by_age))),
    )
    return Problem(
        name="quadratic",
        env=env,
        theta0=np.ones(dim, np.float32),
        forward=forward,
        noise=lambda keys, shape: noise(keys, shape, dim=dim),
        rollout=rollout,
        gradient=gradient,
        loss=loss,
        initial_loss=float(0.5 * curvature.sum()),
    )
