"""Verifiable tasks: problems made on the fly and an exact verifier.

Training problem ``index`` of a seed is a pure function of both, so the position in the stream is
the whole state of a task. A problem belongs to the test side if a hash of its key, which does not
depend on the order of its operands, falls in the held-out share; training never sees those.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

Style = Literal["compact", "words"]

HELD_OUT_SHARE = 0.2
TRIES_PER_PROBLEM = 200
LONGEST_EXPRESSION = 200

_INTEGER = re.compile(r"-?\d+")
_EXPRESSION = re.compile(r"[0-9+\-*/() ]+")


@dataclass(frozen=True)
class Problem:
    """A prompt, one right answer, the key that decides its side, what else the verifier needs."""

    prompt: str
    answer: str
    key: str
    facts: Any = None


@dataclass(frozen=True)
class Task:
    """What a policy is trained and tested on.

    train_problem(seed, index) is a pure function; verify(problem, completion) is the reward,
    0 or 1 on the tasks of this module; characters is the alphabet of prompts and answers where it
    is known, else "".
    """

    name: str
    train_problem: Callable[[int, int], Problem]
    test_problems: tuple[Problem, ...]
    verify: Callable[[Problem, str], float]
    characters: str


def held_out(key: str) -> bool:
    """Whether a key belongs to the test side, true for a share HELD_OUT_SHARE of all keys.

    >>> [held_out(f"1+{n}") for n in range(6)]
    [False, False, False, True, False, False]
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


def split_task(
    name: str,
    draw: Callable[[np.random.Generator], Problem],
    verify: Callable[[Problem, str], float],
    characters: str,
    test_size: int,
) -> Task:
    """Return a task whose sides are told apart by ``held_out``.

    Args:
        name: the task's name.
        draw: makes one problem of either side from a random generator.
        verify: the reward of a completion.
        characters: alphabet of prompts and answers.
        test_size: problems on the test side, no two with one key.

    Raises:
        ValueError: if so many test problems are not found.
    """

    def train_problem(seed: int, index: int) -> Problem:
        rng = np.random.default_rng([seed, index])
        for _ in range(TRIES_PER_PROBLEM):
            problem = draw(rng)
            if not held_out(problem.key):
                return problem
        raise ValueError(f"{name}: every problem drawn is held out for the test")

    rng = np.random.default_rng(0)
    test: dict[str, Problem] = {}
    for _ in range(TRIES_PER_PROBLEM * test_size):
        problem = draw(rng)
        if held_out(problem.key):
            test.setdefault(problem.key, problem)
        if len(test) == test_size:
            break
    else:
        raise ValueError(
            f"test_size = {test_size}: {name} has only about {len(test)} test problems"
        )
    return Task(name, train_problem, tuple(test.values()), verify, characters)


def exact_answer(problem: Problem, completion: str) -> float:
    """Return 1 if the completion is the answer and nothing else, up to spaces around it."""
    return float(completion.strip() == problem.answer)


def last_integer(problem: Problem, completion: str) -> float:
    """Return 1 if the last integer in the completion is the answer.

    >>> last_integer(Problem("2+3", "5", ""), "2 and 3 make 5.")
    1.0
    """
    found = _INTEGER.findall(completion.replace(",", ""))
    return float(bool(found) and int(found[-1][-40:]) == int(problem.answer))


def addition(digits: int = 2, test_size: int = 500, style: Style = "compact") -> Task:
    """Sum of two numbers of up to ``digits`` digits; in the compact style both are zero-padded.

    >>> addition().train_problem(0, 0)
    Problem(prompt='85+63=', answer='148', key='63+85', facts=None)
    """
    if not 1 <= digits <= 18:
        raise ValueError(f"digits = {digits} is not allowed: it must be 1 to 18")

    def draw(rng: np.random.Generator) -> Problem:
        a, b = (int(n) for n in rng.integers(10**digits, size=2))
        text = f"{a:0{digits}d}+{b:0{digits}d}="
        words = f"What is {a} + {b}? Reply with the number only."
        return Problem(worded(style, text, words), str(a + b), f"{min(a, b)}+{max(a, b)}")

    return split_task("addition", draw, number_verifier(style), "0123456789+=", test_size)


