"""Exact transients against the double sum over a listed queue, and against the steady state."""

import numpy as np
import pytest

from theory.dynamics import design_weights, expected_loss, second_moments, transients
from theory.noise import effective_variance, noise_autocovariance, stationary_variance
from theory.quadratic import (
    initial_loss,
    log_shrink,
    power_law_quadratic,
    quadratic,
    step_curvature,
)
from theory.sampling import replay_design
from theory.staleness import Exponential, OffsetPowerLaw, Tabulated

PROFILES = [
    Tabulated((1.0,)),
    OffsetPowerLaw(0.2, 0.25, 0.5),
    Tabulated((3.0, 1.0, 2.0, 0.5)),
    Exponential(1.0, 0.2),
]
STEPS = np.array([1e-4, 0.03, 0.7, 1.0, 1.6])


def listed_covariance(updates, batch, fresh, size, replace, profile):
    """C(i,j) by holding the stored rollouts of every update in a list, ages counted."""
    made = np.concatenate([np.zeros(size, int), np.repeat(np.arange(1, updates), fresh)])
    held = np.zeros((updates, made.size))
    for update in range(updates):
        stored = slice(update * fresh, update * fresh + size)
        held[update, stored] = np.sqrt(profile(update - made[stored]))
    covariance = held @ held.T / size**2
    same = (held**2).sum(axis=1) / size
    once = 1 / batch + ((1 - 1 / batch) / size if replace else 0.0)
    return covariance - np.diag(np.diag(covariance)) + np.diag(same * once)


def summed_variance(covariance, keep):
    """v_t for every t by the double sum, step size 1."""
    values = [0.0]
    for t in range(1, len(covariance) + 1):
        weights = keep ** np.arange(t - 1, -1, -1)
        values.append(weights @ covariance[:t, :t] @ weights)
    return np.array(values)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("profile", PROFILES, ids=str)
@pytest.mark.parametrize(
    ("batch", "fresh", "size"),
    [(16, 4, 16), (7, 5, 33), (3, 1, 7), (6, 6, 6), (20, 7, 20), (5, 2, 90), (1, 9, 13)],
)
def test_every_update_is_the_double_sum(batch, fresh, size, profile, replace):
    updates = 60
    covariance = listed_covariance(updates, batch, fresh, size, replace, profile)
    design = replay_design(batch, fresh, size, replace)
    problem = quadratic(STEPS, noise_std=[1.0, 2.0, 0.5, 1.0, 3.0], start=[0.0, 1.0, 0.0, 2.0, 0.5])
    found = second_moments(problem, 1.0, design, np.arange(updates + 1), profile)
    for mode, step in enumerate(STEPS):
        noise = problem.noise_std[mode] ** 2 * summed_variance(covariance, 1 - step)
        mean = problem.start[mode] ** 2 * (1 - step) ** (2.0 * np.arange(updates + 1))
        np.testing.assert_allclose(found[:, mode], mean + noise, rtol=1e-10, atol=0)


