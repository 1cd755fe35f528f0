"""Replay noise in steady state: printed values, limits, and a second route by listing a queue."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from theory.bound import update_variance
from theory.noise import (
    effective_correlation,
    effective_variance,
    large_buffer_correlation,
    long_run_correlation,
    noise_autocovariance,
    stationary_variance,
)
from theory.sampling import (
    oldest_age,
    replay_design,
    sampling_variance,
    sigma_by_age,
    stored_at,
    stored_variance,
    whole_array,
)
from theory.staleness import Exponential, OffsetPowerLaw, PowerLaw, Tabulated

# B, R, N, eta, then variance and rho_eff with replacement and without, to the printed digits.
TABLE = [
    (32, 8, 32, 0.1, 0.00739, 0.00580, 0.623, 0.381),
    (32, 8, 128, 0.1, 0.00568, 0.00528, 0.550, 0.490),
    (32, 8, 1024, 0.1, 0.00255, 0.00250, 0.129, 0.122),
    (32, 8, 128, 0.01, 0.00075, 0.00071, 0.884, 0.824),
    (32, 4, 512, 0.5, 0.01233, 0.01170, 0.015, 0.008),
    (32, 2, 64, 0.02, 0.00443, 0.00428, 0.783, 0.753),
]
PROFILES = [
    OffsetPowerLaw(0.2, 0.25, 0.5),
    Exponential(1.0, 0.05, cap=3.0),
    Tabulated((3.0, 1.0, 2.0, 0.5)),
    Tabulated((1.0,)),
]


@st.composite
def designs(draw, largest_buffer=400):
    fresh = draw(st.integers(1, 20))
    size = draw(st.integers(fresh, largest_buffer))
    batch = draw(st.integers(1, size))
    return replay_design(batch, fresh, size, draw(st.booleans()))


step_curvatures = st.floats(-9, 0.3).map(lambda power: 10**power * 0.999)


def listed(fresh, size, lag):
    """Ages, at the later of two updates, of the rollouts that a queue holds at both."""
    queue = np.arange(-size, 0)
    later = np.arange(-size, lag * fresh)[-size:]
    both = np.intersect1d(queue, later)
    return lag + (-1 - both) // fresh


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_printed_values(row):
    both = replay_design(*row[:3], [True, False])
    assert np.round(stationary_variance(both, row[3], 1.0), 5).tolist() == list(row[4:6])
    assert np.round(effective_correlation(both, row[3]), 3).tolist() == list(row[6:])


@given(designs(), st.sampled_from(PROFILES), st.integers(0, 60))
def test_autocovariance_is_that_of_a_listed_queue(design, profile, lag):
    fresh, size = int(design.rollouts_per_update), int(design.buffer_size)
    ages = listed(fresh, size, lag)
    if lag == 0:
        same = profile(ages).mean()
        batch = int(design.batch_size)
        pairs = batch * (batch - 1) / size if design.replace else 0.0
        expected = same * (batch + pairs) / batch**2
    else:
        products = profile(ages) * profile(ages - lag) if ages.size else np.zeros(1)
        expected = np.sqrt(products).sum() / size**2
    assert noise_autocovariance(design, lag, profile) == pytest.approx(expected, rel=1e-12)


def test_batches_drawn_from_a_queue_have_this_covariance():
    rng = np.random.default_rng(0)
    fresh, size, batch, runs = 3, 8, 4, 40_000
    sigma = np.sqrt(PROFILES[0](np.arange(4)))
    noise = rng.standard_normal((runs, size + 2 * fresh))
    age = np.arange(size) // fresh
    for replace in (False, True):
        means = []
        for update in range(3):
            held = noise[:, update * fresh : update * fresh + size][:, ::-1] * sigma[age]
            if replace:
                taken = rng.integers(0, size, (runs, batch))
            else:
                taken = np.argsort(rng.random((runs, size)), axis=1)[:, :batch]
            means.append(np.take_along_axis(held, taken, axis=1).mean(axis=1))
        design = replay_design(batch, fresh, size, replace)
        for lag in range(3):
            products = means[0] * means[lag]
            error = products.std() / np.sqrt(runs)
            expected = noise_autocovariance(design, lag, PROFILES[0])
            assert abs(products.mean() - expected) < 4 * error


@given(designs(), step_curvatures, st.sampled_from(PROFILES))
def test_effective_variance_is_the_weighted_sum_of_the_autocovariance(design, step, profile):
    lags = np.arange(1, oldest_age(design) + 1)
    weights = (1 - step) ** lags
    terms = weights @ noise_autocovariance(design, lags, profile) if lags.size else 0.0
    expected = noise_autocovariance(design, 0, profile) + 2 * terms
    assert effective_variance(design, step, profile) == pytest.approx(expected, rel=1e-11)


@given(designs(), step_curvatures)
def test_closed_form_is_the_pass_over_ages(design, step):
    one_pass = effective_variance(design, step, Tabulated((1.7,)))
    assert effective_variance(design, step, 1.7) == pytest.approx(one_pass, rel=1e-12)


@pytest.mark.parametrize("step", [1e-9, 9.9e-8, 1.1e-7, 1e-5, 1e-3, 0.3, 1.0, 1.9])
def test_closed_form_keeps_its_digits_at_long_horizons(step):
    lags = np.arange(1.0, 1_000_000)
    powers = np.exp(lags * np.log1p(-step)) if step < 0.5 else (1 - step) ** lags
    expected = 1 / 64 + 2 * (powers * (1_000_000 - lags)).sum() / 1e12
    value = effective_variance(replay_design(64, 1, 1_000_000), step)
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("fresh", "size"), [(8, 128), (7, 128), (2, 4096), (9, 9), (5, 9)])
def test_long_run_limit(fresh, size, replace):
    design = replay_design(9, fresh, size, replace)
    found = effective_correlation(design, 1e-10)
    assert found == pytest.approx(long_run_correlation(design), abs=1e-6)
    if size % fresh == 0:
        once = 1 / 9 if replace else 1.0
        assert found == pytest.approx(1 - (1 + once) * fresh / size, abs=1e-6)
        variance = 1 / 9 + 1 / fresh - 1 / ((9 if replace else 1) * size)
        assert effective_variance(design, 1e-10) == pytest.approx(variance, rel=1e-6)


def test_reuse_of_one_batch_has_the_noise_of_its_new_rollouts_in_a_long_run():
    fresh = np.array([1, 2, 4, 8, 16, 32, 64])
    found = effective_variance(replay_design(64, fresh, 64), 1e-11)
    np.testing.assert_allclose(found, 1 / fresh, rtol=1e-9)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("step", [0.05, 0.5, 1.0, 1.7])
def test_large_buffer_limit(step, replace):
    design = replay_design(16, 2, 20_000_000, replace)
    found = effective_correlation(design, step)
    once = 1 / 16 if replace else 1.0
    expected = (2 * (1 - step) / step - once) / 1e7
    assert large_buffer_correlation(design, step) == pytest.approx(expected, rel=1e-12)
    assert found * 1e7 == pytest.approx(expected * 1e7, rel=1e-6, abs=1e-4)
    assert found == pytest.approx(expected, abs=1e-6)


@given(designs(), st.sampled_from(PROFILES))
def test_long_run_with_staleness(design, profile):
    fresh, size = design.rollouts_per_update, design.buffer_size
    whole = design._replace(buffer_size=np.floor(size / fresh) * fresh)
    assume(bool(whole.replace) or whole.batch_size <= whole.buffer_size)
    sigma = sigma_by_age(profile, oldest_age(whole))
    mean, square, size = sigma.mean(), (sigma**2).mean(), whole.buffer_size
    first = (1 - 1 / size) / whole.batch_size if whole.replace else 1 / whole.batch_size - 1 / size
    expected = square * first + mean**2 / fresh
    assert effective_variance(whole, 1e-11, profile) == pytest.approx(expected, rel=1e-7)


@given(designs(), step_curvatures, st.sampled_from(PROFILES))
def test_on_policy_and_order_of_the_draws(design, step, profile):
    size = int(design.buffer_size)
    once = replay_design(size, size, size)
    assert effective_variance(once, step, 2.0) == pytest.approx(2.0 / size)
    either = [design._replace(replace=np.array(replace)) for replace in (False, True)]
    without, with_ = (effective_variance(one, step, profile) for one in either)
    assert without <= with_ * (1 + 1e-12)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_bound_with_this_correlation_has_this_noise(row):
    design = replay_design(*row[:3], True)
    rho = effective_correlation(design, row[3], Tabulated((1.0,)))
    bound = update_variance(Tabulated((1.0,)), *row[:3], rho)
    assert bound == pytest.approx(effective_variance(design, row[3]))


def test_shapes_broadcast():
    grid = replay_design([[8], [16]], [1, 2, 4], 64)
    assert np.shape(effective_variance(grid, 0.1)) == (2, 3)
    assert np.shape(effective_variance(grid, np.full((4, 1, 1), 0.1), PROFILES[0])) == (4, 2, 3)
    one = replay_design(8, 2, 64)
    steps = np.array([1e-3, 0.1, 1.5])
    together = np.asarray(effective_variance(one, steps, PROFILES[0]))
    assert together.tolist() == [effective_variance(one, step, PROFILES[0]) for step in steps]
    assert sum(stored_at(grid, age) for age in range(64)).tolist() == [[64.0] * 3] * 2
    assert np.shape(stored_variance(grid)) == np.shape(sampling_variance(grid)) == (2, 3)


BAD = [
    (lambda: replay_design(8, 4, 3), "rollouts_per_update = 4"),
    (lambda: replay_design(8, 4, 6), "batch_size = 8"),
    (lambda: replay_design(8, 0, 6, True), "rollouts_per_update = 0"),
    (lambda: replay_design(8.0, 4, 8), "batch_size = 8.0"),
    (lambda: replay_design(8, 4, 8, 1), "replace = 1"),
    (lambda: replay_design(8, 1, 10_000_001), "buffer_size = 1e+07"),
    (lambda: whole_array("lag", "3", low=0), "lag = '3'"),
    (lambda: noise_autocovariance(replay_design(8, 4, 8), -1), "lag = -1"),
    (lambda: effective_variance(replay_design(8, 4, 8), 2.0), "step_curvature = 2"),
    (lambda: effective_variance(replay_design(8, 4, 8), 0.0), "step_curvature = 0"),
    (lambda: effective_variance(replay_design(8, 4, 8), 0.1, 0.0), "profile = 0.0"),
    (lambda: effective_variance(replay_design(8, 4, 8), 0.1, PowerLaw(0.1)), "PowerLaw"),
    (lambda: stationary_variance(replay_design(8, 4, 8), 0.5, 4.0), "step_curvature = 2"),
    (lambda: stationary_variance(replay_design(8, 4, 8), 0.5, -4.0), "curvature = -4"),
    (lambda: stationary_variance(replay_design(8, 4, 8), float("nan"), 1.0), "learning_rate"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_values_are_named(call, text):
    with pytest.raises(ValueError, match=r"is not allowed|are not allowed") as error:
        call()
    assert text in str(error.value)
