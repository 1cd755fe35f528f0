import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from theory import optimal_replay_ratio
from theory.bound import bound_objective
from theory.optimum import power_law_optimum, profile_optimum
from theory.reuse import reuse_cost_ratio, reuse_replay_ratio
from theory.staleness import Exponential, OffsetPowerLaw, PowerLaw, Tabulated

# Closed form of arXiv 2604.08706 at the given mu, rho, alpha: x*, y*, J*/J(1,1), each confirmed by
# brute-force minimisation of P8.
GOLDEN = [
    (1, 1, 0.1, 1.777778, 0.8, 0.9466),
    (1, 0.1, 0.1, 6.666667, 2.0, 0.7829),
    (2, 0.1, 0.2, 2.5, 2.0, 0.9160),
    (5.28, 1, 0.1, 2.647583, 1.957669, 0.8815),
    (5.28, 0.1, 0.1, 14.318992, 5.575713, 0.4895),
    (5.28, 0.1, 0.2, 4.265221, 3.973274, 0.7347),
    (5.28, 0, 0.1, 84.48, 21.12, 0.3021),
    (6.84, 1, 0.1, 2.765953, 2.241367, 0.8555),
    (10, 0.1, 0.2, 5.625, 6.0, 0.6143),
    (50, 1, 0.2, 1.261180, 5.280876, 0.7859),
    (2, 0.5, 0.15, 1.921569, 1.4, 0.9566),
]
designs = st.tuples(st.floats(0.1, 100), st.floats(0, 1), st.floats(0.02, 0.45))
PROFILES = [
    OffsetPowerLaw(1.0, 0.1, 0.5),
    OffsetPowerLaw(1.0, 1e-3, 0.7),
    Exponential(1.0, 0.05),
    Tabulated((1.0, 1.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 40.0)),
]


def objective(x, y, mu, rho, alpha):
    return x ** (2 * alpha) * (1 + y / mu) * (1 / y + 1 / x + rho)


@pytest.mark.parametrize(("mu", "rho", "alpha", "x", "y", "ratio"), GOLDEN)
def test_golden_values(mu, rho, alpha, x, y, ratio):
    found = power_law_optimum(mu, rho, alpha)
    assert found.converged
    assert found.staleness_horizon == pytest.approx(x, abs=5e-7)
    assert found.replay_ratio == pytest.approx(y, abs=5e-7)
    assert found.cost_ratio == pytest.approx(ratio, abs=5e-5)


@settings(max_examples=40)
@given(designs)
def test_closed_form_against_brute_force(design):
    mu, rho, alpha = design
    found = power_law_optimum(mu, rho, alpha)
    result = minimize(
        lambda logs: np.log(objective(*np.exp(logs), mu, rho, alpha)),
        [0.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-16, "maxiter": 4000, "maxfev": 4000},
    )
    least = float(np.exp(result.fun)) / objective(1, 1, mu, rho, alpha)
    assert found.cost_ratio == pytest.approx(least, rel=1e-12)
    x, y = np.exp(result.x)
    assert found.staleness_horizon == pytest.approx(x, rel=1e-5)
    assert found.replay_ratio == pytest.approx(y, rel=1e-5)


@settings(max_examples=60)
@given(designs)
def test_closed_form_is_the_root_of_the_gradient(design):
    mu, rho, alpha = design
    found = power_law_optimum(mu, rho, alpha)

    def horizon(y):
        return (1 / (2 * mpmath.mpf(alpha)) - 1) / (1 / y + rho)

    def gradient(log_y):
        y = mpmath.exp(log_y)
        return y / (mu + y) - (1 / y) / (1 / y + 1 / horizon(y) + rho)

    with mpmath.workdps(30):
        log_y = mpmath.findroot(gradient, (-20, 20), solver="anderson", tol=1e-24, maxsteps=500)
        y = mpmath.exp(log_y)
        assert found.replay_ratio == pytest.approx(float(y), rel=1e-9)
        assert found.staleness_horizon == pytest.approx(float(horizon(y)), rel=1e-9)


@given(designs)
def test_cost_ratio_is_the_objective_at_the_optimum(design):
    mu, rho, alpha = design
    found = power_law_optimum(mu, rho, alpha)
    profile = PowerLaw(alpha)
    best = bound_objective(
        found.staleness_horizon, found.replay_ratio, mu, profile=profile, rho=rho
    )
    one = bound_objective(1, 1, mu, profile=profile, rho=rho)
    assert found.cost_ratio == pytest.approx(best / one, rel=1e-12)


@given(st.floats(0.1, 100), st.floats(0.02, 0.45))
def test_limit_of_no_correlation(mu, alpha):
    limit = power_law_optimum(mu, 0, alpha)
    assert limit.replay_ratio == pytest.approx(mu * (1 - 2 * alpha) / (2 * alpha), rel=1e-12)
    near = power_law_optimum(mu, 1e-14, alpha)
    assert near.replay_ratio == pytest.approx(limit.replay_ratio, rel=1e-9)
    assert near.staleness_horizon == pytest.approx(limit.staleness_horizon, rel=1e-9)


