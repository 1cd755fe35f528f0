"""What the room accepts as a number: one check and one wording for every public entry.

A value that breaks its range raises ``ValueError`` with one line that names the argument, the
value and what is allowed. Nothing is clipped or converted from text.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatOrArray = float | NDArray[np.float64]


def positive(name: str, value: Any) -> float:
    """A finite real number above zero.

    Args:
        name: what to call the value in the error.
        value: Python or NumPy real scalar; bools, strings and arrays are refused.

    Returns:
        The value as a float.

    Raises:
        ValueError: if the value is anything else.

    >>> positive("cost_gen", 5.28)
    5.28
    """
    number = _as_float(value)
    if not 0 < number < math.inf:
        raise _refusal(name, value, "a finite number > 0")
    return number


def non_negative(name: str, value: Any) -> float:
    """A finite real number, zero or more.

    Args:
        name: what to call the value in the error.
        value: Python or NumPy real scalar; bools, strings and arrays are refused.

    Returns:
        The value as a float.

    Raises:
        ValueError: if the value is anything else.

    >>> non_negative("alpha", 0)
    0.0
    """
    number = _as_float(value)
    if not 0 <= number < math.inf:
        raise _refusal(name, value, "a finite number >= 0")
    return number


def fraction(name: str, value: Any) -> float:
    """A real number from 0 to 1, both included.

    Args:
        name: what to call the value in the error.
        value: Python or NumPy real scalar; bools, strings and arrays are refused.

    Returns:
        The value as a float.

    Raises:
        ValueError: if the value is anything else.

    >>> fraction("rho", 1)
    1.0
    """
    number = _as_float(value)
    if not 0 <= number <= 1:
        raise _refusal(name, value, "a number from 0 to 1")
    return number


def whole(name: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    """A whole number, at least ``low`` and at most ``high``.

    Args:
        name: what to call the value in the error.
        value: Python or NumPy integer scalar; bools, floats and strings are refused.
        low: the smallest value allowed.
        high: the largest value allowed; None for no limit.

    Returns:
        The value as an int.

    Raises:
        ValueError: if the value is anything else.

    >>> whole("batch_size", 60)
    60
    """
    counts = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (counts and low <= value and (high is None or value <= high)):
        limit = "" if high is None else f" and <= {high}"
        raise _refusal(name, value, f"a whole number >= {low}{limit}")
    return int(value)


def real_array(
    name: str,
    values: ArrayLike,
    *,
    low: float,
    high: float = np.inf,
    above: bool = False,
    infinite: bool = False,
) -> NDArray[np.float64]:
    """An array of real numbers inside a range.

    Args:
        name: what to call the values in the error.
        values: real scalar or array of any shape; bools and strings are refused.
        low: lower end of the range.
        high: upper end of the range, included.
        above: whether ``low`` itself is refused.
        infinite: whether +infinity is allowed.

    Returns:
        The values as a float64 array of the same shape.

    Raises:
        ValueError: naming the first value outside the range.

    >>> real_array("alpha", [0.1, 0.2], low=0.0).sum().round(3).item()
    0.3
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise _refusal(name, values, "one or more real numbers")
    array = array.astype(np.float64)
    inside = (array > low if above else array >= low) & (array <= high)
    inside &= np.isfinite(array) | (infinite & (array > 0))
    if not inside.all():
        kind = "a number" if infinite else "a finite number"
        text = f"{kind} {'>' if above else '>='} {low:g}"
        raise _refusal(name, array[~inside][0], text + (f" and <= {high:g}" * (high < np.inf)))
    return array


def plain(array: NDArray[np.float64] | np.float64) -> FloatOrArray:
    """A float for a zero-dimensional result, the array itself otherwise.

    Args:
        array: any float64 array or scalar.

    Returns:
        ``float`` or the array.

    >>> plain(np.asarray(2.5))
    2.5
    """
    return float(array) if np.ndim(array) == 0 else np.asarray(array)


def _as_float(value: Any) -> float:
    """The value as a float; NaN, which no range contains, for what is not a real number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return math.nan
    too_large = isinstance(value, int) and abs(value) > sys.float_info.max
    return math.inf if too_large else float(value)


def _refusal(name: str, value: Any, allowed: str) -> ValueError:
    shown = repr(value) if isinstance(value, str) else " ".join(str(value).split())
    return ValueError(f"{name} = {shown} is not allowed: it must be {allowed}")
