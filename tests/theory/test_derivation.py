"""Every step is proved, and every result is what the NumPy line beside it evaluates."""

import re

import numpy as np
import pytest
import sympy

from theory.__main__ import main
from theory.bound import bound_objective
from theory.derivation import MAKERS, as_latex, as_text, derivations
from theory.derivation.proof import Derivation, Step, above, equation, is_proved
from theory.long_run import long_run_variance
from theory.noise import (
    effective_correlation,
    effective_variance,
    long_run_correlation,
)
from theory.optimum import power_law_optimum, profile_optimum
from theory.reuse import (
    large_buffer_cost_ratio,
    large_buffer_replay_ratio,
    reuse_cost_ratio,
    reuse_pays,
    reuse_replay_ratio,
)
from theory.sampling import replay_design
from theory.staleness import OffsetPowerLaw, PowerLaw, mean_variance, power_law_mean_variance

ALL = derivations()
STEPS = [(f"{d.id}.{n}", step) for d in ALL for n, step in enumerate(d.steps, start=1)]
SIZES = [(32, 8, 64), (16, 4, 16), (64, 16, 128), (32, 2, 64)]


def value(formula, name, **numbers):
    expression = MAKERS[formula]().results[name]
    exact = {s: sympy.Rational(str(numbers[s.name])) for s in expression.free_symbols}
    return float(sympy.N(expression.subs(exact), 17))


@pytest.mark.parametrize("step", [s for _, s in STEPS], ids=[name for name, _ in STEPS])
def test_step_is_proved(step):
    assert is_proved(step)


@pytest.mark.parametrize("step", [s for _, s in STEPS], ids=[name for name, _ in STEPS])
def test_a_slip_in_a_step_is_not_proved(step):
    wrong = equation(step.claim.lhs, step.claim.rhs + sympy.Rational(1, 100))
    if isinstance(step.claim, sympy.StrictGreaterThan):
        wrong = above(step.claim.rhs, step.claim.lhs)
    assert not is_proved(Step(step.statement, wrong, step.at))


@pytest.mark.parametrize("step", [s for _, s in STEPS], ids=[name for name, _ in STEPS])
def test_claims_say_something(step):
    """No claim collapses to one thing on both sides before it is worked out."""
    assert step.claim.lhs != step.claim.rhs
    assert step.claim.lhs.free_symbols


@pytest.mark.parametrize("step", [s for _, s in STEPS if not s.at])
def test_claims_hold_at_numbers(step):
    """A second route: both sides as numbers, without simplify."""
    numbers = {"alpha": 0.2, "beta": 0.7, "mu": 5.3, "rho": 0.4, "tau": 3.0, "q": 0.9, "x": 6}
    symbols = step.claim.free_symbols
    named = {s: sympy.Rational(str(numbers.get(s.name, 2 + len(s.name)))) for s in symbols}
    left, right = (
        sympy.N(side.doit().subs(named).doit()) for side in (step.claim.lhs, step.claim.rhs)
    )
    if isinstance(step.claim, sympy.StrictGreaterThan):
        assert left > right
    else:
        mean = sympy.Function("sbar2", positive=True)
        left, right = (sympy.N(side.replace(mean, lambda a: 1 + a)) for side in (left, right))
        assert float(left) == pytest.approx(float(right), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mu", [1.0, 5.28, 20.0])
@pytest.mark.parametrize("rho", [0.1, 1.0])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.45])
def test_p10_is_power_law_optimum(mu, rho, alpha):
    optimum = power_law_optimum(mu, rho, alpha)
    uses = value("P10", "replay_ratio", mu=mu, rho=rho, alpha=alpha)
    horizon = value("P10", "staleness_horizon", mu=mu, alpha=alpha, y=uses)
    ratio = value("P10", "cost_ratio", mu=mu, rho=rho, alpha=alpha, x=horizon, y=uses)
    assert optimum.replay_ratio == pytest.approx(uses, rel=1e-13)
    assert optimum.staleness_horizon == pytest.approx(horizon, rel=1e-13)
    assert optimum.cost_ratio == pytest.approx(ratio, rel=1e-13)
    printed = value("P10", "printed_replay_ratio", mu=mu, rho=rho, alpha=alpha)
    assert printed == pytest.approx(uses, rel=1e-10)


