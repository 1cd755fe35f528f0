"""Derivations of the bound's objective and of its optimum, P8 to P10.

From P1 and P6 of arXiv 2604.08706 to the closed form that ``theory.optimum`` evaluates. All
symbols are positive; where 0 < alpha < 1/2 matters, alpha is written 1/(2 (1 + d)).

>>> MAKERS["P10"]().results["staleness_horizon"]
y**2/(2*alpha*(mu + y))
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from theory.derivation.proof import Derivation, Step, above, equation, where


def _objective() -> Derivation:
    """P8 (arXiv 2604.08706): (B + mu R) V depends on the ratios x and y alone."""
    s = _symbols()
    variance = s.sbar2(s.N / s.R) * (1 / s.B + 1 / s.N + s.rho / s.R)
    product = (s.B + s.mu * s.R) * variance
    scaled = {s.B: s.t * s.B, s.N: s.t * s.N, s.R: s.t * s.R}
    in_ratios = {s.B: s.y * s.R, s.N: s.x * s.R}
    steps = (
        Step(
            "the bound is least where cost per update (P1) times variance (P6) is least; scaling "
            "B, N and R by t leaves their product as it is",
            equation(product.subs(scaled, simultaneous=True), product),
        ),
        Step(
            "so with B = y R and N = x R, R drops out, and what is left is mu J",
            equation(product.subs(in_ratios, simultaneous=True), s.mu * _ratio_objective(s)),
        ),
    )
    return Derivation("P8", "the objective in ratios", steps, {"objective": _ratio_objective(s)})


def _profile() -> Derivation:
    """P9 (arXiv 2604.08706): the best y at each x, and the function of x that is left."""
    import sympy

    s = _symbols()
    objective, rest = _ratio_objective(s), s.rho + 1 / s.x
    best = sympy.sqrt(s.mu / rest)
    slope = s.sbar2(s.x) / s.mu * (rest - s.mu / s.y**2)
    factor = 1 / sympy.sqrt(s.mu) + sympy.sqrt(rest)
    left, kernel = s.sbar2(s.x) * factor**2, s.x**s.alpha * factor
    power = _power_average(s)
    steps = (
        Step("differentiate J in y", equation(sympy.Derivative(objective, s.y), slope)),
        Step("the slope is 0 at y*", equation(where(slope, s.y, best), 0)),
        Step(
            "J is convex in y, so this is its least value",
            above(sympy.Derivative(objective, (s.y, 2)), 0),
        ),
        Step("J at y* depends on x alone", equation(where(objective, s.y, best), left)),
        Step(
            "for a power law it is K(x)^2 up to a constant, K(x) = x^alpha "
            "(1/sqrt(mu) + sqrt(rho + 1/x))",
            equation(
                where(left, s.sbar2(s.x), power),
                kernel**2 / (2 * s.alpha + 1) / s.tau ** (2 * s.alpha),
            ),
        ),
    )
    results = {"replay_ratio": best, "objective": left, "kernel": kernel}
    return Derivation("P9", "the best replay ratio at each horizon", steps, results)


def _power_law() -> Derivation:
    """P10 (arXiv 2604.08706): the optimum for a power law in closed form."""
    s = _symbols()
    steps = (*_conditions(s), *_root(s), *_limits(s), *_values(s))
    results = {
        "mean_variance": _power_average(s),
        "replay_ratio": _stable(s),
        "printed_replay_ratio": _printed(s),
        "staleness_horizon": s.y**2 / (2 * s.alpha * (s.mu + s.y)),
        "cost_ratio": s.x ** (2 * s.alpha) * (1 + s.mu / s.y) ** 2 / ((1 + s.mu) * (2 + s.rho)),
    }
    return Derivation("P10", "the optimum for sigma(s) = (s/tau)^alpha", steps, results)


def _conditions(s: SimpleNamespace) -> tuple[Step, ...]:
    import sympy

    age = sympy.Symbol("s", positive=True)
    noise = 1 / s.y + 1 / s.x + s.rho
    objective = _power_average(s) * (1 + s.y / s.mu) * noise
    powers = 1 / s.y + 1 / s.x + s.rho + (1 + s.y / s.x + s.rho * s.y) / s.mu
    in_x, in_y = 2 * s.alpha - 1 / (s.x * noise), s.y / (s.mu + s.y) - 1 / (s.y * noise)
    in_log_x = s.x * sympy.Derivative(objective, s.x) / objective
    in_log_y = s.y * sympy.Derivative(objective, s.y) / objective
    integral = sympy.Integral((age / s.tau) ** (2 * s.alpha), (age, 0, s.x)) / s.x
    return (
        Step("the buffer's average, its sum as an integral", equation(integral, _power_average(s))),
        Step(
            "J is a sum of powers of x and y with positive factors, so it is convex in their "
            "logarithms: where both slopes are 0 is the one minimum",
            equation(objective, _power_average(s) * powers),
        ),
        Step("the slope of log J in log x", equation(in_log_x, in_x)),
        Step("the slope of log J in log y", equation(in_log_y, in_y)),
        Step("the second is 0 where 1/x = mu/y^2 - rho", equation(where(in_y, s.x, _stale(s)), 0)),
        Step(
            "put into the first, this leaves a quadratic in y that must be 0",
            equation(where(in_x * (s.mu + s.y), s.x, _stale(s)), _quadratic(s)),
        ),
    )


def _root(s: SimpleNamespace) -> tuple[Step, ...]:
    import sympy

    w, a = sympy.Symbol("w", positive=True), s.alpha
    in_w = (w * (1 - 2 * a) - 2 * a * s.rho) ** 2 - 4 * a**2 * (s.rho + w) / s.mu
    kernel_slope = w - 2 * a * (s.rho + w) - 2 * a * sympy.sqrt((s.rho + w) / s.mu)
    other_sign = w - 2 * a * (s.rho + w) + 2 * a * sympy.sqrt((s.rho + w) / s.mu)
    discriminant = 16 * a**2 / s.mu * (a**2 / s.mu + s.rho * (1 - 2 * a))
    return (
        Step("its positive root", equation(where(_quadratic(s), s.y, _printed(s)), 0)),
        Step(
            "the same root without cancellation, finite at rho = 0",
            equation(_printed(s), _stable(s)),
        ),
        Step(
            "it is positive for alpha = 1/(2 (1 + d)), d > 0",
            above(where(_stable(s), a, _inside(s)), 0),
        ),
        Step(
            "the slope of K(x) in w = 1/x, times the same with the other sign of the square root",
            equation(kernel_slope * other_sign, in_w),
        ),
        Step(
            "this quadratic in w has the discriminant",
            equation(_discriminant(in_w, w), discriminant),
        ),
    )


def _limits(s: SimpleNamespace) -> tuple[Step, ...]:
    import sympy

    simple = s.mu * (1 - 2 * s.alpha)
    return (
        Step("y* at rho = 0", equation(where(_stable(s), s.rho, 0), simple / (2 * s.alpha))),
        Step(
            "at mu rho = 1 the square root is that of (1 - alpha)^2, so y* = mu (1 - 2 alpha)",
            equation(where(_square_root(s) ** 2, s.rho, 1 / s.mu), (1 - s.alpha) ** 2),
        ),
        Step("y* at alpha = 0", equation(where(_stable(s), s.alpha, 0), sympy.sqrt(s.mu / s.rho))),
    )


def _values(s: SimpleNamespace) -> tuple[Step, ...]:
    horizon = s.y**2 / (2 * s.alpha * (s.mu + s.y))
    share = (1 + s.y / s.mu) * (1 / s.y + 1 / s.x + s.rho)
    return (
        Step(
            "x* = y^2/(2 alpha (mu + y)), as y^2/x* and mu - rho y^2 differ by the quadratic only",
            equation(s.y**2 / horizon - (s.mu - s.rho * s.y**2), _quadratic(s)),
        ),
        Step(
            "at the optimum J is sbar2(x*) times",
            equation(where(share, s.x, _stale(s)), (1 + s.mu / s.y) ** 2 / s.mu),
        ),
        Step(
            "at B = R = N it is sbar2(1) times",
            equation(share.subs({s.x: 1, s.y: 1}), (1 + s.mu) * (2 + s.rho) / s.mu),
        ),
        Step(
            "and the averages are in the ratio x*^(2 alpha)",
            equation(_power_average(s) / where(_power_average(s), s.x, 1), s.x ** (2 * s.alpha)),
        ),
    )


def _symbols() -> SimpleNamespace:
    import sympy

    names = "alpha d mu rho t tau x y B N R"
    symbols = {name: sympy.Symbol(name, positive=True) for name in names.split()}
    return SimpleNamespace(**symbols, sbar2=sympy.Function("sbar2", positive=True))


def _discriminant(polynomial: Any, symbol: Any) -> Any:
    import sympy

    return sympy.discriminant(sympy.expand(polynomial), symbol)


def _ratio_objective(s: SimpleNamespace) -> Any:
    return s.sbar2(s.x) * (1 + s.y / s.mu) * (1 / s.y + 1 / s.x + s.rho)


def _power_average(s: SimpleNamespace) -> Any:
    return (s.x / s.tau) ** (2 * s.alpha) / (2 * s.alpha + 1)


def _quadratic(s: SimpleNamespace) -> Any:
    return s.rho * s.y**2 + 2 * s.alpha * s.y + s.mu * (2 * s.alpha - 1)


def _stale(s: SimpleNamespace) -> Any:
    return s.y**2 / (s.mu - s.rho * s.y**2)


def _inside(s: SimpleNamespace) -> Any:
    return 1 / (2 * (1 + s.d))


def _square_root(s: SimpleNamespace) -> Any:
    import sympy

    return sympy.sqrt(s.alpha**2 + s.mu * s.rho * (1 - 2 * s.alpha))


def _printed(s: SimpleNamespace) -> Any:
    return (_square_root(s) - s.alpha) / s.rho


def _stable(s: SimpleNamespace) -> Any:
    return s.mu * (1 - 2 * s.alpha) / (s.alpha + _square_root(s))


MAKERS = {"P8": _objective, "P9": _profile, "P10": _power_law}
