"""Derivations of the noise that replay adds: Q4, Q5 and L5.

Q4 needs sum_{k<x} q^k C_k with q = 1 - eta lambda. It has a closed form for constant sigma and for
sigma proportional to age (alpha = 1). For other powers it stays a finite sum: already the buffer's
average is a generalised harmonic number, a polynomial only where 2 alpha is whole, and even at
alpha = 1/2, where sigma^2 is linear in age, C_k is a sum of square roots.

>>> MAKERS["L5"]().results["without_replacement"]
sbar2*(-1/N + 1/B) + sbar1**2*x/N
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from theory.derivation.proof import Derivation, Step, equation, where

HORIZONS = (1, 2, 3, 4, 5)


def _sums() -> Derivation:
    """Q4: the sum over lags of the noise that successive batches share."""
    s = _symbols()
    results = {
        "constant_sum": _constant_sum(s),
        "linear_sum": _linear_sum(s),
        "with_replacement": 1 / s.B + (1 - 1 / s.B) / s.N + 2 / s.N * _constant_sum(s),
        "without_replacement": 1 / s.B + 2 / s.N * _constant_sum(s),
    }
    return Derivation(
        "Q4", "what SGD feels: the sums over lags", (*_constant(s), *_powers(s)), results
    )


def _constant(s: SimpleNamespace) -> tuple[Step, ...]:
    import sympy

    geometric = s.q * (1 - s.q**s.x) / (1 - s.q)
    total = s.x * _constant_sum(s)
    shared = sympy.Sum(s.q**s.k * (1 - s.k / s.x), (s.k, 1, s.x - 1))
    return (
        Step(
            "the geometric sum q + ... + q^x grows by q^x", _grows(s, geometric, s.q ** (s.x + 1))
        ),
        Step(
            "constant sigma, C_k = (1 - k/x)/N: x times the sum over lags grows by that sum",
            _grows(s, total, geometric),
        ),
        Step("and is 0 for x = 1, so by induction it is this", equation(where(total, s.x, 1), 0)),
        Step("the sum itself, written out", equation(shared, _constant_sum(s)), at=HORIZONS),
    )


def _powers(s: SimpleNamespace) -> tuple[Step, ...]:
    import sympy

    a, b, k, x, q = s.a, s.b, s.k, s.x, s.q
    by_lag = sympy.Sum(q**k * s.sigma(a) * s.sigma(a - k), (a, k, x - 1), (k, 1, x - 1))
    by_age = sympy.Sum(s.sigma(a) * s.sigma(b) * q ** (a - b), (b, 0, a - 1), (a, 1, x - 1))
    average = sympy.Sum(a ** (2 * s.alpha), (a, 1, x - 1))
    covariance = (x - k) * (x - k - 1) * (2 * x + k - 1) / 6
    return (
        Step(
            "any sigma: the sum over lags as one over pairs of ages",
            equation(by_lag, by_age),
            at=HORIZONS,
        ),
        Step(
            "power law: the buffer's sum is a harmonic number, closed where 2 alpha is whole",
            equation(average, sympy.harmonic(x - 1, -2 * s.alpha)),
            at=HORIZONS,
        ),
        Step(
            "alpha = 1/2, sigma^2 linear: its average is closed, its C_k (square roots) are not",
            equation(sympy.Sum(a, (a, 0, x - 1)) / x, (x - 1) / 2),
        ),
        Step(
            "alpha = 1, sigma = s: every C_k is a polynomial, times R/N^2",
            equation(sympy.Sum(a * (a - k), (a, k, x - 1)), covariance),
        ),
        Step(
            "alpha = 1: one more update adds x sum_k q^k (x - k), which is x^2 times the sum above",
            _grows(s, _linear_sum(s), x**2 * _constant_sum(s)),
        ),
        Step(
            "and it is 0 for x = 1, so by induction it is this",
            equation(where(_linear_sum(s), x, 1), 0),
        ),
    )


def _correlation() -> Derivation:
    """Q5: the paper's rho as a function of x and q, and its long-run value, for constant sigma."""
    import sympy

    s = _symbols()
    c: Any = sympy.Symbol("S", positive=True)
    fresh = s.N / s.x
    drawn = {"with": 1 / s.B + (1 - 1 / s.B) / s.N, "without": 1 / s.B}
    rho = {way: fresh * (first + 2 * c / s.N - 1 / s.B - 1 / s.N) for way, first in drawn.items()}
    lost = (1 - s.q**s.x) / (s.x * (1 - s.q))
    long_run = (s.x - 1) / 2
    steps = (
        Step(
            "with replacement, S the sum over lags", equation(rho["with"], (2 * c - 1 / s.B) / s.x)
        ),
        Step("without replacement", equation(rho["without"], (2 * c - 1) / s.x)),
        Step(
            "S is q/(1 - q) less a part that vanishes where x (1 - q) is large",
            equation(_constant_sum(s), s.q / (1 - s.q) * (1 - lost)),
        ),
        Step(
            "long run: S at q = 1", equation(sympy.Sum(1 - s.k / s.x, (s.k, 1, s.x - 1)), long_run)
        ),
        Step("hence rho with", equation(where(rho["with"], c, long_run), 1 - (1 + 1 / s.B) / s.x)),
        Step("and rho without", equation(where(rho["without"], c, long_run), 1 - 2 / s.x)),
        Step(
            "the variance without replacement, as N = x R",
            equation(drawn["without"] + 2 * long_run / s.N, 1 / s.B + 1 / fresh - 1 / s.N),
        ),
        Step(
            "which at N = B is 1/R",
            equation(where(drawn["without"] + 2 * long_run / s.N, s.N, s.B), s.x / s.B),
        ),
    )
    twice = 2 * _constant_sum(s)
    results = {"with": (twice - 1 / s.B) / s.x, "without": (twice - 1) / s.x}
    return Derivation("Q5", "the correlation rho that the noise amounts to", steps, results)


