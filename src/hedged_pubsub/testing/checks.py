"""Argument checks, whose errors name the argument, its value and what it must be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hedged_pubsub._core.hedge_delay import check_number

MAX: Final = 1e12
"""As good as without end, in seconds, in bytes a second, or as a count."""

ABOVE_0: Final = 1e-9
"""The least value of what must not be 0."""


def number(name: str, value: object, low: float = 0.0, high: float = MAX) -> float:
    """Return ``value`` as a float if it is a number (a bool is none) in the bounds."""
    return check_number(name, value, low, high)


def integer(name: str, value: Any, low: int, high: float = MAX) -> int:
    """Return ``value`` if it is an int (a bool is none) in the bounds."""
    check_number(name, value, low, high, kind="an int", types=(int,))
    return int(value)


def integers(name: str, values: object, low: int) -> frozenset[int]:
    """Return ``values`` as a set if there are any and each is an int of at least ``low``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r} must be a collection of ints, such as [1]")
    checked = frozenset(integer(f"{name}[{i}]", v, low) for i, v in enumerate(values))
    if not checked:
        raise ValueError(f"{name} is empty, so it would never match; leave it out to match all")
    return checked


def text(name: str, value: object, example: str) -> str:
    """Return ``value`` if it is a string and not empty."""
    if isinstance(value, str) and value:
        return value
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f'{name}={value!r} must be a string that is not empty, such as "{example}"')
