"""Calibration against data with a known truth: closed forms, coverage of intervals, refusals.

Coverage: of 200 repeats of a 95 % interval, between 90.4 % and 99.6 % hold the truth at three
standard errors; the seeds are fixed.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.calibrate import (
    RatioMoments,
    gen_train_ratio_from_times,
    gen_train_ratio_from_windows,
    long_run_updates,
    moments_from_ess,
    moments_from_means,
    moments_from_ratios,
    noise_scale_from_batches,
    noise_scale_from_gradients,
    noise_scale_from_updates,
    profile_fits,
    staleness_profile,
)
from theory.calibrate.estimate import Estimate, log_interval, ratio_of_means, t_quantile
from theory.optimum import profile_optimum
from theory.split import gen_train_ratio_from_counts
from theory.staleness import Exponential, OffsetPowerLaw, Tabulated

REPEATS = 200
LEAST, MOST = 0.904, 0.996


def covered(estimates, truth):
    return np.mean([each.low <= truth <= each.high for each in estimates])


# estimates


def test_t_quantile_of_one_degree_is_that_of_a_cauchy_variable():
    assert t_quantile(1) == pytest.approx(np.tan(0.475 * np.pi))


@given(st.floats(0.2, 20), st.floats(0.5, 5), st.floats(-0.9, 0.9), st.integers(2, 50))
def test_fieller_ends_are_where_the_data_begin_to_reject(top, bottom, correlation, degrees):
    scale = np.array([0.1 * top, 0.05 * bottom])
    mixed = correlation * scale[0] * scale[1]
    covariance = np.array([[scale[0] ** 2, mixed], [mixed, scale[1] ** 2]])
    found = ratio_of_means(np.array([top, bottom]), covariance, degrees)
    assert found.low <= found.value <= found.high
    for end in (found.low, found.high):
        if 0 < end < np.inf:
            direction = np.array([1, -end])
            distance = (top - end * bottom) ** 2
            assert distance == pytest.approx(
                t_quantile(degrees) ** 2 * (direction @ covariance @ direction), rel=1e-6
            )


@pytest.mark.parametrize(
    ("means", "value", "low_is_zero", "high_is_infinite"),
    [
        ([10.0, 0.1], 100.0, False, True),
        ([1.0, 0.1], 10.0, True, True),
        ([10.0, -0.1], np.inf, False, True),
        ([10.0, -9.0], np.inf, False, True),
        ([-9.0, -9.0], 0.0, True, False),
        ([-1.0, 10.0], 0.0, True, False),
        ([-10.0, 10.0], 0.0, True, False),
    ],
)
def test_fieller_is_open_where_a_mean_may_be_zero(means, value, low_is_zero, high_is_infinite):
    found = ratio_of_means(np.array(means), np.eye(2), 30)
    assert found.value == pytest.approx(value)
    assert (found.low == 0) == low_is_zero
    assert np.isinf(found.high) == high_is_infinite
    assert found.message


def test_without_scatter_the_interval_is_the_value():
    assert ratio_of_means(np.array([6.0, 2.0]), np.zeros((2, 2)), 5) == Estimate(3.0, 3.0, 3.0)
    assert log_interval(2.5, 0.0, 5) == Estimate(2.5, 2.5, 2.5)


# updates to target at several batch sizes


def runs(rng, sizes, seeds, least, noise_scale, scatter=0.1):
    means = long_run_updates(least, noise_scale, 1 / np.asarray(sizes, dtype=float))
    return [rng.normal(mean, scatter * mean, n) for mean, n in zip(means, seeds, strict=True)]


def test_fit_is_exact_on_exact_data():
    sizes = [8, 32, 128, 512]
    exact = [[u] for u in long_run_updates(120, 40, 1 / np.array(sizes))]
    fit = noise_scale_from_updates(sizes, exact)
    assert fit.noise_scale.value == pytest.approx(40, rel=1e-9)
    assert fit.min_updates.value == pytest.approx(120, rel=1e-9)
    assert fit.misfit is None
    assert fit.converged


def test_fit_intervals_cover_and_estimates_are_centred():
    rng = np.random.default_rng(7)
    sizes, seeds = [16, 32, 64, 128], [6, 4, 5, 8]
    fits = [
        noise_scale_from_updates(sizes, runs(rng, sizes, seeds, 200, 64)) for _ in range(REPEATS)
    ]
    assert LEAST <= covered([fit.noise_scale for fit in fits], 64) <= MOST
    assert LEAST <= covered([fit.min_updates for fit in fits], 200) <= MOST
    least = np.array([fit.min_updates.value for fit in fits])
    assert abs(least.mean() - 200) < 4 * least.std() / REPEATS**0.5
    assert np.mean([fit.misfit < 0.05 for fit in fits]) < 0.1


def test_one_seed_each_uses_the_scatter_about_the_line():
    rng = np.random.default_rng(8)
    sizes = [8, 16, 32, 64, 128]
    fits = [noise_scale_from_updates(sizes, runs(rng, sizes, [1] * 5, 200, 64)) for _ in range(200)]
    assert LEAST <= covered([fit.noise_scale for fit in fits], 64) <= MOST


def test_a_single_seed_borrows_the_scatter_of_the_others():
    fit = noise_scale_from_updates([8, 32, 128], [[900, 1100, 1000], [400, 380], [230]])
    assert 0 < fit.noise_scale.low < fit.noise_scale.value < fit.noise_scale.high < np.inf


def test_updates_that_rise_with_the_batch_give_zero_and_say_so():
    fit = noise_scale_from_updates([8, 32, 128], [[100, 102], [104, 106], [120, 118]])
    assert fit.noise_scale.value == fit.noise_scale.low == 0
    assert fit.noise_scale.high >= 0
    assert fit.min_updates.value == pytest.approx(108, abs=10)
    assert not fit.converged
    assert "Bnoise is reported as 0" in fit.message


def test_batches_far_below_the_noise_scale_have_no_upper_limit():
    fit = noise_scale_from_updates([8, 16, 32], [[1000, 1050], [490, 500], [240, 230]])
    assert fit.noise_scale.value == fit.noise_scale.high == np.inf
    assert fit.noise_scale.low > 0
    assert fit.min_updates.value == 0
    assert not fit.converged
    assert "S_min is reported as 0" in fit.message


def test_updates_that_do_not_follow_the_law_are_reported():
    updates = [[1000, 1010], [200, 202], [150, 152], [900, 905]]
    fit = noise_scale_from_updates([8, 16, 32, 64], updates)
    assert fit.misfit is not None
    assert fit.misfit < 1e-4
    assert not fit.converged
    assert "does not follow" in fit.message


# gradients


def gradients(rng, n, noise_scale, dim=60):
    mean = np.zeros(dim)
    mean[0] = 1.0
    return mean + rng.normal(size=(n, dim)) * (noise_scale / dim) ** 0.5


@given(st.integers(4, 9), st.integers(1, 4), st.integers(0, 10**6))
def test_gradient_parts_are_the_u_statistics(n, dim, seed):
    rows = np.random.default_rng(seed).normal(1, 1, (n, dim))
    found = noise_scale_from_gradients(rows)
    pairs = [rows[i] @ rows[j] for i in range(n) for j in range(n) if i != j]
    assert found.squared_gradient == pytest.approx(np.mean(pairs))
    assert found.noise_trace == pytest.approx(rows.var(axis=0, ddof=1).sum())


@pytest.mark.parametrize(("n", "noise_scale"), [(16, 2.0), (64, 40.0)])
def test_gradient_noise_scale_covers_and_its_parts_are_unbiased(n, noise_scale):
    rng = np.random.default_rng(9)
    found = [noise_scale_from_gradients(gradients(rng, n, noise_scale)) for _ in range(REPEATS)]
    assert covered([each.noise_scale_rollouts for each in found], noise_scale) >= LEAST
    for part, truth in (("noise_trace", noise_scale), ("squared_gradient", 1.0)):
        values = np.array([getattr(each, part) for each in found])
        assert abs(values.mean() - truth) < 4 * values.std() / REPEATS**0.5


def test_groups_are_the_independent_unit():
    """Rollouts of one prompt share half of their noise: single rows understate it."""
    rng = np.random.default_rng(10)
    group, dim = 8, 60
    shared = rng.normal(size=(400, 1, dim)) * (10 / dim) ** 0.5
    own = rng.normal(size=(400, group, dim)) * (10 / dim) ** 0.5
    rows = gradients(rng, 1, 0.0)[0] + shared + own
    found = noise_scale_from_gradients(rows.mean(axis=1), num_generations=group)
    truth = 10 + 10 / group
    assert found.noise_scale_groups.low < truth < found.noise_scale_groups.high
    assert found.noise_scale_rollouts.value == group * found.noise_scale_groups.value
    naive = noise_scale_from_gradients(rows.reshape(-1, dim)).noise_scale_rollouts
    assert naive.high < found.noise_scale_rollouts.low


def two_batches(rng, measurements, noise_scale, small=8, big=64):
    rows = np.stack([gradients(rng, big, noise_scale) for _ in range(measurements)])
    norms = [(rows[:, :n].mean(axis=1) ** 2).sum(axis=-1) for n in (small, big)]
    return noise_scale_from_batches(small, norms[0], big, norms[1])


def test_two_batches_closed_form():
    found = noise_scale_from_batches(2, [3.0, 3.0], 8, [1.5, 1.5])
    assert found.squared_gradient == pytest.approx((8 * 1.5 - 2 * 3) / 6)
    assert found.noise_trace == pytest.approx(1.5 / (1 / 2 - 1 / 8))
    assert found.noise_scale_rollouts == found.noise_scale_groups
    assert found.noise_scale_rollouts.value == pytest.approx(4.0)


def test_two_batches_in_groups():
    found = noise_scale_from_batches(16, [3.0, 3.1], 64, [1.5, 1.4], num_generations=8)
    plain = noise_scale_from_batches(16, [3.0, 3.1], 64, [1.5, 1.4])
    assert found.noise_scale_rollouts.value == pytest.approx(plain.noise_scale_rollouts.value)
    assert found.noise_scale_groups.value == pytest.approx(plain.noise_scale_rollouts.value / 8)


def test_two_batches_cover_and_are_unbiased():
    rng = np.random.default_rng(11)
    found = [two_batches(rng, 8, 30.0) for _ in range(REPEATS)]
    assert LEAST <= covered([each.noise_scale_rollouts for each in found], 30) <= MOST
    for part, truth in (("noise_trace", 30.0), ("squared_gradient", 1.0)):
        values = np.array([getattr(each, part) for each in found])
        assert abs(values.mean() - truth) < 4 * values.std() / REPEATS**0.5


def test_a_gradient_lost_in_noise_has_no_upper_limit():
    rng = np.random.default_rng(12)
    found = noise_scale_from_gradients(rng.normal(size=(16, 60)))
    assert found.noise_scale_rollouts.high == np.inf
    assert found.message


# importance ratios


def ratios(rng, variances, count):
    """Log-normal ratios of mean 1 whose log has these variances, E[r^2] = exp(variance)."""
    logs = [rng.normal(-v / 2, v**0.5, count) for v in variances]
    return np.repeat(np.arange(len(variances)), count), np.exp(np.concatenate(logs))


def at(found, age):
    return Estimate(*(part.values[age] for part in (found.profile, found.low, found.high)))


def test_moments_and_profile_on_tiny_input():
    moments = moments_from_ratios([2, 0, 0, 2, 5, 5], [0.5, 1.0, 1.0, 1.5, 2.0, 1.0])
    assert moments.ages.tolist() == [0, 2, 5]
    assert moments.values.tolist() == [1.0, 1.25, 2.5]
    found = staleness_profile(moments)
    assert found.interpolated == (1, 3, 4)
    middle = np.exp(np.interp([1, 3, 4], [0, 2, 5], np.log([1, 1.25, 2.5])))
    np.testing.assert_allclose(np.array(found.profile.values)[[1, 3, 4]], middle)
    assert "3 ages not measured" in found.message
    assert found.profile([99]).item() == pytest.approx(2.5)


@pytest.mark.parametrize("way", ["ratios", "ess", "means"])
def test_profile_intervals_cover(way):
    rng = np.random.default_rng(13)
    found = []
    for _ in range(REPEATS):
        ages, r = ratios(rng, [0.0, 0.2], 300)
        squares = r[ages == 1] ** 2
        ess = r[ages == 1].sum() ** 2 / squares.sum() / 300
        error = squares.std(ddof=1) / 300**0.5
        moments = {
            "ratios": moments_from_ratios(ages, r),
            "ess": moments_from_ess([0, 1], [1.0, ess], [300, 300]),
            "means": moments_from_means([0, 1], [1.0, squares.mean()], [0.0, error], [300, 300]),
        }
        found.append(at(staleness_profile(moments[way]), 1))
    assert LEAST <= covered(found, np.exp(0.2)) <= MOST


def test_ess_and_second_moment_agree_for_ratios_of_mean_one():
    r = np.array([0.5, 1.5, 0.75, 1.25])
    ess = r.sum() ** 2 / (r @ r) / 4
    by_ess = moments_from_ess([3], [ess], [4]).values
    np.testing.assert_allclose(by_ess, moments_from_ratios([3] * 4, r).values)


def test_mismatch_at_age_0_is_divided_out_and_reported():
    found = staleness_profile(moments_from_ess([0, 3], [1 / 1.5, 1 / 3], [900, 900]))
    assert found.profile.values[3] == pytest.approx(2.0)
    assert found.fresh.value == 1.5
    assert "sampler and trainer disagree" in found.message


def test_missing_age_0_is_reported():
    found = staleness_profile(moments_from_ess([2], [0.5], [100]))
    assert found.profile.values[0] == 1.0
    assert found.interpolated == (0, 1)
    assert "age 0 was not measured" in found.message


def test_given_standard_errors_are_used():
    moments = moments_from_means([1, 0], [2.0, 1.0], [0.2, 0.0], [10, 10])
    assert moments.errors.tolist() == [0.0, 0.1]


def test_measured_profile_is_a_profile_for_the_theory():
    found = staleness_profile(moments_from_ess([0, 1, 4], [1, 0.9, 0.6], [50] * 3))
    assert isinstance(found.profile, Tabulated)
    assert profile_optimum(found.profile, 5.28).replay_ratio > 1


AGES = np.array([0, 1, 2, 3, 5, 8, 12])


@pytest.mark.parametrize(
    ("truth", "kind"),
    [(OffsetPowerLaw(1.0, 0.15, 0.4), OffsetPowerLaw), (Exponential(1.0, 0.12), Exponential)],
)
def test_fits_recover_their_own_kind_exactly(truth, kind):
    fits = profile_fits(moments_from_means(AGES, truth(AGES), np.zeros(7), np.full(7, 500)))
    assert isinstance(fits.best.profile, kind)
    assert fits.best.residual < 1e-6
    assert fits.best.converged
    np.testing.assert_allclose(fits.best.profile(AGES), truth(AGES), rtol=1e-5)
    for name, found in fits.best.parameters.items():
        assert found.low <= found.value <= found.high
        assert found.value == pytest.approx(getattr(truth, name), rel=1e-4)


@pytest.mark.parametrize(
    "truth", [OffsetPowerLaw(1.0, 0.15, 0.6), Exponential(1.0, 0.12)], ids=["power", "exponential"]
)
def test_fit_parameters_cover(truth):
    rng = np.random.default_rng(14)
    found = []
    for _ in range(REPEATS):
        noisy = truth(AGES) * np.exp(rng.normal(0, 0.05, 7) * (AGES > 0))
        fits = profile_fits(moments_from_means(AGES, noisy, np.zeros(7), np.full(7, 500)))
        fit = fits.exponential if isinstance(truth, Exponential) else fits.offset_power_law
        found.append(fit.parameters)
    for name in found[0]:
        assert LEAST <= covered([each[name] for each in found], getattr(truth, name)) <= MOST


def test_the_larger_counts_decide_the_fit():
    values = np.exp(0.1 * AGES)
    values[-1] = 1.0
    counts = np.array([500] * 6 + [2])
    fit = profile_fits(moments_from_means(AGES, values, np.zeros(7), counts)).exponential
    assert fit.profile.rate == pytest.approx(0.1, rel=0.05)


def test_variance_that_does_not_grow_is_said():
    fits = profile_fits(
        moments_from_means(AGES, np.exp(-0.01 * AGES), np.zeros(7), np.full(7, 500))
    )
    assert fits.exponential.profile.rate == 0
    assert not fits.exponential.converged
    assert "rate is reported as 0" in fits.exponential.message
    assert not fits.offset_power_law.converged
    assert "not identified" in fits.offset_power_law.message
    assert fits.offset_power_law.parameters["alpha"].high == np.inf


# mu


def test_windows_give_the_value_of_the_totals():
    found = gen_train_ratio_from_windows([880, 900, 860], [500, 520, 480], 6, 2)
    assert found.gen_train_ratio.value == gen_train_ratio_from_counts(2640, 1500, 6, 2)
    assert found.gen_train_ratio == found.per_generated
    assert found.keep_rate == 1


def test_dropped_groups_make_a_usable_rollout_dearer():
    found = gen_train_ratio_from_windows([880, 900], [500, 500], 6, 2, rollouts_kept=[400, 350])
    assert found.keep_rate == 0.75
    assert found.gen_train_ratio.value == pytest.approx(found.per_generated.value / 0.75)


def test_log_linear_interval_by_hand():
    found = gen_train_ratio_from_windows([90, 110], [100, 100], 1, 1).gen_train_ratio
    error = np.std([0.9, 1.1], ddof=1) / 2**0.5
    assert found.high / found.value == pytest.approx(np.exp(t_quantile(1) * error))
    assert found.low * found.high == pytest.approx(found.value**2)


def test_mu_intervals_cover():
    rng = np.random.default_rng(15)
    times, windows = [], []
    for _ in range(REPEATS):
        made = rng.integers(50, 80, 12)
        kept = rng.binomial(made, 0.7)
        spent = made * rng.gamma(20, 5.28 / 20, 12)
        times.append(
            gen_train_ratio_from_times(
                spent, made, 60 * rng.gamma(100, 0.01, 12), np.full(12, 60), kept
            )
        )
        windows.append(
            gen_train_ratio_from_windows(rng.poisson(176, 12), rng.poisson(100, 12), 6, 2)
        )
    assert LEAST <= covered([each.gen_train_ratio for each in times], 5.28 / 0.7) <= MOST
    assert LEAST <= covered([each.per_generated for each in times], 5.28) <= MOST
    assert LEAST <= covered([each.gen_train_ratio for each in windows], 5.28) <= MOST


# refusals

MOMENTS = RatioMoments(np.array([0, 1, 2]), np.ones(3), np.zeros(3), np.full(3, 9.0))


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: t_quantile(0), "degrees = 0"),
        (lambda: noise_scale_from_updates([8, 16], [[9], [8]]), r"batch_sizes = \[ 8. 16.\]"),
        (lambda: noise_scale_from_updates([8, 16, 16], [[9], [8], [8]]), "16. 16."),
        (lambda: noise_scale_from_updates([8, 16, 32], [[9], [8]]), "2 designs"),
        (lambda: noise_scale_from_updates([8, 16, 0], [[9], [8], [8]]), "batch_sizes = 0.0"),
        (lambda: noise_scale_from_updates([8, 16, 32], [[9], [8], []]), r"updates = \[\]"),
        (lambda: noise_scale_from_updates([8, 16, 32], [[9], [8], [np.inf]]), "updates = inf"),
        (lambda: long_run_updates(0, 1, 1), "min_updates = 0.0"),
        (lambda: noise_scale_from_gradients(np.ones((3, 5))), r"\(3, 5\)"),
        (lambda: noise_scale_from_gradients(np.ones(5)), r"\(5,\)"),
        (lambda: noise_scale_from_gradients(np.zeros((5, 5))), r"\(5, 5\)"),
        (lambda: noise_scale_from_gradients([[np.nan]] * 4), "gradients = nan"),
        (lambda: noise_scale_from_gradients(np.eye(5), 0), "num_generations = 0"),
        (lambda: noise_scale_from_batches(8, [1, 2], 8, [1, 2]), "batch_small = 8"),
        (lambda: noise_scale_from_batches(8, [1, 2], 60, [1, 2], 8), "batch_big = 60"),
        (lambda: noise_scale_from_batches(8, [1], 64, [1]), r"\(1,\)"),
        (lambda: noise_scale_from_batches(8, [1, 2], 64, [1, 2, 3]), r"\(2,\), \(3,\)"),
        (lambda: noise_scale_from_batches(8, [1, -2], 64, [1, 2]), "-2.0"),
        (lambda: noise_scale_from_batches(8, [0, 0], 64, [0, 0]), "norms of 0"),
        (lambda: moments_from_ratios([0, 0, 1], [1, 1, 1]), "age 1"),
        (lambda: moments_from_ratios([0, 0, 1, 1], [1, 1, 0, 0]), "age 1"),
        (lambda: moments_from_ratios([0, 0.5], [1, 1]), "ages = 0.5"),
        (lambda: moments_from_ratios([0, -1], [1, 1]), "ages = -1"),
        (lambda: moments_from_ratios([0, 0], [1, 1, 1]), r"\(2,\)"),
        (lambda: moments_from_ess([0, 1], [1, 1.2], [9, 9]), "ess_fractions = 1.2"),
        (lambda: moments_from_ess([1, 1], [1, 1], [9, 9]), r"ages = \[1 1\]"),
        (lambda: moments_from_ess([0, 1], [1, 1], [9, 1]), "counts = 1"),
        (lambda: moments_from_means([0, 1], [1, 0], [0, 0], [9, 9]), "second_moments = 0.0"),
        (lambda: moments_from_means([0, 1], [1, 1], [0.1], [9, 9]), r"\(1,\)"),
        (lambda: moments_from_ess([0, 1], [1, 1], [9]), r"\(1,\)"),
        (lambda: staleness_profile(moments_from_ess([0, 7], [1, 0.01], [9, 9])), "age 7"),
        (lambda: profile_fits(MOMENTS), r"ages = \[0 1 2\]"),
        (lambda: gen_train_ratio_from_windows([5], [5], 1, 1), r"\(1,\)"),
        (lambda: gen_train_ratio_from_windows([5, 5], [0, 0], 1, 1), "sum 0"),
        (lambda: gen_train_ratio_from_windows([5, 5.5], [5, 5], 1, 1), "5.5"),
        (lambda: gen_train_ratio_from_windows([5, 5], [5, 5], 0, 1), "num_generators = 0"),
        (lambda: gen_train_ratio_from_windows([5, 5], [5, 5], 1, 1, [6, 5]), r"\[6. 5.\]"),
        (lambda: gen_train_ratio_from_times([5, 5], [5, 5], [1, 1], [5, 5, 5]), r"\(3,\)"),
        (lambda: gen_train_ratio_from_times([5, -5], [5, 5], [1, 1], [5, 5]), "-5.0"),
    ],
)
def test_refused(call, value):
    with pytest.raises(ValueError, match=value) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert "not allowed" in str(caught.value)
