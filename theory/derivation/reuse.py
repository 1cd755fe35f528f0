"""Derivations of the reuse law: L1, L2 and L3.

From L0, U = S_min (1 + Bnoise V), with the long-run variance of Q5: V = 1/R where the buffer holds
one batch, 1/B + 1/R where it is large. All symbols are positive.

>>> MAKERS["L3"]().results["replay_ratio"]
sqrt(mu)*sqrt(beta + 1)/sqrt(beta)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from theory.derivation.proof import Derivation, Step, above, equation, where


def _one_batch() -> Derivation:
    """L1: the cost of reusing one batch, N = B, and its minimum."""
    import sympy

    s = _symbols()
    ratio = _cost_ratio(s, s.y)
    best = sympy.sqrt(s.mu / s.beta)
    least = (1 + sympy.sqrt(s.mu * s.beta)) ** 2 / _on_policy(s)
    steps = (
        Step(
            "updates grow as 1 + Bnoise/R (L0, Q5), with R = B/y",
            equation(where(1 + s.beta * s.B / s.R, s.R, s.B / s.y), 1 + s.beta * s.y),
        ),
        Step(
            "an update costs (P1)",
            equation(where(s.B + s.mu * s.R, s.R, s.B / s.y), s.B * (1 + s.mu / s.y)),
        ),
        *_minimum(s, ratio, (s.beta - s.mu / s.y**2) / _on_policy(s), best, least),
    )
    results = {"cost_ratio": ratio, "replay_ratio": best, "least_cost_ratio": least}
    return Derivation("L1", "reuse of one batch in the long run", steps, results)


def _verdict() -> Derivation:
    """L2: where the cost ratio of L1 is below 1."""
    s = _symbols()
    gain = (_cost_ratio(s, s.y) - 1) * _on_policy(s)
    steps = (
        Step(
            "the cost ratio less 1 is a product: for y > 1 it is below 0 exactly where "
            "y < mu/beta, and there is such a y exactly where mu > beta",
            equation(gain, (s.y - 1) * (s.beta - s.mu / s.y)),
        ),
    )
    title = "replay of one batch pays in the long run exactly where mu > beta"
    return Derivation("L2", title, steps, {"gain": gain})


def _large_buffer() -> Derivation:
    """L3: the cost ratio of a large buffer in the long run, and its minimum."""
    import sympy

    s = _symbols()
    ratio = _cost_ratio(s, 1 + s.y)
    best = sympy.sqrt(s.mu * (1 + s.beta) / s.beta)
    roots = sympy.sqrt(1 + s.beta) + sympy.sqrt(s.mu * s.beta)
    least = roots**2 / _on_policy(s)
    slope = (s.beta - s.mu * (1 + s.beta) / s.y**2) / _on_policy(s)
    margin = sympy.sqrt(s.mu) * (sympy.sqrt(s.mu) - 2 * sympy.sqrt(s.beta * (1 + s.beta)))
    steps = (
        Step(
            "a buffer with N >> B has variance 1/B + 1/R (Q5), so updates grow as",
            equation(
                where(1 + s.beta * s.B * (1 / s.B + 1 / s.R), s.R, s.B / s.y),
                1 + s.beta * (1 + s.y),
            ),
        ),
        Step(
            "the cost ratio exceeds that of one batch at the same y",
            above(ratio, _cost_ratio(s, s.y)),
        ),
        *_minimum(s, ratio, slope, best, least),
        Step(
            "1 less that value has the sign of this, above 0 exactly where mu > 4 beta (1 + beta)",
            equation((1 - least) * _on_policy(s), margin),
        ),
        Step(
            "where that holds y* is above 1, as mu > beta/(1 + beta)",
            above(4 * s.beta * (1 + s.beta), s.beta / (1 + s.beta)),
        ),
    )
    results = {"cost_ratio": ratio, "replay_ratio": best, "least_cost_ratio": least}
    return Derivation("L3", "a large buffer in the long run", steps, results)


def _minimum(s: SimpleNamespace, ratio: Any, slope: Any, best: Any, least: Any) -> tuple[Step, ...]:
    import sympy

    return (
        Step(
            "updates times cost, over that on-policy, is the cost ratio; its slope",
            equation(sympy.Derivative(ratio, s.y), slope),
        ),
        Step("is 0 at y*", equation(where(slope, s.y, best), 0)),
        Step("the ratio is convex", above(sympy.Derivative(ratio, (s.y, 2)), 0)),
        Step("so this is its least value", equation(where(ratio, s.y, best), least)),
    )


def _symbols() -> SimpleNamespace:
    import sympy

    names = ["beta", "mu", "y", "B", "R"]
    return SimpleNamespace(**{name: sympy.Symbol(name, positive=True) for name in names})


def _cost_ratio(s: SimpleNamespace, noisy_uses: Any) -> Any:
    return (1 + s.mu / s.y) * (1 + s.beta * noisy_uses) / _on_policy(s)


def _on_policy(s: SimpleNamespace) -> Any:
    return (1 + s.mu) * (1 + s.beta)


MAKERS = {"L1": _one_batch, "L2": _verdict, "L3": _large_buffer}