def test_step_size_enters_as_in_the_double_sum():
    profile, rate = PROFILES[1], 0.2
    covariance = listed_covariance(40, 6, 3, 24, False, profile)
    problem = quadratic([2.0], start=0.0)
    found = second_moments(problem, rate, replay_design(6, 3, 24), np.arange(41), profile)[:, 0]
    expected = rate**2 * summed_variance(covariance, 1 - rate * 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("profile", PROFILES[:3], ids=str)
@pytest.mark.parametrize("size", [64, 67])
def test_long_runs_end_in_the_steady_state(profile, size, replace):
    design = replay_design(16, 4, size, replace)
    problem = quadratic([1.0, 0.1, 1e-3], noise_std=[1.0, 0.5, 2.0])
    found = second_moments(problem, 0.5, design, [10_000_000], profile)[0]
    expected = stationary_variance(design, 0.5, problem.curvature, profile)
    np.testing.assert_allclose(found, expected * problem.noise_std**2, rtol=1e-10)


def test_noise_is_the_effective_variance_once_the_fill_has_left():
    design = replay_design(8, 3, [10, 12, 20])
    keep = 1 - STEPS
    drives = [drive.copy() for _, drive in transients(keep, np.sqrt(PROFILES[1](np.arange(8))))]
    for i, horizon in enumerate((3, 4, 6)):
        found = design_weights(design)[i] @ drives[horizon]
        one = replay_design(8, 3, int(design.buffer_size[i]))
        np.testing.assert_allclose(found, effective_variance(one, STEPS, PROFILES[1]), rtol=1e-12)


def test_times_may_come_in_any_order():
    problem, design = power_law_quadratic(5, 1.0), replay_design(4, 2, 21)
    times = np.array([3000, 0, 7, 2, 7, 11, 1_000_000, 10])
    curve = expected_loss(problem, 0.3, design, np.arange(3001), PROFILES[1])
    found = expected_loss(problem, 0.3, design, times, PROFILES[1])
    np.testing.assert_allclose(found[times <= 3000], curve[times[times <= 3000]], rtol=1e-14)
    assert curve[0] == initial_loss(problem) == pytest.approx(problem.curvature.sum() / 2)
    moments = second_moments(problem, 0.3, design, times, PROFILES[1])
    np.testing.assert_allclose(found, moments @ problem.curvature / 2, rtol=1e-14)


@pytest.mark.parametrize("replace", [False, True])
def test_ages_of_the_fill_matter(replace):
    """Variance over that of a buffer in steady state: noise of the fill is young at first.

    The values are those printed for simulated runs of this setting; theirs have two digits.
    """
    design, keep = replay_design(16, 4, 64, replace), 0.95
    steady = noise_autocovariance(design, np.arange(24), PROFILES[1])
    problem = quadratic([1.0], start=0.0)
    for t, printed in ((1, 0.10), (8, 0.48), (24, 0.94)):
        back = np.arange(t)
        covariance = np.asarray(steady)[np.abs(back[:, None] - back)]
        expected = 0.05**2 * summed_variance(covariance, keep)[-1]
        found = second_moments(problem, 0.05, design, [t], PROFILES[1])[0, 0]
        assert found / expected == pytest.approx(printed, abs=0.01)


def test_constant_noise_has_no_transient_of_its_own():
    """A buffer filled with rollouts of constant noise is in steady state from the start."""
    design = replay_design(16, 3, 64)
    steady = np.asarray(noise_autocovariance(design, np.arange(50)))
    covariance = steady[np.abs(np.arange(50)[:, None] - np.arange(50))]
    found = second_moments(quadratic([1.0], start=0.0), 0.1, design, np.arange(51))[1:, 0]
    np.testing.assert_allclose(found, 0.01 * summed_variance(covariance, 0.9)[1:], rtol=1e-11)


def test_small_steps_keep_their_digits():
    """A mode with eta lambda = 1e-13 moves by sums of plain noise."""
    design = replay_design(4, 2, 8)
    problem = quadratic([1e-13], start=0.0)
    found = second_moments(problem, 1.0, design, [1, 100_000])[:, 0]
    lags = np.arange(1, 4)
    rest = np.asarray(noise_autocovariance(design, lags))
    expected = 100_000 * 0.25 + 2 * ((100_000 - lags) * rest).sum()
    np.testing.assert_allclose(found, [0.25, expected], rtol=1e-7)
    assert log_shrink(np.array([1e-13]))[0] == pytest.approx(-2e-13, rel=1e-12)


BAD = [
    (lambda: quadratic([[1.0]]), "curvature of shape (1, 1)"),
    (lambda: quadratic([1.0, 0.0]), "curvature = 0"),
    (lambda: quadratic([1.0], noise_std=[1.0, 2.0]), "noise_std of shape (2,)"),
    (lambda: quadratic([1.0], start=np.nan), "start = nan"),
    (lambda: power_law_quadratic(0, 1.0), "modes = 0"),
    (lambda: power_law_quadratic(3, -1.0), "spectrum_power = -1.0"),
    (lambda: step_curvature(quadratic([2.0]), [0.1, 1.0]), "learning_rate = 1"),
    (lambda: second_moments(quadratic([2.0]), 1.0, replay_design(4, 2, 8), [1]), "rate = 1"),
    (lambda: second_moments(quadratic([2.0]), 0.1, replay_design(4, [2, 4], 8), [1]), "2 designs"),
    (lambda: expected_loss(quadratic([2.0]), 0.1, replay_design(4, 2, 8), [-1]), "updates = -1"),
    (lambda: expected_loss(quadratic([2.0]), 0.1, replay_design(4, 2, 8), [1.5]), "updates"),
    (
        lambda: expected_loss(quadratic([2.0]), 0.1, replay_design(4, 2, 8), [1], start="growing"),
        "start = 'growing'",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_values_are_named(call, text):
    with pytest.raises(ValueError, match=r"is not allowed|are not allowed") as error:
        call()
    assert text in str(error.value)
