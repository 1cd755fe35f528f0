"""The derivations of the project's formulas, as data that SymPy proves and prints.

P8 to P10 are derived in ``theory.derivation.bound``, the sums of replay noise (Q4, Q5, L5) in
``theory.derivation.noise`` and the reuse law (L1 to L3) in ``theory.derivation.reuse``; what
counts as a proof is in ``theory.derivation.proof``. Derived is what the formulas say, not whether
their models hold.
"""

from __future__ import annotations

import re
from typing import Any

from theory.derivation import bound, noise, reuse
from theory.derivation.proof import Derivation, Step, is_proved

MAKERS = {**bound.MAKERS, **noise.MAKERS, **reuse.MAKERS}


def derivations(only: str | None = None) -> tuple[Derivation, ...]:
    """All derivations, in the order in which they build on each other, or one.

    Args:
        only: formula id, one of P8, P9, P10, Q4, Q5, L1, L2, L3 and L5; None for all.

    Returns:
        The derivations asked for.

    Raises:
        ValueError: if nothing is derived under this id.

    >>> [len(derivation.steps) for derivation in derivations("L1")]
    [6]
    """
    if only is None:
        return tuple(make() for make in MAKERS.values())
    if only not in MAKERS:
        raise ValueError(f"only = {only!r} is not allowed: it must be one of {', '.join(MAKERS)}")
    return (MAKERS[only](),)


def as_text(derivation: Derivation) -> str:
    """A derivation as text, every step proved anew.

    Args:
        derivation: any of ``derivations``, of P8, say.

    Returns:
        The title, then two lines for each step; a step that fails its proof is marked.

    >>> print(as_text(derivations("L2")[0]).splitlines()[0])
    L2: replay of one batch pays in the long run exactly where mu > beta
    """
    lines = [f"{derivation.id}: {derivation.title}"]
    for name, step in _named(derivation):
        lines += [f"  {name}  {step.statement}{_scope(step)}", f"        {_plain(step.claim)}"]
    return "\n".join(lines)


def as_latex(derivation: Derivation) -> str:
    r"""A derivation as LaTeX for the body of a document, every step proved anew.

    Args:
        derivation: any of ``derivations``, of P8, say.

    Returns:
        A paragraph heading, then for each step a sentence and a displayed claim.

    >>> print(as_latex(derivations("L2")[0]).splitlines()[0])
    \paragraph{L2} replay of one batch pays in the long run exactly where mu $>$ beta
    """
    import sympy

    lines = [f"\\paragraph{{{derivation.id}}} {_escaped(derivation.title)}"]
    for name, step in _named(derivation):
        lines.append(f"\n\\noindent {name}: {_escaped(step.statement + _scope(step))}")
        lines.append(f"\\[ {sympy.latex(step.claim)} \\]")
    return "\n".join(lines)


def _named(derivation: Derivation) -> list[tuple[str, Step]]:
    return [(f"{derivation.id}.{n}", step) for n, step in enumerate(derivation.steps, start=1)]


def _scope(step: Step) -> str:
    where = f" (proved for x = {', '.join(map(str, step.at))})" if step.at else ""
    return where if is_proved(step) else f"{where} [NOT PROVED]"


def _plain(claim: Any) -> str:
    import sympy

    sign = ">" if isinstance(claim, sympy.StrictGreaterThan) else "="
    return f"{sympy.sstr(claim.lhs)} {sign} {sympy.sstr(claim.rhs)}"


def _escaped(text: str) -> str:
    return re.sub(r"[<>]+", r"$\g<0>$", re.sub(r"[_%&#]", r"\\\g<0>", text)).replace("^", r"\^{}")
