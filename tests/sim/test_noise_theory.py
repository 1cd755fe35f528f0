"""Replay noise of the exact theory against simulated runs, in the transient and in the long run.

Settings are drawn by a seeded rule. z is the simulated mean minus the theory over its standard
error across lanes, which are independent runs.
"""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from sim.problems.quadratic import QuadraticEnv, quadratic
from sim.train import Allocation, Lane, blank_state, block_runner, stack_lanes
from theory.dynamics import expected_loss, second_moments
from theory.noise import stationary_variance
from theory.quadratic import Quadratic
from theory.sampling import replay_design
from theory.staleness import Exponential, OffsetPowerLaw, Tabulated

MODES, OLDEST = 6, 64
ALLOCATION = Allocation(batch=24, width=12, rows=24, steps=64)
TIMES = np.array([1, 3, 7, 15, 31, 63, 127, 255])


class Setting(NamedTuple):
    """One setting: counts, draw, step size, modes and profile, all drawn at random."""

    counts: tuple[int, int, int]
    replace: bool
    step_size: float
    modes: Quadratic
    profile: object


def random_setting(rng):
    """B up to 24, R up to 12, horizon up to 24 updates, whole or not; eta lambda up to 1.8."""
    replace = bool(rng.integers(2))
    fresh = int(2 ** rng.uniform(0, np.log2(12.99)))
    size = int(fresh * 24 ** rng.uniform(0, 1))
    batch = int(rng.integers(1, (24 if replace else min(24, size)) + 1))
    curvature = np.arange(1, MODES + 1) ** -rng.uniform(0, 2)
    noise_std = 10 ** rng.uniform(-0.5, 0.5) * curvature ** (rng.uniform(0, 2) / 2)
    profile = [
        Tabulated((float(rng.uniform(0.5, 2)),)),
        OffsetPowerLaw(rng.uniform(0.1, 1), rng.uniform(0, 1), rng.uniform(0.1, 0.9)),
        Exponential(rng.uniform(0.2, 1), rng.uniform(0, 0.3), cap=10.0),
        Tabulated(tuple(rng.uniform(0.1, 3, 12))),
    ][rng.integers(4)]
    step_size = 10 ** rng.uniform(-2, np.log10(1.8))
    modes = Quadratic(curvature, noise_std, np.ones(MODES))
    return Setting((batch, fresh, size), replace, step_size, modes, profile)


def simulator(problem, allocation, record):
    """A function that runs lanes under an env; one compilation serves all of its calls."""
    runner = block_runner(problem, allocation, record)

    def run(env, lanes, updates):
        state = blank_state(problem, allocation, len(lanes))
        records = []
        for tick in range(0, updates, allocation.steps):
            fresh = np.full(len(lanes), tick == 0)
            state, out = runner(env, stack_lanes(lanes), state, fresh, np.int32(tick))
            records.append(jax.device_get(out))
        return np.concatenate(records)[:updates]

    return run


def simulated_squares(run, number, setting, lanes, updates):
    """theta^2 before every update, (updates, lanes, modes), float64."""
    ages = np.arange(OLDEST + 1)
    env = QuadraticEnv(
        *(
            np.float32(values)
            for values in (
                setting.modes.curvature,
                setting.modes.noise_std,
                np.sqrt(setting.profile(ages)),
            )
        )
    )
    many = [
        Lane(*setting.counts, setting.step_size, setting.replace, False, -1.0, 10**9, seed, number)
        for seed in range(lanes)
    ]
    return run(env, many, updates).astype(float) ** 2


def z_score(samples, expected):
    """Mean over the first axis minus the expectation, in standard errors."""
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - expected) / error


