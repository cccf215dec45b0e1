"""A hedge delay that follows the service: a percentile of what originals took lately."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

MIN_HEDGE_DELAY: Final = 0.1
MAX_HEDGE_DELAY: Final = 10.0

# Up to here a window of a thousand can tell: of a thousand requests, one is slower.
_MAX_FRACTION: Final = 0.999

# A window in which ten samples are expected above the percentile: with fewer the delay would be
# the luck of one or two requests, with more it would follow late. 0.95 makes it 200.
_SAMPLES_ABOVE: Final = 10
_MIN_WINDOW: Final = 200
_MAX_WINDOW: Final = 1000
# Fewer than this say little about any percentile.
_MIN_SAMPLES: Final = 20
_GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    unit: str = "",
    kind: str = "a number",
    types: tuple[type, ...] = (int, float),
) -> float:
    """Return a number, of a timedelta its seconds, if it is of these types and from low to high.

    Raises:
        TypeError: If it is of another type, ``bool`` included.
        ValueError: If it is out of range, or NaN.
    """
    bounds = f"from {low:g} to {high:g}{unit}"
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{name} must be {kind} {bounds}; got {value!r}")
    number: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if not low <= number <= high:
        raise ValueError(f"{name} must be {bounds}; got {value!r}")
    return float(number)


def delay_in_seconds(name: str, value: object, alternatives: str = "") -> float:
    """Return a hedge delay in seconds; ``alternatives`` is what else the argument can be."""
    kind, types = f"a number or a timedelta{alternatives},", (int, float, timedelta)
    low, high = MIN_HEDGE_DELAY, MAX_HEDGE_DELAY
    return check_number(name, value, low, high, unit=" seconds", kind=kind, types=types)


@dataclass(frozen=True, kw_only=True, slots=True)
class HedgeDelay:
    """A hedge delay that is measured; made by `HedgeDelay.percentile`.

    Each topic has its own. It is never below 0.1 nor above 10 seconds, and the topic's token
    bucket bounds the hedges as it does for a fixed delay.

    Attributes:
        fraction: The part of a topic's recent originals that was faster than the delay.
        initial: The delay in seconds until enough of them were measured.

    Raises:
        TypeError: If a value is not of the type that `percentile` takes.
        ValueError: If a value is out of its range, or NaN.
    """

    fraction: float
    initial: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
        bounds = f"above 0.5 and up to {_MAX_FRACTION:g}, such as 0.95"
        if isinstance(self.fraction, bool) or not isinstance(self.fraction, (int, float)):
            raise TypeError(f"fraction must be a number {bounds}; got {self.fraction!r}")
        if not 0.5 < self.fraction <= _MAX_FRACTION:
            raise ValueError(f"fraction must be {bounds}; got {self.fraction!r}")
        # `percentile` takes a timedelta as well.
        object.__setattr__(self, "initial", delay_in_seconds("initial", self.initial))

    @classmethod
    def percentile(cls, fraction: float, *, initial: float | timedelta = 1.0) -> HedgeDelay:
        """Make a delay that is a percentile of what a topic's recent originals took.

        The percentile is exact, over the last 200 requests, or more beyond 0.95: ten times as
        many as it takes for one to be slower, up to 1,000. The refill ratio must exceed
        ``1 - fraction``, or the bucket runs dry; `HedgingSettings` warns of that.

        Args:
            fraction: Which percentile, as a number above 0.5 and up to 0.999: 0.95 for the time
                that one request in twenty exceeds.
            initial: The delay until enough requests were measured: 20 for 0.95, 99 for 0.99.
                Seconds as a number, or a ``timedelta``; from 0.1 to 10 seconds.

        Raises:
            TypeError: If a value is not of the type named above.
            ValueError: If a value is out of its range, or NaN.
        """
        return cls(fraction=fraction, initial=initial)  # type: ignore[arg-type]

    def is_paid_by(self, refill_ratio: float) -> bool:
        """Tell whether a refill ratio exceeds the share of requests slower than the delay."""
        return refill_ratio > round(1 - self.fraction, 9)


class MeasuredDelay:
    """The hedge delay of one topic, out of what its originals took.

    ``initial`` is the delay in seconds until enough of them were measured, if not the setting's.

    Without clock or lock: whoever drives the attempt engines serialises the calls. The window is
    measured in requests, not in seconds: after an idle night the delay is that of the evening
    before, until new requests have taken the place of the old ones.

    An original that loses to a hedge is cancelled, and how long it would have taken stays unknown.
    It must be recorded all the same, or only the originals faster than the delay are left, the
    percentile of these is a shorter delay, and so on down to the minimum. The time that it had
    been in flight is a lower bound; but what was cut off while the delay was short counts as fast
    once it is longer (8 % hedged instead of 5 %, where hedges are quick). So a loser is taken to be
    one of the samples above its bound, each of them in turn: the Kaplan-Meier estimate.
    """

    # No sketch (DDSketch, t-digest, …): those save memory where samples are many and merged. Here
    # a window of 200 is small, exact, forgets in a known time, and needs nothing installed.
    __slots__ = ("_enough", "_fraction", "_initial", "_ordered", "_recent", "_turn", "_window")

    def __init__(self, setting: HedgeDelay, initial: float | None = None) -> None:
        self._fraction = setting.fraction
        self._initial = setting.initial if initial is None else initial
        above = 1 - setting.fraction
        self._window = max(_MIN_WINDOW, min(math.ceil(_SAMPLES_ABOVE / above), _MAX_WINDOW))
        # As many as it takes for the percentile to lie below the largest of them.
        self._enough = max(_MIN_SAMPLES, math.ceil(setting.fraction / above))
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._turn = 0.0

    def record(self, seconds: float, *, lost: bool = False) -> None:
        """Take in the seconds from sending an original to its success, or until it lost."""
        if lost:
            seconds = self._one_above(seconds)
        if len(self._recent) == self._window:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(seconds)
        insort(self._ordered, seconds)

    @property
    def current(self) -> float:
        """The hedge delay in seconds for the next batch, from 0.1 to 10."""
        count = len(self._ordered)
        if count < self._enough:
            return self._initial
        # The k-th of n samples is exceeded by the next one with probability 1 - k / (n + 1); k is
        # rounded up, so that on average no more are hedged than was asked for.
        rank = min(count, math.ceil(self._fraction * (count + 1)))
        return min(max(self._ordered[rank - 1], MIN_HEDGE_DELAY), MAX_HEDGE_DELAY)

    def _one_above(self, bound: float) -> float:
        """Return a sample above the bound, each in turn; the bound if there is none."""
        first = bisect_right(self._ordered, bound)
        if first == len(self._ordered):
            return bound
        # Steps of the golden ratio spread evenly over any number of samples, without randomness.
        self._turn = (self._turn + _GOLDEN_RATIO) % 1
        return self._ordered[first + int(self._turn * (len(self._ordered) - first))]
