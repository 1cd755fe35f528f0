"""The reuse law against numerical minima and whole designs; the step limit against a matrix."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from theory import optimal_replay_ratio
from theory.long_run import long_run_cost
from theory.reuse import (
    large_buffer_cost_ratio,
    large_buffer_replay_ratio,
    reuse_cost_ratio,
    reuse_pays,
    reuse_replay_ratio,
    uncorrected_step_limit,
)
from theory.sampling import replay_design

ratios = st.floats(-2, 2).map(lambda power: 10.0**power)


def least(cost_ratio, mu, beta):
    """Minimum over y >= 1 by a search that knows no formula: (y, cost ratio)."""
    found = minimize_scalar(
        lambda log_uses: cost_ratio(math.exp(log_uses), mu, beta),
        bounds=(0.0, math.log(1e5)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return math.exp(found.x), float(found.fun)


def test_printed_values():
    """At beta 0.07 and mu 5.28, by hand: sqrt(5.28/0.07) and (1 + sqrt(0.3696))^2/(6.28 1.07)."""
    uses = reuse_replay_ratio(5.28, 0.07)
    assert uses == pytest.approx(8.685, abs=1e-3)
    assert reuse_cost_ratio(uses, 5.28, 0.07) == pytest.approx(0.3848, abs=1e-4)


@given(ratios, ratios)
def test_value_at_the_optimum(mu, beta):
    assume(mu >= beta)
    value = (1 + math.sqrt(mu * beta)) ** 2 / ((1 + mu) * (1 + beta))
    assert reuse_cost_ratio(reuse_replay_ratio(mu, beta), mu, beta) == pytest.approx(value)


@given(ratios, ratios)
def test_replay_ratio_is_the_numerical_minimum(mu, beta):
    uses, cost = least(reuse_cost_ratio, mu, beta)
    assert reuse_replay_ratio(mu, beta) == pytest.approx(uses, rel=1e-5)
    assert reuse_cost_ratio(reuse_replay_ratio(mu, beta), mu, beta) <= cost * (1 + 1e-12)
    assert optimal_replay_ratio(mu, 1, noise_to_batch=beta) == reuse_replay_ratio(mu, beta)


@given(ratios, ratios)
def test_large_buffer_replay_ratio_is_the_numerical_minimum(mu, beta):
    uses, cost = least(large_buffer_cost_ratio, mu, beta)
    found = large_buffer_replay_ratio(mu, beta)
    assert found == pytest.approx(uses, rel=1e-5)
    assert large_buffer_cost_ratio(found, mu, beta) <= cost * (1 + 1e-12)


@given(ratios)
def test_verdict_flips_where_mu_is_beta(beta):
    assert reuse_pays(math.nextafter(beta, np.inf), beta)
    assert not reuse_pays(beta, beta)
    assert not reuse_pays(math.nextafter(beta, 0), beta)


@given(ratios, ratios)
def test_verdict_is_that_of_the_numerical_minimum(mu, beta):
    assume(abs(mu / beta - 1) > 1e-3)
    assert (least(reuse_cost_ratio, mu, beta)[1] < 1 - 1e-9) == reuse_pays(mu, beta)


@given(ratios, ratios)
def test_large_buffer_pays_above_its_break_even(mu, beta):
    even = 4 * beta * (1 + beta)
    assume(abs(mu / even - 1) > 1e-4)
    value = large_buffer_cost_ratio(large_buffer_replay_ratio(mu, beta), mu, beta)
    assert (value < 1) == (mu > even)


@given(ratios)
def test_large_buffer_costs_as_much_as_on_policy_at_its_break_even(beta):
    mu = 4 * beta * (1 + beta)
    uses = large_buffer_replay_ratio(mu, beta)
    assert large_buffer_cost_ratio(uses, mu, beta) == pytest.approx(1, abs=1e-12)


@given(st.floats(1, 1e3), ratios, ratios)
def test_large_buffer_is_never_below_one_batch(uses, mu, beta):
    assert large_buffer_cost_ratio(uses, mu, beta) > reuse_cost_ratio(uses, mu, beta)


@pytest.mark.parametrize("fresh", [1, 4, 16, 64])
@pytest.mark.parametrize(("mu", "beta"), [(0.5, 2.0), (5.28, 0.07), (20.0, 0.33)])
def test_ratios_are_those_of_whole_designs(fresh, mu, beta):
    """One batch stored, and so many that 1/N no longer counts."""
    stored = replay_design(64, [64, fresh, fresh], [64, 64, 64 * 10**5])
    once, batch, large = np.asarray(long_run_cost(stored, mu, 64 * beta))
    assert batch / once == pytest.approx(reuse_cost_ratio(64 / fresh, mu, beta), rel=1e-12)
    assert large / once == pytest.approx(large_buffer_cost_ratio(64 / fresh, mu, beta), rel=1e-4)


def delayed_step(horizon, step):
    """Matrix of theta' = theta - (step/x) (sum of the last x thetas), newest theta first."""
    matrix = np.eye(horizon, k=-1)
    matrix[0] = -step / horizon
    matrix[0, 0] += 1
    return matrix


def spectral_radius(horizon, step):
    return np.abs(np.linalg.eigvals(delayed_step(horizon, step))).max()


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 7, 12, 25, 60])
def test_uncorrected_steps_diverge_just_above_the_limit(horizon):
    limit = uncorrected_step_limit(horizon)
    assert spectral_radius(horizon, limit * (1 - 1e-6)) < 1
    assert spectral_radius(horizon, limit) == pytest.approx(1, abs=1e-9)
    assert spectral_radius(horizon, limit * (1 + 1e-6)) > 1


@given(st.integers(1, 40), st.floats(1e-3, 0.999))
def test_uncorrected_steps_below_the_limit_converge(horizon, share):
    assert spectral_radius(horizon, share * uncorrected_step_limit(horizon)) < 1


def test_uncorrected_step_limit_for_short_and_long_horizons():
    assert uncorrected_step_limit(1) == pytest.approx(2, rel=1e-15)
    for horizon in (100, 10_000):
        nearly = math.pi**2 / (2 * horizon)
        assert uncorrected_step_limit(horizon) == pytest.approx(nearly, rel=1 / horizon**2)
    every = [uncorrected_step_limit(horizon) for horizon in range(2, 60)]
    assert every == sorted(every, reverse=True)


BAD = [
    (lambda: reuse_replay_ratio(0, 1.0), "gen_train_ratio = 0"),
    (lambda: reuse_replay_ratio(5.28, math.nan), "noise_to_batch = nan"),
    (lambda: reuse_cost_ratio(0.5, 5.28, 1.0), "replay_ratio = 0.5"),
    (lambda: reuse_cost_ratio([2.0, "x"], 5.28, 1.0), "replay_ratio = [2.0, 'x']"),
    (lambda: reuse_pays(-1.0, 1.0), "gen_train_ratio = -1"),
    (lambda: reuse_pays(5.28, [1.0, -2.0]), "noise_to_batch = -2"),
    (lambda: large_buffer_replay_ratio(5.28, 0), "noise_to_batch = 0"),
    (lambda: large_buffer_cost_ratio(2.0, math.inf, 1.0), "gen_train_ratio = inf"),
    (lambda: uncorrected_step_limit(0), "staleness_horizon = 0"),
    (lambda: uncorrected_step_limit(2.0), "staleness_horizon = 2.0"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_values_are_named(call, text):
    with pytest.raises(ValueError, match="is not allowed") as error:
        call()
    assert text in str(error.value)
    assert "\n" not in str(error.value)