def test_p10_average_is_power_law_mean_variance():
    derived = value("P10", "mean_variance", x=7.5, tau=3.0, alpha=0.2)
    assert power_law_mean_variance(7.5, 0.2, 3.0) == pytest.approx(derived, rel=1e-14)


def test_p8_is_bound_objective_and_p9_its_least_value():
    mu, rho, x, y, profile = 5.28, 0.3, 6.0, 2.5, OffsetPowerLaw(1.0, 0.2, 0.5)
    numbers = {"mu": mu, "rho": rho, "x": x, "y": y}
    average = mean_variance(profile, x)
    for name, uses in (("P8", y), ("P9", value("P9", "replay_ratio", mu=mu, rho=rho, x=x))):
        expression = MAKERS[name]().results["objective"]
        derived = expression.subs({s: numbers[s.name] for s in expression.free_symbols})
        derived = float(derived.replace(sympy.Function("sbar2", positive=True), lambda _: average))
        assert bound_objective(x, uses, mu, profile=profile, rho=rho) == pytest.approx(derived)


def test_p9_replay_ratio_is_that_of_the_search():
    optimum = profile_optimum(OffsetPowerLaw(1.0, 0.1, 0.5), 5.28)
    derived = value("P9", "replay_ratio", mu=5.28, rho=1.0, x=optimum.staleness_horizon)
    assert optimum.replay_ratio == pytest.approx(derived, rel=1e-14)


def test_p9_kernel_is_least_at_the_optimum():
    x = power_law_optimum(5.28, 0.1, 0.2).staleness_horizon
    here, *beside = (
        value("P9", "kernel", mu=5.28, rho=0.1, alpha=0.2, x=x * f) for f in (1, 0.9, 1.1)
    )
    assert here < min(beside)
    least = bound_objective(x, 3.973274, 5.28, profile=PowerLaw(0.2), rho=0.1)
    assert here**2 / 1.4 == pytest.approx(least, rel=1e-10)


def summed(q, x, sigma):
    return sum(q**k * sum(sigma(a) * sigma(a - k) for a in range(k, x)) for k in range(1, x))


