"""Exact expected loss of SGD with replayed gradient noise on a quadratic, from the first update.

Model: loss 1/2 sum lambda theta^2, constant step size eta, noise and draws as in ``theory.noise``.
The buffer is filled to N at theta_0 and update 0's R rollouts are part of the fill, so at update t
a rollout of the fill has age t. A rollout of rank r has age min(floor(r/R), t).

Two updates i < j = i + k share the rollouts with r < N - kR at i, and for either kind of draw
    C(i,j) = (1/N^2) sum over these r of sigma(a) sigma(a + k),   a = min(floor(r/R), i).
C(i,i) is Q1 or Q2 with the mean of sigma^2 over the ages present. Seen from j, a stored rollout of
age b was stored at the b updates before, at ages b - 1, ..., 0, whenever it was made. Hence
    v_{t+1} = q^2 v_t + eta^2 V_t,   V_t = C(t,t) + (2q/N^2) sum over the stored of sigma(b) Y_b,
    Y_{b+1} = sigma(b) + q Y_b,   Y_0 = 0,   q = 1 - eta lambda,
which is the double sum of Q6 in one step per update, for any profile. V_t is the V_eff of Q4 for
the ages present at t, and constant from t = floor(N/R) on: from there the second moment of each
mode goes to its limit like q^(2t), from one side.

Fails where the curvature, the noise or the step size changes during the run. Formulas of this
project, for the buffer of arXiv 2604.08706.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.quadratic import Quadratic, log_shrink, step_curvature
from theory.quantities import positive
from theory.sampling import Array, ReplayDesign, sampling_variance, sigma_by_age, whole_array
from theory.staleness import Profile

TIMES_AT_ONCE = 1024


def second_moments(
    problem: Quadratic,
    learning_rate: float,
    design: ReplayDesign,
    updates: ArrayLike,
    profile: Profile | float = 1.0,
    start: str = "full",
) -> Array:
    """Expected square of every parameter after t updates, q^(2t) theta_0^2 + noise_std^2 v_t (Q6).

    Args:
        problem: the modes.
        learning_rate: eta, > 0, eta lambda < 2 in every mode.
        design: one design.
        updates: t, whole updates, >= 0, shape (times,).
        profile: variance by age, or one number for every age.
        start: "full", the only start this formula covers.

    Returns:
        E theta^2, shape (times, modes).

    Raises:
        ValueError: if an argument is out of range or ``start`` is "growing".

    >>> from theory.quadratic import quadratic
    >>> from theory.sampling import replay_design
    >>> second_moments(quadratic([1.0]), 0.1, replay_design(32, 8, 128), [0, 100]).round(5).tolist()
    [[1.0], [0.00528]]
    """
    times = whole_array("updates", np.atleast_1d(updates), low=0).astype(int)
    blocks = _moment_blocks(problem, learning_rate, design, times, profile, start)
    moments = np.empty((times.size, problem.curvature.size))
    for where, block in blocks:
        moments[where] = block
    return moments


def expected_loss(
    problem: Quadratic,
    learning_rate: float,
    design: ReplayDesign,
    updates: ArrayLike,
    profile: Profile | float = 1.0,
    start: str = "full",
) -> Array:
    """Expected loss after t updates, 1/2 sum lambda E theta^2 (Q7).

    Args:
        problem: the modes.
        learning_rate: eta, > 0, eta lambda < 2 in every mode.
        design: one design.
        updates: t, whole updates, >= 0, shape (times,).
        profile: variance by age, or one number for every age.
        start: "full", the only start this formula covers.

    Returns:
        Expected loss, shape (times,).

    Raises:
        ValueError: if an argument is out of range or ``start`` is "growing".

    >>> from theory.quadratic import quadratic
    >>> from theory.sampling import replay_design
    >>> loss = expected_loss(quadratic([1.0, 0.1]), 0.5, replay_design(32, 8, 128), [0, 10, 100])
    >>> loss.round(4).tolist()
    [0.55, 0.0323, 0.0229]
    """
    times = whole_array("updates", np.atleast_1d(updates), low=0).astype(int)
    loss = np.empty(times.size)
    for where, block in _moment_blocks(problem, learning_rate, design, times, profile, start):
        loss[where] = 0.5 * block @ problem.curvature
    return loss


def transients(keep: Array, sigma: Array) -> Iterator[tuple[Array, Array]]:
    """What v_t and V_t of Q6 are made of while the fill leaves the buffer, for any design.

    V_t is linear in four numbers of the design, ``design_weights``; so is v_t / eta^2.

    Args:
        keep: q = 1 - eta lambda, any shape.
        sigma: noise by age, shape (ages,).

    Yields:
        For t = 0, 1, ..., ages - 1: the four parts of v_t / eta^2 and the four of V_t, (4, ...).

    Returns:
        Iterator of these pairs.

    >>> [drive.tolist() for _, drive in transients(np.array(0.5), np.ones(2))]
    [[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 1.0]]
    """
    response, drive = np.zeros((4, *keep.shape)), np.empty((4, *keep.shape))
    memory, past_memory, past_variance = np.zeros(keep.shape), np.zeros(keep.shape), 0.0
    shrink = keep**2
    for t, scale in enumerate(sigma):
        drive[0], drive[1] = past_variance - t * scale**2, scale**2
        drive[2] = 2 * keep * (past_memory - (t * scale) * memory)
        drive[3] = (2 * scale) * keep * memory
        yield response, drive
        response = shrink * response + drive
        past_variance, past_memory = past_variance + scale**2, past_memory + scale * memory
        memory = scale + keep * memory


def design_weights(design: ReplayDesign) -> Array:
    """How much of each of the four parts in ``transients`` a design has (Q6).

    With c of Q1 or Q2 and t <= N/R, R rollouts of each age below t and N - tR of age t are stored,
    so c times their mean sigma^2 has weights c R/N and c, and the shared noise R/N^2 and 1/N.

    Args:
        design: the designs.

    Returns:
        Weights, shape of ``design`` and (4,).

    >>> from theory.sampling import replay_design
    >>> design_weights(replay_design(32, 8, 128)).tolist()
    [0.001953125, 0.03125, 0.00048828125, 0.0078125]
    """
    once = np.asarray(sampling_variance(design))
    share = design.rollouts_per_update / design.buffer_size
    size = design.buffer_size
    return np.stack([once * share, once, share / size, 1 / size], axis=-1)


def check_start(start: str) -> None:
    """Refuse a start that Q6 does not cover.

    Args:
        start: "full".

    Returns:
        Nothing.

    Raises:
        ValueError: if ``start`` is anything else.

    >>> check_start("full")
    """
    if start != "full":
        raise ValueError(f"start = {start!r} is not allowed: the exact dynamics need 'full'")


def _moment_blocks(
    problem: Quadratic,
    learning_rate: float,
    design: ReplayDesign,
    times: NDArray[np.int_],
    profile: Profile | float,
    start: str,
) -> Iterator[tuple[NDArray[np.int_], Array]]:
    """Positions in ``times`` and E theta^2 there, (positions, modes), some times at once."""
    check_start(start)
    if design.batch_size.size != 1:
        raise ValueError(f"{design.batch_size.size} designs are not allowed: give one")
    step = step_curvature(problem, positive("learning_rate", learning_rate))
    log, gain = log_shrink(step), (learning_rate * problem.noise_std) ** 2
    weights = design_weights(design).reshape(4)
    horizon = int(design.buffer_size.item() // design.rollouts_per_update.item())
    last = min(horizon, int(times.max()))
    order = np.argsort(times, kind="stable")
    edges = np.searchsorted(times[order], np.arange(last + 2))
    variance, limit = np.zeros(step.shape), np.zeros(step.shape)
    for t, (response, drive) in enumerate(transients(1 - step, sigma_by_age(profile, last))):
        variance = gain * (weights @ response)
        limit = gain * (weights @ drive) / (step * (2 - step))
        yield order[edges[t] : edges[t + 1]], problem.start**2 * np.exp(t * log) + variance
    for first in range(edges[-1], times.size, TIMES_AT_ONCE):
        where = order[first : first + TIMES_AT_ONCE]
        now, since = times[where, None], times[where, None] - horizon
        bias = problem.start**2 * np.exp(now * log)
        yield where, bias + variance * np.exp(since * log) - limit * np.expm1(since * log)
