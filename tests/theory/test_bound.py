import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from theory.bound import (
    bound_objective,
    gradient_bound,
    optimised_bound,
    step_size_limit,
    update_variance,
)
from theory.cost import update_cost
from theory.staleness import OffsetPowerLaw, PowerLaw, Tabulated, mean_variance

PROFILE = OffsetPowerLaw(1.0, 0.1, 0.5)
counts = st.integers(1, 200)


@given(counts, counts, st.integers(0, 400), st.floats(0, 1), st.floats(0.1, 50))
def test_objective_is_cost_times_variance(batch, fresh, extra, rho, mu):
    size = fresh + extra
    variance = update_variance(PROFILE, batch, fresh, size, rho)
    objective = bound_objective(size / fresh, batch / fresh, mu, profile=PROFILE, rho=rho)
    assert mu * objective == pytest.approx(variance * update_cost(batch, fresh, mu), rel=1e-12)


def test_objective_does_not_change_when_all_counts_double():
    once = update_variance(PROFILE, 60, 30, 90, 0.5) * update_cost(60, 30, 2.0)
    twice = update_variance(PROFILE, 120, 60, 180, 0.5) * update_cost(120, 60, 2.0)
    assert once == pytest.approx(twice)


@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
def test_baseline_is_two_plus_rho_times_the_variance_of_unrepeated_rollouts(rho):
    once = mean_variance(PROFILE, 1.0) / 60
    assert update_variance(PROFILE, 60, 60, 60, rho) == pytest.approx((2 + rho) * once)


def test_optimised_bound_is_the_least_gradient_bound():
    batch, fresh, size, mu, budget = 60, 30, 120, 5.0, 1e9
    variance = update_variance(PROFILE, batch, fresh, size)
    cost = update_cost(batch, fresh, mu)
    updates = round(budget / cost)

    def bound(log_eta):
        return gradient_bound(
            3.0,
            float(np.exp(log_eta)),
            updates,
            variance,
            smoothness=2.0,
            bias_rate=0.0,
            rollouts_per_update=fresh,
            buffer_size=size,
        )

    best = minimize_scalar(bound, bounds=(-14, np.log(0.25)), method="bounded")
    expected = optimised_bound(3.0, 2.0, cost * updates, cost, variance)
    assert best.fun == pytest.approx(expected, rel=1e-6)


def test_step_size_limit_has_two_parts():
    assert step_size_limit(2.0, 0.0, 30, 120) == 0.25
    assert step_size_limit(2.0, 1.0, 30, 120) == pytest.approx(1 / (8 * np.sqrt(2)))


def test_step_size_above_its_limit_is_refused():
    with pytest.raises(ValueError, match=r"learning_rate = 0.3 .* <= 0.25"):
        gradient_bound(
            1.0, 0.3, 10, 0.1, smoothness=2, bias_rate=0, rollouts_per_update=1, buffer_size=1
        )


def test_objective_broadcasts_over_horizons_and_ratios():
    horizons, uses = np.arange(1.0, 6)[:, None], np.array([1.0, 2.0, 4.0])
    for profile in (PROFILE, PowerLaw(0.1)):
        table = np.asarray(bound_objective(horizons, uses, 5.28, profile=profile))
        assert table.shape == (5, 3)
        assert table[2, 1] == bound_objective(3.0, 2.0, 5.28, profile=profile)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"staleness_horizon": 0.0}, "0.0"),
        ({"staleness_horizon": 0.5}, "0.5"),
        ({"replay_ratio": [1.0, np.nan]}, "nan"),
        ({"gen_train_ratio": np.inf}, "inf"),
        ({"rho": 1.5}, "1.5"),
    ],
)
def test_objective_refuses(change, value):
    arguments = {"staleness_horizon": 2.0, "replay_ratio": 2.0, "gen_train_ratio": 5.0, "rho": 1.0}
    with pytest.raises(ValueError, match=rf"= {value} is not allowed"):
        bound_objective(**(arguments | change), profile=Tabulated((1.0, 2.0)))