@pytest.mark.parametrize("q", [0.3, 0.9, 0.999, -0.5])
@pytest.mark.parametrize("x", [1, 2, 7, 40])
def test_q4_closed_sums_are_direct_sums(q, x):
    constant = value("Q4", "constant_sum", q=q, x=x)
    assert constant == pytest.approx(summed(q, x, lambda _: 1) / x, rel=1e-9, abs=1e-12)
    linear = value("Q4", "linear_sum", q=q, x=x)
    assert linear == pytest.approx(summed(q, x, lambda age: age), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(("batch", "fresh", "size"), SIZES)
@pytest.mark.parametrize("step", [0.01, 0.1, 0.5, 1.4])
@pytest.mark.parametrize("way", ["with", "without"])
def test_q4_and_q5_are_the_noise_theory(batch, fresh, size, step, way):
    design = replay_design(batch, fresh, size, replace=way == "with")
    numbers = {"q": 1 - step, "x": size // fresh, "B": batch, "N": size}
    variance = value("Q4", f"{way}_replacement", **numbers)
    assert effective_variance(design, step) == pytest.approx(variance, rel=1e-9)
    rho = value("Q5", way, **numbers)
    assert effective_correlation(design, step) == pytest.approx(rho, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("batch", "fresh", "size"), SIZES)
@pytest.mark.parametrize("way", ["with", "without"])
def test_q5_and_l5_are_the_long_run(batch, fresh, size, way):
    design = replay_design(batch, fresh, size, replace=way == "with")
    x = size // fresh
    near = value("Q5", way, q=1 - 1e-6, x=x, B=batch)
    assert long_run_correlation(design) == pytest.approx(near, abs=1e-4)
    profile = OffsetPowerLaw(1.0, 1.25, 0.5)
    sigma = np.sqrt(profile(np.arange(x)))
    moments = {"sbar1": sigma.mean(), "sbar2": (sigma**2).mean()}
    derived = value("L5", f"{way}_replacement", B=batch, N=size, x=x, **moments)
    assert effective_variance(design, 1e-7, profile) == pytest.approx(derived, rel=1e-4)
    assert long_run_variance(design, profile) == pytest.approx(derived, rel=1e-12)


@pytest.mark.parametrize("mu", [0.5, 5.28, 20.0])
@pytest.mark.parametrize("beta", [0.05, 0.33, 4.0])
def test_l1_and_l2_are_the_reuse_law(mu, beta):
    uses = value("L1", "replay_ratio", mu=mu, beta=beta)
    assert reuse_replay_ratio(mu, beta) == pytest.approx(max(1.0, uses), rel=1e-14)
    for y in (1.0, 1.01, 2.0, 16.0):
        derived = value("L1", "cost_ratio", mu=mu, beta=beta, y=y)
        assert reuse_cost_ratio(y, mu, beta) == pytest.approx(derived, rel=1e-14)
        gain = value("L2", "gain", mu=mu, beta=beta, y=y)
        assert (gain < -1e-12) == (derived < 1 - 1e-12)
    if uses > 1:
        least = value("L1", "least_cost_ratio", mu=mu, beta=beta)
        assert reuse_cost_ratio(uses, mu, beta) == pytest.approx(least, rel=1e-14)
    assert (np.min(reuse_cost_ratio(np.linspace(1.001, 30, 3000), mu, beta)) < 1) == (mu > beta)
    assert reuse_pays(mu, beta) == (mu > beta)


@pytest.mark.parametrize("mu", [0.5, 5.28, 20.0])
@pytest.mark.parametrize("beta", [0.05, 0.33, 1.0, 4.0])
def test_l3_pays_where_it_says_and_never_beats_l1(mu, beta):
    uses = np.linspace(1, 60, 6000)
    expression = MAKERS["L3"]().results["cost_ratio"]
    y = next(s for s in expression.free_symbols if s.name == "y")
    rest = {s: {"mu": mu, "beta": beta}[s.name] for s in expression.free_symbols - {y}}
    ratios = sympy.lambdify(y, expression.subs(rest))(uses)
    np.testing.assert_allclose(large_buffer_cost_ratio(uses, mu, beta), ratios, rtol=1e-13)
    assert (ratios > reuse_cost_ratio(uses, mu, beta)).all()
    assert (ratios.min() < 1) == (mu > 4 * beta * (1 + beta))
    best = value("L3", "replay_ratio", mu=mu, beta=beta)
    assert large_buffer_replay_ratio(mu, beta) == pytest.approx(max(1.0, best), rel=1e-14)
    if 1 <= best <= 60:
        least = value("L3", "least_cost_ratio", mu=mu, beta=beta)
        assert ratios.min() == pytest.approx(least, rel=1e-5)
        assert uses[ratios.argmin()] == pytest.approx(best, abs=0.02)


def test_a_failed_proof_is_marked():
    y = sympy.Symbol("y", positive=True)
    broken = Derivation("P0", "a slip", (Step("square", equation((y + 1) ** 2, y**2 + 1)),), {})
    assert "[NOT PROVED]" in as_text(broken)
    assert "[NOT PROVED]" in as_latex(broken)


def test_command_prints_everything(capsys):
    assert main(["derive"]) == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if re.match(r"\w", line)] == list(
        MAKERS
    )
    assert all(f"  {name}  " in out for name, _ in STEPS)
    assert "NOT PROVED" not in out


def test_command_prints_latex_of_one(capsys):
    assert main(["derive", "--latex", "--only", "P10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(r"\paragraph{P10}")
    assert out.count("\\[") == out.count("\\]") == len(derivations("P10")[0].steps)
    assert out.count("{") == out.count("}")
    assert out.count("$") % 2 == 0


@pytest.mark.parametrize("only", ["P11", "p10", ""])
def test_unknown_formula_is_one_line(only, capsys):
    assert main(["derive", "--only", only]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"only = {only!r}" in err
    assert "P10" in err
