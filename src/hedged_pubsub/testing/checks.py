"""Argument checks shared by the latencies, the faults and the server.

Each error names the argument, its value, the bound and what to pass instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def number(name: str, value: object, *, minimum: float, maximum: float = math.inf) -> float:
    """Returns ``value`` as a float, after checking that it is a finite number in the bounds.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed.
        minimum: the smallest value allowed.
        maximum: the largest value allowed.

    Raises:
        TypeError: if ``value`` is not an int or a float (a bool is neither).
        ValueError: if it is NaN, infinite, or out of the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r} must be a number; pass an int or a float")
    bounds = (
        f"at least {minimum:g}" if maximum == math.inf else f"between {minimum:g} and {maximum:g}"
    )
    if not math.isfinite(value) or not minimum <= value <= maximum:
        raise ValueError(f"{name}={value!r} must be a finite number, {bounds}")
    return float(value)


def positive(name: str, value: object) -> float:
    """Returns ``value`` as a float, after checking that it is a finite number above 0.

    Raises:
        TypeError: if ``value`` is not an int or a float.
        ValueError: if it is NaN, infinite, or not above 0.
    """
    checked = number(name, value, minimum=0)
    if checked == 0:
        raise ValueError(f"{name}={value!r} must be above 0")
    return checked


def integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Returns ``value``, after checking that it is an int in the bounds.

    Raises:
        TypeError: if ``value`` is not an int (a bool is not).
        ValueError: if it is out of the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an int")
    if value < minimum or (maximum is not None and value > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise ValueError(f"{name}={value!r} must be {bounds}")
    return value


def integers(name: str, values: object, *, minimum: int) -> frozenset[int]:
    """Returns ``values`` as a set, after checking that each is an int of at least ``minimum``.

    Raises:
        TypeError: if ``values`` is not an iterable of ints.
        ValueError: if it is empty or one of them is too small.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r} must be a collection of ints, such as [1]")
    checked = frozenset(integer(f"{name}[{i}]", v, minimum=minimum) for i, v in enumerate(values))
    if not checked:
        raise ValueError(f"{name} is empty, so it would never match; leave it out to match all")
    return checked


def text(name: str, value: object, example: str) -> str:
    """Returns ``value``, after checking that it is a string and not empty.

    Raises:
        TypeError: if it is not a string.
        ValueError: if it is empty.
    """
    if not isinstance(value, str):
        raise TypeError(f'{name}={value!r} must be a string, such as "{example}"')
    if not value:
        raise ValueError(f'{name} is empty; pass a string such as "{example}"')
    return value