def _staleness() -> Derivation:
    """L5: the long-run variance with any profile."""
    import sympy

    s = _symbols()
    one: Any = sympy.Symbol("sbar1", positive=True)
    two: Any = sympy.Symbol("sbar2", positive=True)
    pairs = sympy.Sum(s.sigma(s.a) * s.sigma(s.a - s.k), (s.a, s.k, s.x - 1), (s.k, 1, s.x - 1))
    total: Any = sympy.Sum(s.sigma(s.a), (s.a, 0, s.x - 1))
    squares: Any = sympy.Sum(s.sigma(s.a) ** 2, (s.a, 0, s.x - 1))
    fresh = s.N / s.x
    shared = fresh / s.N**2 * ((s.x * one) ** 2 - s.x * two)
    without = two * (1 / s.B - 1 / s.N) + one**2 / fresh
    drawn_again = two * (1 - 1 / s.N) / s.B + one**2 / fresh
    steps = (
        Step(
            "at q = 1 the sum runs over all pairs",
            equation(pairs, (total**2 - squares) / 2),
            HORIZONS,
        ),
        Step("so twice the sum of C_k is", equation(shared, one**2 / fresh - two / s.N)),
        Step("without replacement", equation(two / s.B + shared, without)),
        Step(
            "with replacement",
            equation(two * (1 / s.B + (1 - 1 / s.B) / s.N) + shared, drawn_again),
        ),
    )
    results = {"without_replacement": without, "with_replacement": drawn_again}
    return Derivation("L5", "the long-run variance with staleness noise", steps, results)


def _symbols() -> SimpleNamespace:
    import sympy

    names = "alpha q B N"
    symbols = {name: sympy.Symbol(name, positive=True) for name in names.split()}
    ages = {name: sympy.Symbol(name, integer=True) for name in "abk"}
    x = sympy.Symbol("x", integer=True, positive=True)
    return SimpleNamespace(**symbols, **ages, x=x, sigma=sympy.Function("sigma", positive=True))


def _grows(s: SimpleNamespace, total: Any, step: Any) -> Any:
    return equation(total.subs(s.x, s.x + 1) - total, step)


def _constant_sum(s: SimpleNamespace) -> Any:
    return s.q / (1 - s.q) - s.q * (1 - s.q**s.x) / (s.x * (1 - s.q) ** 2)


def _linear_sum(s: SimpleNamespace) -> Any:
    x, q = s.x, s.q
    weighted = q * (1 - x * q ** (x - 1) + (x - 1) * q**x) / (1 - q) ** 2
    squares = (x - 1) * x * (2 * x - 1) / 6
    return q / (1 - q) * squares - q / (1 - q) ** 2 * (x * (x - 1) / 2 - weighted)


MAKERS = {"Q4": _sums, "Q5": _correlation, "L5": _staleness}
