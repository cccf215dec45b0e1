"""Numbers that were measured several times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The smallest, the middle and the largest of some numbers."""

    low: float
    median: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of numbers.

    Raises:
        ValueError: If there are none.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("values must hold at least one number; got none")
    return Spread(low=ordered[0], median=statistics.median(ordered), high=ordered[-1])


def ratios(numerators: Sequence[T], denominators: Sequence[T], of: Callable[[T], float]) -> Spread:
    """Return the spread of the ratios of pairs.

    Pair by pair rather than median by median: both of a pair were measured on the same machine in
    the same mood.

    Args:
        numerators: The first of each pair.
        denominators: The second of each pair; as many.
        of: The number to compare, above 0.
    """
    return spread(of(a) / of(b) for a, b in zip(numerators, denominators, strict=True))


def median(measured: Sequence[T], of: Callable[[T], float]) -> float:
    """Return the middle one of a number over all measurements."""
    return statistics.median(map(of, measured))
