"""The finite-memory laws: their limits, against the exact dynamics, and their fits."""

import numpy as np
import pytest

from theory.calibrate import (
    bound_from_updates,
    fixed_step_memory_fit,
    spectrum_from_updates,
    tuned_memory_fit,
)
from theory.calibrate.updates_fit import long_run_updates
from theory.finite_memory import fixed_step_updates, slowed_updates, tuned_updates
from theory.long_run import long_run_variance
from theory.noise import effective_variance
from theory.pricing import best_step_size, step_size_grid, updates_to_target
from theory.quadratic import initial_loss, power_law_quadratic, quadratic
from theory.sampling import ReplayDesign, replay_design
from theory.staleness import OffsetPowerLaw

DESIGNS = replay_design(
    [64, 32, 16, 64, 64, 64, 64], [64, 32, 16, 32, 16, 16, 8], [64, 32, 16, 64, 64, 256, 64]
)
ON_POLICY = np.array([True, True, True, False, False, False, False])
AGEING = OffsetPowerLaw(1.0, 0.05, 0.5)


def exact_updates(problem, target):
    rates = step_size_grid(problem, 120, 1e-5)
    return best_step_size(problem, DESIGNS, target, 1.0, learning_rates=rates).updates


@pytest.mark.parametrize("profile", [1.0, AGEING])
def test_without_forgetting_it_is_the_long_run_law(profile):
    law = long_run_updates(100, 80, long_run_variance(DESIGNS, profile))
    np.testing.assert_allclose(tuned_updates(DESIGNS, 100, 80, 0, profile), law, rtol=1e-12)
    np.testing.assert_allclose(tuned_updates(DESIGNS, 100, 80, 1e-7, profile), law, rtol=1e-5)


@pytest.mark.parametrize("profile", [1.0, AGEING])
@pytest.mark.parametrize("lifetimes", [0.5, 5.0, 100.0])
def test_updates_solve_the_law(lifetimes, profile):
    found = np.asarray(tuned_updates(DESIGNS, 50, 300, lifetimes, profile))
    step = 1 - np.exp(-lifetimes / found)
    right = 50 * (1 + 300 * np.asarray(effective_variance(DESIGNS, step, profile)))
    np.testing.assert_allclose(found, right, rtol=1e-8)


def test_forgetting_spares_replay_and_leaves_on_policy_alone():
    never, some, much = (np.asarray(tuned_updates(DESIGNS, 50, 300, k)) for k in (0, 20, 2000))
    np.testing.assert_allclose(some[ON_POLICY], never[ON_POLICY], rtol=1e-12)
    assert np.all(some[~ON_POLICY] < never[~ON_POLICY])
    assert np.all(much[~ON_POLICY] < some[~ON_POLICY])


def test_one_step_size_is_exact_in_one_mode():
    step, noise, target = 0.02, 3.0, 0.01
    exact = updates_to_target(quadratic([1.0], noise_std=noise), step, DESIGNS, target)
    tau = -1 / (2 * np.log(1 - step))
    # floor 1/2 eta^2 noise^2 V / (1 - q^2), which is the target at V_max
    most = 2 * target * (1 - (1 - step) ** 2) / (step * noise) ** 2
    law = fixed_step_updates(DESIGNS, tau * np.log(0.5 / target), tau, most)
    np.testing.assert_allclose(law, exact, rtol=0.015)


def test_a_floor_above_the_target_is_never_passed():
    found = np.asarray(fixed_step_updates(DESIGNS, 100, 50, 0.9 / 16))
    assert np.isinf(found[2])
    assert np.isfinite(found[[0, 1, 3]]).all()


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("noise", [3.0, 10.0])
def test_fit_of_six_designs_predicts_the_seventh_on_a_spectrum(power, noise):
    problem = power_law_quadratic(16, power, noise)
    exact = exact_updates(problem, 0.02 * initial_loss(problem))
    some = [0, 1, 2, 3, 5, 6]
    pilot = ReplayDesign(*(field[some] for field in DESIGNS))
    fit = tuned_memory_fit(pilot, [[updates] for updates in exact[some]])
    assert fit.converged
    np.testing.assert_allclose(fit.updates(DESIGNS), exact, rtol=0.1)