@given(st.floats(1, 100), st.floats(0.02, 0.45))
def test_mu_rho_equal_to_one(mu, alpha):
    found = power_law_optimum(mu, 1 / mu, alpha)
    assert found.replay_ratio == pytest.approx(mu * (1 - 2 * alpha), rel=1e-12)
    beside = power_law_optimum(mu * (1 + 1e-12), 1 / mu, alpha)
    assert found.staleness_horizon == pytest.approx(beside.staleness_horizon, rel=1e-9)


@given(st.floats(0.1, 100), st.floats(0.01, 1))
def test_limit_of_no_staleness(mu, rho):
    limit = power_law_optimum(mu, rho, 0)
    assert limit.replay_ratio == pytest.approx(np.sqrt(mu / rho))
    assert limit.staleness_horizon == np.inf
    assert "infinite" in limit.message
    for tiny in (1e-12, 1e-310):
        near = power_law_optimum(mu, rho, tiny)
        assert near.replay_ratio == pytest.approx(limit.replay_ratio, rel=1e-8)
        assert near.cost_ratio == pytest.approx(limit.cost_ratio, rel=1e-8)


@given(st.floats(0.1, 100), st.floats(0, 1), st.floats(0.5, 5))
def test_no_interior_optimum(mu, rho, alpha):
    found = power_law_optimum(mu, rho, alpha)
    assert (found.replay_ratio, found.staleness_horizon, found.cost_ratio) == (1.0, 1.0, 1.0)
    assert not found.converged
    assert "on-policy" in found.message


def test_a_million_designs_at_once_agree_with_single_ones():
    random = np.random.default_rng(0)
    mu, rho, alpha = random.uniform([1, 0, 0], [30, 1, 0.6], (10**6, 3)).T
    start = time.perf_counter()
    found = power_law_optimum(mu, rho, alpha)
    assert time.perf_counter() - start < 2
    for field in (found.replay_ratio, found.staleness_horizon, found.cost_ratio):
        assert not np.isnan(field).any()
    for i in range(0, 10**6, 99_991):
        single = power_law_optimum(mu[i], rho[i], alpha[i])
        assert single.replay_ratio == np.asarray(found.replay_ratio)[i]
        assert single.staleness_horizon == np.asarray(found.staleness_horizon)[i]


@pytest.mark.parametrize("profile", PROFILES, ids=str)
@pytest.mark.parametrize("rho", [0.05, 1.0])
@pytest.mark.parametrize("mu", [0.5, 5.28, 50])
def test_profile_optimum_against_a_dense_grid(profile, mu, rho):
    found = profile_optimum(profile, mu, rho)
    if not found.converged:
        assert "longer horizon" in found.message
        return
    limit = 3 * found.staleness_horizon + 40
    horizons = np.sort(np.append(np.linspace(1, limit, 4001), np.arange(1, limit)))[:, None]
    uses = found.replay_ratio * np.append(np.geomspace(0.2, 5, 80), 1.0)
    values = np.asarray(bound_objective(horizons, uses, mu, profile=profile, rho=rho))
    best = np.unravel_index(values.argmin(), values.shape)
    one = bound_objective(1, 1, mu, profile=profile, rho=rho)
    assert found.cost_ratio == pytest.approx(values.min() / one, rel=1e-12)
    assert found.staleness_horizon == horizons[best[0], 0]
    assert found.replay_ratio == uses[best[1]]


def test_the_search_crosses_a_hill_of_noise():
    profile, mu, rho = PROFILES[3], 50, 0.05
    uses = np.geomspace(1, 50, 200)
    first, hill, last = (
        np.min(bound_objective(float(x), uses, mu, profile=profile, rho=rho)) for x in (2, 4, 13)
    )
    assert last < first < hill
    assert profile_optimum(profile, mu, rho).staleness_horizon == 13


def test_constant_noise_has_no_finite_best_horizon():
    found = profile_optimum(Tabulated((1.0,)), 5.28, 1.0, longest_horizon=100)
    assert found.staleness_horizon == 100
    assert not found.converged
    assert "longer" in found.message


def test_default_recommendation():
    assert optimal_replay_ratio(5.28, 1) == pytest.approx(1.957669, abs=1e-6)
    assert optimal_replay_ratio(10.56, 2) == optimal_replay_ratio(5.28, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"alpha": 0.5}, 1.0),
        ({"alpha": 0.4, "rho": 1.0}, 1.0),
        ({"alpha": 0.0}, 5.28**0.5),
        ({"noise_to_batch": 0.33}, 4.0),
        ({"noise_to_batch": 100.0}, 1.0),
    ],
)
def test_recommendation_at_the_edges(options, expected):
    assert optimal_replay_ratio(5.28, 1, **options) == pytest.approx(expected)


def test_recommendation_below_one_is_the_formula():
    assert optimal_replay_ratio(1, 1) == pytest.approx(0.8)


@given(st.floats(0.1, 100), st.floats(0.01, 30))
def test_reuse_law_optimum(mu, beta):
    uses = reuse_replay_ratio(mu, beta)
    grid = np.geomspace(1, 200, 500)
    least = reuse_cost_ratio(uses, mu, beta)
    assert least <= np.min(reuse_cost_ratio(grid, mu, beta)) * (1 + 1e-12)
    if mu > beta:
        value = (1 + np.sqrt(mu * beta)) ** 2 / ((1 + mu) * (1 + beta))
        assert least == pytest.approx(value, rel=1e-12)
    else:
        assert (uses, least) == (1.0, pytest.approx(1.0))
