"""Argument checks, which return what was checked or raise TypeError or ValueError.

Each error names the argument, its value, the bound and what to pass instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

_MAX: Final = sys.float_info.max


def number(name: str, value: Any, *, minimum: float, maximum: float = _MAX) -> float:
    """Return ``value`` as a float if it is a finite number (a bool is none) in the bounds."""
    return float(_bounded(name, value, (int, float), "a finite number", minimum, maximum))


def positive(name: str, value: object) -> float:
    """Return ``value`` as a float if it is a finite number above 0."""
    if not (checked := number(name, value, minimum=0)):
        raise ValueError(f"{name}={value!r} must be above 0")
    return checked


def integer(name: str, value: Any, *, minimum: int, maximum: float = _MAX) -> int:
    """Return ``value`` if it is an int (a bool is none) in the bounds."""
    return int(_bounded(name, value, (int,), "an int", minimum, maximum))


def integers(name: str, values: object, *, minimum: int) -> frozenset[int]:
    """Return ``values`` as a set if there are any and each is an int of at least ``minimum``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r} must be a collection of ints, such as [1]")
    checked = frozenset(integer(f"{name}[{i}]", v, minimum=minimum) for i, v in enumerate(values))
    if not checked:
        raise ValueError(f"{name} is empty, so it would never match; leave it out to match all")
    return checked


def text(name: str, value: object, example: str) -> str:
    """Return ``value`` if it is a string and not empty."""
    if isinstance(value, str) and value:
        return value
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f'{name}={value!r} must be a string that is not empty, such as "{example}"')


def _bounded(name: str, value: Any, types: Any, kind: str, minimum: float, maximum: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{name}={value!r} must be {kind}")
    if not minimum <= value <= maximum:
        bounds = f"at least {minimum}" if maximum == _MAX else f"between {minimum} and {maximum}"
        raise ValueError(f"{name}={value!r} must be {kind}, {bounds}")
    return value