def test_fixed_step_fit_predicts_the_designs_it_has_not_seen():
    truth = np.asarray(slowed_updates(DESIGNS, 300, 0.2, 2.0, 0.01, 64, AGEING))
    some = [0, 1, 2, 3, 5]
    pilot = ReplayDesign(*(field[some] for field in DESIGNS))
    fit = fixed_step_memory_fit(pilot, [[updates] for updates in truth[some]], [90_000] * 5)
    assert fit.converged
    np.testing.assert_allclose(fit.updates(DESIGNS), truth, rtol=0.1)


def test_a_design_that_was_given_up_only_bounds_the_fit():
    truth = np.asarray(slowed_updates(DESIGNS, 300, 0.3, 2.0, 0.01, 64))
    limits = np.full(7, 1.2 * truth[4])
    seen = np.minimum(truth, limits)
    fit = fixed_step_memory_fit(DESIGNS, [[updates] for updates in seen], limits)
    found = np.asarray(fit.updates(DESIGNS))
    assert found[6] > 0.95 * limits[6]
    np.testing.assert_allclose(found[:5], truth[:5], rtol=0.1)


def test_noise_that_is_not_additive_slows_but_never_stops():
    found = np.asarray(slowed_updates(DESIGNS, 100, 0.2, 2.0, 0.01, 64))
    np.testing.assert_allclose(found[:3], 100 * (1 + 0.2 * np.array([1, 4, 16])))
    assert np.isfinite(found).all()


def test_spectrum_fit_needs_as_many_updates_as_the_job():
    problem = power_law_quadratic(16, 1.5, 6.0)
    target = 0.02
    rates = step_size_grid(problem, 120, 1e-5)
    sizes = np.array([64, 32, 16, 8])
    design = replay_design(sizes, sizes, sizes)
    loss = target * initial_loss(problem)
    exact = np.asarray(best_step_size(problem, design, loss, 1.0, learning_rates=rates).updates)
    fit = spectrum_from_updates(sizes, list(exact), target)
    assert fit.residual < 0.05
    np.testing.assert_allclose(fit.updates(design)[0], exact, rtol=0.1)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: tuned_updates(DESIGNS, 0, 1, 1), "min_updates"),
        (lambda: tuned_updates(DESIGNS, 1, -1, 1), "noise_scale"),
        (lambda: tuned_updates(DESIGNS, 1, 1, -1), "lifetimes"),
        (lambda: fixed_step_updates(DESIGNS, 0, 1, 1), "noiseless_updates"),
        (lambda: fixed_step_updates(DESIGNS, 1, 0, 1), "time_constant"),
        (lambda: fixed_step_updates(DESIGNS, 1, 1, 0), "largest_variance"),
        (lambda: slowed_updates(DESIGNS, 0, 1, 1, 0.1, 8), "min_updates"),
        (lambda: slowed_updates(DESIGNS, 1, -1, 1, 0.1, 8), "noise_share"),
        (lambda: slowed_updates(DESIGNS, 1, 1, 0, 0.1, 8), "exponent"),
        (lambda: slowed_updates(DESIGNS, 1, 1, 1, 1.0, 8), "forgetting"),
        (lambda: slowed_updates(DESIGNS, 1, 1, 1, 0.1, 0), "reference_batch"),
        (lambda: tuned_memory_fit(DESIGNS, [[1.0]] * 6), "6 designs"),
        (lambda: bound_from_updates(DESIGNS, [[1.0]] * 6), "6 designs"),
        (lambda: tuned_memory_fit(replay_design([8, 8], 8, 8), [[1], [2]]), "2 designs"),
        (lambda: spectrum_from_updates([64], [[100]], 0.1), "batch_sizes"),
        (lambda: spectrum_from_updates([64, 32], [[100], [200]], 1.5), "target"),
        (lambda: spectrum_from_updates([64, 32], [[100], [-200]], 0.5), "-200"),
    ],
)
def test_refused(call, value):
    with pytest.raises(ValueError, match=value) as caught:
        call()
    assert "\n" not in str(caught.value)
