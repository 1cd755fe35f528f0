"""What a derivation is made of, and how SymPy proves each step of it.

A step is a sentence and a claim, an equation or a strict inequality. Each claim is proved on its
own: the two sides of an equation differ by something that simplifies to 0, and the difference of
an inequality is positive for all positive symbols. Where a finite sum has no closed form, a claim
is proved at some horizons only, with every sum written out.

Fails safe: a claim that SymPy cannot simplify counts as not proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One step: what is done, and what it gives.

    Attributes:
        statement: one sentence in plain words.
        claim: SymPy equation or strict inequality, unevaluated, in positive symbols.
        at: horizons x at which the claim is proved; empty if it is for every x.
    """

    statement: str
    claim: Any
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Derivation:
    """The steps that lead to one formula.

    Attributes:
        id: formula id, as in docs/equations.md.
        title: what is derived.
        steps: in order; step n is called ``id.n``.
        results: final SymPy expressions by name, in the symbols of the steps.
    """

    id: str
    title: str
    steps: tuple[Step, ...]
    results: Mapping[str, Any]


def is_proved(step: Step) -> bool:
    """Whether SymPy proves the claim of a step.

    Args:
        step: any step, of the derivation of P8, say.

    Returns:
        True where both sides of an equation agree, or an inequality always holds.

    >>> import sympy
    >>> y = sympy.Symbol("y", positive=True)
    >>> is_proved(Step("squares", sympy.Eq((y + 1) ** 2, y**2 + 2 * y + 1, evaluate=False)))
    True
    >>> is_proved(Step("a slip", sympy.Eq((y + 1) ** 2, y**2 + 1, evaluate=False)))
    False
    """
    import sympy

    difference = step.claim.lhs - step.claim.rhs
    horizon = sympy.Symbol("x", integer=True, positive=True)
    cases = [_expanded(difference.subs(horizon, value)) for value in step.at] or [difference]
    proofs = (sympy.simplify(case.doit()) for case in cases)
    if isinstance(step.claim, sympy.StrictGreaterThan):
        return all(proof.is_positive is True for proof in proofs)
    return all(proof == 0 for proof in proofs)


def equation(left: Any, right: Any) -> Any:
    """The claim that two expressions are equal, as in both sides of P8, kept unevaluated.

    Args:
        left: SymPy expression.
        right: SymPy expression or number.

    Returns:
        SymPy ``Eq``.

    >>> import sympy
    >>> equation(sympy.Integer(2), 3)
    Eq(2, 3)
    """
    import sympy

    return sympy.Eq(left, right, evaluate=False)


def where(expression: Any, symbol: Any, value: Any) -> Any:
    """An expression with a value put in, as y* into the slope of P8, not yet worked out.

    Args:
        expression: SymPy expression.
        symbol: what is replaced.
        value: SymPy expression or number.

    Returns:
        SymPy ``Subs``.

    >>> import sympy
    >>> y = sympy.Symbol("y")
    >>> where(y**2, y, 3), where(y**2, y, 3).doit()
    (Subs(y**2, y, 3), 9)
    """
    import sympy

    return sympy.Subs(expression, symbol, value)


def above(left: Any, right: Any) -> Any:
    """The claim that one expression is larger than another, kept unevaluated.

    Args:
        left: SymPy expression.
        right: SymPy expression or number.

    Returns:
        SymPy ``Gt``.

    >>> import sympy
    >>> above(sympy.Integer(2), 3)
    2 > 3
    """
    import sympy

    return sympy.Gt(left, right, evaluate=False)


def _expanded(expression: Any) -> Any:
    """The expression with every sum between whole numbers written out, the outermost first."""
    import sympy

    if isinstance(expression, sympy.Sum):
        *inner, (index, first, last) = expression.limits
        body = sympy.Sum(expression.function, *inner) if inner else expression.function
        terms = (body.subs(index, value) for value in range(int(first), int(last) + 1))
        return sympy.Add(*(_expanded(term) for term in terms))
    return expression.func(*map(_expanded, expression.args)) if expression.args else expression