def transient_scores(setting, squares):
    """z of the loss at the fixed times, and of theta^2 in the first, the last and a middle mode."""
    design = replay_design(*setting.counts, setting.replace)
    arguments = (setting.modes, setting.step_size, design, TIMES, setting.profile)
    loss = 0.5 * squares[TIMES] @ setting.modes.curvature
    of_loss = z_score(loss.T, expected_loss(*arguments))
    chosen = [0, MODES // 2, MODES - 1]
    moments = second_moments(*arguments)[:, chosen]
    return of_loss, z_score(squares[TIMES][..., chosen].swapaxes(0, 1), moments)


def long_run_scores(setting, squares):
    """z of the time average of theta^2 over the second half, in modes that have settled."""
    design = replay_design(*setting.counts, setting.replace)
    half = len(squares) // 2
    settled = (1 - setting.step_size * setting.modes.curvature) ** (2 * half) < 1e-9
    if not settled.any():
        return np.empty(0)
    curvature = setting.modes.curvature[settled]
    expected = stationary_variance(design, setting.step_size, curvature, setting.profile)
    averages = squares[half:].mean(axis=0)[:, settled]
    return z_score(averages, expected * setting.modes.noise_std[settled] ** 2)


def compared(seed, settings, lanes, updates):
    """All z-scores of random settings: (settings, times), (settings, times, modes), long run."""
    run = simulator(quadratic(dim=MODES, max_age=OLDEST), ALLOCATION, lambda step: step.theta)
    rng = np.random.default_rng(seed)
    of_loss, of_modes, of_long_run = [], [], []
    for number in range(settings):
        setting = random_setting(rng)
        squares = simulated_squares(run, number, setting, lanes, updates)
        at_times = transient_scores(setting, squares)
        of_loss.append(at_times[0])
        of_modes.append(at_times[1])
        of_long_run.append(long_run_scores(setting, squares))
    return np.array(of_loss), np.array(of_modes), np.concatenate(of_long_run)


def assert_standard(scores):
    """At most one in a hundred, or two in a small sample, beyond 3 standard errors; none beyond 5.

    Scores of one setting go together: its modes share draws, its times share rollouts.
    """
    assert (np.abs(scores) > 3).sum() <= max(2, 0.01 * scores.size)
    assert np.abs(scores).max() < 5


def test_random_settings_agree():
    of_loss, of_modes, of_long_run = compared(20240601, settings=6, lanes=256, updates=256)
    assert_standard(of_loss)
    assert_standard(of_modes)
    assert_standard(of_long_run)


@pytest.mark.slow
def test_many_random_settings_agree():
    of_loss, of_modes, of_long_run = compared(20240602, settings=40, lanes=512, updates=512)
    for scores in (of_loss, of_modes, of_long_run):
        assert_standard(scores)
        assert np.sqrt((scores**2).mean()) == pytest.approx(1, abs=0.25)


def test_a_wrong_theory_is_seen():
    """The same comparison fails for another horizon, or for noise without ages."""
    rng = np.random.default_rng(7)
    run = simulator(quadratic(dim=MODES, max_age=OLDEST), ALLOCATION, lambda step: step.theta)
    setting = random_setting(rng)._replace(
        counts=(12, 4, 48), replace=False, step_size=0.2, profile=OffsetPowerLaw(0.2, 0.25, 0.5)
    )
    squares = simulated_squares(run, 0, setting, 256, 256)
    assert np.abs(transient_scores(setting, squares)[0]).max() < 5
    for wrong in (
        setting._replace(counts=(12, 4, 32)),
        setting._replace(counts=(12, 3, 48)),
        setting._replace(profile=Tabulated((2.0,))),
    ):
        assert np.abs(transient_scores(wrong, squares)[0]).max() > 5


# B, R, N and step size of the settings whose stationary variance is checked within 2 %.
ROWS = [
    (32, 8, 32, 0.1),
    (32, 8, 128, 0.1),
    (32, 8, 1024, 0.1),
    (32, 8, 128, 0.01),
    (32, 4, 512, 0.5),
    (32, 2, 64, 0.02),
]


def stationary_ratios(rows, dim, seeds, updates, burn_in):
    """Simulated over exact stationary variance, (rows, 2 draws), many equal modes as replicates."""
    problem = quadratic(dim=dim, spectrum_power=0.0, max_age=256)
    problem = problem._replace(theta0=np.zeros(dim, np.float32))
    batch, width, horizon = 32, max(row[1] for row in rows), max(row[2] // row[1] for row in rows)
    run = simulator(
        problem,
        Allocation(batch, width, horizon),
        lambda step: (step.theta**2).mean(axis=-1),
    )
    cases = [(row, replace) for row in rows for replace in (False, True)]
    lanes = [
        Lane(*row, replace, False, -1.0, 10**9, seed, number)
        for number, (row, replace) in enumerate(cases)
        for seed in range(seeds)
    ]
    squares = run(problem.env, lanes, updates)[burn_in:].mean(axis=0, dtype=float)
    exact = [
        stationary_variance(replay_design(*row[:3], replace), row[3], 1.0) for row, replace in cases
    ]
    return squares.reshape(-1, seeds).mean(axis=1) / exact


def test_stationary_variance_is_simulated():
    ratios = stationary_ratios(ROWS[:2], dim=128, seeds=8, updates=640, burn_in=128)
    np.testing.assert_allclose(ratios, 1, atol=0.02)


@pytest.mark.slow
def test_every_stationary_variance_is_simulated():
    ratios = stationary_ratios(ROWS, dim=128, seeds=16, updates=5120, burn_in=1024)
    np.testing.assert_allclose(ratios, 1, atol=0.02)
