import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory.staleness import (
    Exponential,
    OffsetPowerLaw,
    PowerLaw,
    Tabulated,
    mean_variance,
    power_law_mean_variance,
)

PROFILES = [
    OffsetPowerLaw(0.2, 0.25, 0.5),
    Exponential(1.0, 0.1),
    Exponential(1.0, 0.3, cap=4.0),
    Tabulated((1.0, 3.0, 2.0, 5.0)),
    PowerLaw(0.0),
]


def buffer_ages(size, fresh, updates):
    """Ages in a plain list used as a FIFO buffer, pushed one rollout at a time."""
    held = []
    for update in range(updates):
        held = [*held, *[update] * fresh][-size:]
    return np.array([updates - 1 - made for made in held])


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: type(p).__name__)
@given(st.integers(1, 9), st.integers(0, 40))
def test_mean_variance_is_that_of_a_real_buffer(profile, fresh, extra):
    size = fresh + extra
    ages = buffer_ages(size, fresh, updates=60)
    assert mean_variance(profile, size / fresh) == pytest.approx(profile(ages).mean(), rel=1e-12)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: type(p).__name__)
def test_mean_variance_of_an_array_is_that_of_each_element(profile):
    horizons = np.array([[1.0, 1.5, 2.0], [7.25, 30.0, 31.0]])
    each = [[mean_variance(profile, x) for x in row] for row in horizons]
    np.testing.assert_allclose(mean_variance(profile, horizons), each, rtol=1e-14)


def test_exact_sum_of_a_linear_profile():
    profile = OffsetPowerLaw(0.2, 0.25, 0.5)
    assert mean_variance(profile, 16) == pytest.approx(0.2 + 0.25 * 15 / 2)


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_integral_of_a_power_law_approaches_its_sum(alpha):
    horizon = 100_000
    exact = PowerLaw(alpha, 2.0)(np.arange(horizon)).mean()
    assert power_law_mean_variance(horizon, alpha, 2.0) == pytest.approx(exact, rel=1e-4)


def test_power_law_is_noiseless_when_fresh_and_refused_by_the_exact_average():
    assert PowerLaw(0.1)(0) == 0
    with pytest.raises(ValueError, match=r"PowerLaw.*power_law_mean_variance"):
        mean_variance(PowerLaw(0.1), 4)


def test_table_is_constant_after_its_end_and_may_decrease():
    assert Tabulated((2.0, 1.0))([0, 1, 2, 99]).tolist() == [2.0, 1.0, 1.0, 1.0]
    assert Tabulated(np.array([2, 1])).values == (2.0, 1.0)


def test_variance_beyond_the_largest_float_is_infinite():
    assert np.isinf(mean_variance(Exponential(1.0, 1.0), 5000))
    assert mean_variance(Exponential(1.0, 1.0, cap=1.0), 5000) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (lambda: PowerLaw(-0.1), "-0.1"),
        (lambda: PowerLaw(0.1, 0.0), "0.0"),
        (lambda: OffsetPowerLaw(0.0, 1.0, 0.5), "0.0"),
        (lambda: OffsetPowerLaw(1.0, -1.0, 0.5), "-1.0"),
        (lambda: OffsetPowerLaw(1.0, 1.0, 0.0), "0.0"),
        (lambda: Exponential(1.0, -0.5), "-0.5"),
        (lambda: Exponential(2.0, 0.5, cap=1.0), "1.0"),
        (lambda: Tabulated(()), r"\(\)"),
        (lambda: Tabulated((1.0, float("nan"))), "nan"),
        (lambda: Tabulated((1.0, -2.0)), "-2.0"),
        (lambda: Tabulated(((1.0, 2.0), (1.0, 2.0))), r"\(2, 2\)"),  # type: ignore[arg-type]
        (lambda: Tabulated((1.0,))(0.5), "0.5"),
        (lambda: PowerLaw(0.1)(-1), "-1.0"),
        (lambda: mean_variance(Tabulated((1.0,)), 0.5), "0.5"),
        (lambda: mean_variance(Tabulated((0.0, 1.0)), 2), "Tabulated"),
        (lambda: power_law_mean_variance(0.0, 0.1), "0.0"),
    ],
)
def test_refused(build, value):
    with pytest.raises(ValueError, match=rf"{value}.* not allowed|not allowed.*{value}"):
        build()