def modular(modulus: int = 97, test_size: int = 500, style: Style = "compact") -> Task:
    """Sum, difference or product of two residues, reduced by ``modulus``."""
    if not 2 <= modulus <= 10**9:
        raise ValueError(f"modulus = {modulus} is not allowed: it must be 2 to 10^9")

    def draw(rng: np.random.Generator) -> Problem:
        a, b = (int(n) for n in rng.integers(modulus, size=2))
        sign = "+-*"[rng.integers(3)]
        value = {"+": a + b, "-": a - b, "*": a * b}[sign] % modulus
        words = f"What is {a} {sign} {b} modulo {modulus}? Reply with the number only."
        first, second = (a, b) if sign == "-" else sorted((a, b))
        return Problem(
            worded(style, f"{a}{sign}{b}%{modulus}=", words), str(value), f"{first}{sign}{second}"
        )

    return split_task("modular", draw, number_verifier(style), "0123456789+-*%=", test_size)


def countdown(
    numbers: int = 3,
    largest: int = 20,
    target: int = 99,
    test_size: int = 500,
    style: Style = "compact",
) -> Task:
    """Reach a target with + - * / from given numbers, each used exactly once.

    Args:
        numbers: how many are given, 2 to 8.
        largest: they are drawn from 1 to ``largest``.
        target: the largest target, which is a whole number from 1.
        test_size: problems on the test side.
        style: how a prompt is worded.
    """
    if not 2 <= numbers <= 8:
        raise ValueError(f"numbers = {numbers} is not allowed: it must be 2 to 8")
    if largest < 1 or target < 1:
        raise ValueError(f"largest = {largest} and target = {target} must both be >= 1")

    def draw(rng: np.random.Generator) -> Problem:
        while True:
            given = [int(n) for n in rng.integers(1, largest + 1, size=numbers)]
            value, text = reachable(given, rng)
            if value.denominator == 1 and 1 <= value <= target:
                break
        shown = ",".join(str(n) for n in given)
        words = (
            f"Use each of the numbers {shown} exactly once, with + - * / and brackets, to make "
            f"{value}. Reply with the expression only."
        )
        key = f"{sorted(given)}={value}"
        compact = f"{shown}>{value}="
        return Problem(worded(style, compact, words), text, key, (tuple(given), int(value)))

    return split_task("countdown", draw, expression_reward, "0123456789,>=+-*/()", test_size)


def reachable(given: list[int], rng: np.random.Generator) -> tuple[Fraction, str]:
    """Return the value of a random expression over the numbers, in their order, and its text."""
    value, text = Fraction(given[0]), str(given[0])
    for place, number in enumerate(given[1:]):
        sign = "+-*/"[rng.integers(4)]
        inner = f"({text})" if place and sign in "*/" else text
        value, text = apply(sign, value, Fraction(number)), f"{inner}{sign}{number}"
    return value, text


def apply(sign: str, left: Fraction, right: Fraction) -> Fraction:
    """Return ``left sign right``; the right side of a division must not be zero."""
    if sign == "/":
        return left / right
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def expression_reward(problem: Problem, completion: str) -> float:
    """Return 1 if the completion makes the target from the numbers; arithmetic is exact.

    The facts of a countdown problem are (numbers, target).

    >>> expression_reward(Problem("", "", "", ((2, 3, 4), 10)), "2*3+4")
    1.0
    >>> expression_reward(Problem("", "", "", ((2, 3, 4), 10)), "2*(3+2)")
    0.0
    """
    numbers, target = problem.facts
    text = completion.strip()
    if len(text) > LONGEST_EXPRESSION or not _EXPRESSION.fullmatch(text):
        return 0.0
    try:
        tree = ast.parse(text, mode="eval").body
        value = expression_value(tree)
    except (SyntaxError, ZeroDivisionError, TypeError):
        return 0.0
    used = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return float(Counter(used) == Counter(numbers) and value == target)


def expression_value(tree: ast.expr) -> Fraction:
    """Return the exact value of an expression of integers, + - * / and brackets.

    Raises:
        TypeError: if it holds anything else.
        ZeroDivisionError: if it divides by zero.
    """
    signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return Fraction(tree.value)
    if isinstance(tree, ast.BinOp) and type(tree.op) in signs:
        left, right = expression_value(tree.left), expression_value(tree.right)
        return apply(signs[type(tree.op)], left, right)
    raise TypeError(f"not an arithmetic expression: {ast.dump(tree)}")


def worded(style: Style, compact: str, words: str) -> str:
    """Return the prompt in the style asked for."""
    return compact if style == "compact" else words


def number_verifier(style: Style) -> Callable[[Problem, str], float]:
    """Return the verifier of a task whose answer is an integer: strict in the compact style."""
    return exact_answer if style == "compact" else last_integer
