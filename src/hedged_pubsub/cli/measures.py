"""Numbers of several measurements: percentiles, survival functions, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

PERCENTILES: Final = {
    "p50": 5_000,
    "p90": 9_000,
    "p95": 9_500,
    "p99": 9_900,
    "p99.9": 9_990,
    "p99.99": 9_999,
    "max": 10_000,
}
"""The percentiles that are shown, by name, in ten-thousandths."""

# Points of a curve that is drawn: more cannot be told apart on paper.
_POINTS: Final = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair(Generic[T_co]):
    """The same thing of both clients."""

    official: T_co
    hedged: T_co

    def map(self, of: Callable[[T_co], U]) -> Pair[U]:
        """Return the pair of what a function makes of each."""
        return Pair(official=of(self.official), hedged=of(self.hedged))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The smallest, the middle and the largest of some numbers."""

    low: float
    median: float
    high: float


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Return the spread of the ratios, pair by pair: both were measured in the same mood."""
    ordered = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    return Spread(low=ordered[0], median=statistics.median(ordered), high=ordered[-1])


def nearest_rank(ordered: Sequence[float], parts: int) -> float:
    """Return the smallest value that so many ten-thousandths of all values do not exceed."""
    # Whole parts: 99.9 % of a count in floating point can land on the next rank.
    if not ordered:
        raise ValueError("ordered must hold at least one value; got none")
    if not 1 <= parts <= 10_000:
        raise ValueError(f"parts must be from 1 to 10000; got {parts!r}")
    return ordered[-(-parts * len(ordered) // 10_000) - 1]


def milliseconds(ordered: Sequence[float], *names: str) -> dict[str, float]:
    """Return percentiles of seconds in milliseconds, by keys such as ``p99_9_ms``."""
    return {
        f"{name.replace('.', '_')}_ms": round(1000 * nearest_rank(ordered, PERCENTILES[name]), 3)
        for name in names
    }


def survival(latencies: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the survival function: milliseconds, and the share of latencies at least that slow.

    The slowest one has a share above zero, which a logarithmic axis can show. Of many latencies,
    which are in seconds, those are left out that nobody could see.
    """
    ordered = sorted(latencies)
    count = len(ordered)
    left: Iterable[int] = range(1, count + 1)
    if count > _POINTS:  # ever closer towards the slow end, as the logarithmic axis is
        left = sorted({max(1, round(count ** (step / _POINTS))) for step in range(_POINTS + 1)})
    from_slowest = list(left)[::-1]
    return [1000 * ordered[-rank] for rank in from_slowest], [rank / count for rank in from_slowest]
