"""Quadratic objectives: the spectrum, the noise of each mode and where SGD starts.

Model: loss 1/2 sum lambda theta^2 over independent modes; the gradient of a rollout has noise of
its own std in each mode. SGD with step size eta multiplies a mode by q = 1 - eta lambda per update
and is stable while eta lambda < 2 in every mode.

Fails as a picture of training where the curvature or the noise changes on the way. Setting of the
formulas Q6 and Q7 of this project.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from theory.quantities import non_negative, real_array, whole
from theory.sampling import Array

LEAST_LOG = -1e4


class Quadratic(NamedTuple):
    """Modes of a quadratic objective, arrays of shape (modes,).

    Attributes:
        curvature: lambda, > 0.
        noise_std: std of the gradient of one rollout with sigma = 1, >= 0.
        start: theta_0.
    """

    curvature: Array
    noise_std: Array
    start: Array


def quadratic(
    curvature: ArrayLike, noise_std: ArrayLike = 1.0, start: ArrayLike = 1.0
) -> Quadratic:
    """A quadratic objective with any spectrum, for Q6 and Q7.

    Args:
        curvature: lambda, > 0, shape (modes,).
        noise_std: std of the gradient of one rollout with sigma = 1 in each mode, >= 0, shape
            (modes,) or one number.
        start: theta_0, shape (modes,) or one number.

    Returns:
        The modes.

    Raises:
        ValueError: if an argument is out of range or the shapes differ.

    >>> quadratic([1.0, 0.25]).start.tolist()
    [1.0, 1.0]
    """
    spectrum = real_array("curvature", curvature, low=0, above=True)
    if spectrum.ndim != 1:
        raise ValueError(f"curvature of shape {spectrum.shape} is not allowed: give one row")
    noise = real_array("noise_std", noise_std, low=0)
    theta = real_array("start", start, low=-np.inf)
    for name, values in (("noise_std", noise), ("start", theta)):
        if values.shape not in ((), spectrum.shape):
            raise ValueError(
                f"{name} of shape {values.shape} is not allowed: there are {spectrum.size} modes"
            )
    return Quadratic(*(np.array(a) for a in np.broadcast_arrays(spectrum, noise, theta)))


def power_law_quadratic(
    modes: int, spectrum_power: float, noise_std: float = 1.0, noise_power: float = 1.0
) -> Quadratic:
    """Spectrum i^-a, noise covariance noise_std^2 lambda^noise_power, theta_0 = 1 (setting of Q7).

    Args:
        modes: number of modes, >= 1.
        spectrum_power: a, >= 0.
        noise_std: std of one rollout's gradient in the mode of curvature 1, >= 0.
        noise_power: 1 for noise proportional to the curvature, 0 for white noise, >= 0.

    Returns:
        The modes, largest curvature (1) first.

    Raises:
        ValueError: if an argument is out of range.

    >>> power_law_quadratic(3, 1.0).curvature.round(3).tolist()
    [1.0, 0.5, 0.333]
    """
    power = -non_negative("spectrum_power", spectrum_power)
    curvature = np.arange(1.0, whole("modes", modes) + 1) ** power
    shape = curvature ** (non_negative("noise_power", noise_power) / 2)
    return quadratic(curvature, non_negative("noise_std", noise_std) * shape)


def initial_loss(problem: Quadratic) -> float:
    """Loss at theta_0, 1/2 sum lambda theta_0^2 (Q7 before the first update).

    Args:
        problem: the modes.

    Returns:
        Loss.

    >>> initial_loss(quadratic([1.0, 0.25], start=2.0))
    2.5
    """
    return float(0.5 * problem.curvature @ problem.start**2)


def step_curvature(problem: Quadratic, learning_rates: ArrayLike) -> Array:
    """Step size times curvature, eta lambda = 1 - q, in every mode (Q6).

    Args:
        problem: the modes.
        learning_rates: eta, > 0, eta lambda < 2 in every mode, any shape.

    Returns:
        eta lambda, shape of ``learning_rates`` and (modes,).

    Raises:
        ValueError: if a step size is out of range.

    >>> step_curvature(quadratic([1.0, 0.5]), 0.5).tolist()
    [0.5, 0.25]
    """
    rates = real_array("learning_rate", learning_rates, low=0, above=True)
    steps = rates[..., None] * problem.curvature
    unstable = (steps >= 2).any(axis=-1)
    if unstable.any():
        limit = f"it must be < {2 / problem.curvature.max():g}, or SGD diverges"
        raise ValueError(f"learning_rate = {rates[unstable][0]:g} is not allowed: {limit}")
    return steps


def log_shrink(step: Array) -> Array:
    """Log of q^2, the factor per update of a second moment (Q6); -10,000 stands for q = 0.

    Args:
        step: eta lambda = 1 - q, above 0 and below 2, any shape.

    Returns:
        Logarithm, same shape.

    >>> log_shrink(np.array([0.5, 1.0])).round(4).tolist()
    [-1.3863, -10000.0]
    """
    with np.errstate(divide="ignore"):
        large = np.maximum(2 * np.log(np.abs(1 - step)), LEAST_LOG)
    return np.where(step < 0.5, 2 * np.log1p(-np.minimum(step, 0.5)), large)
