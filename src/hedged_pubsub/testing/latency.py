"""Latency distributions: how long the server takes to answer a call that meets no fault.

Each maps one uniform draw to seconds (its quantile function). So a call takes exactly one draw
whatever the distribution is, and another distribution leaves all other draws as they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from hedged_pubsub.testing import checks

_STANDARD_NORMAL = NormalDist()


class Latency(Protocol):
    """A distribution of answer times."""

    def quantile(self, fraction: float) -> float:
        """Return the latency in seconds that ``fraction`` (in (0, 1)) of the calls stay below."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every call takes the same time.

    Attributes:
        seconds: the latency; at least 0.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Check the values."""
        checks.number("seconds", self.seconds, minimum=0)

    def quantile(self, fraction: float) -> float:  # noqa: ARG002 - the same for every draw
        """Return ``seconds``."""
        return self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """The logarithm of the latency is normally distributed: a body with a moderate tail.

    Attributes:
        median: half of the calls take longer; seconds, above 0.
        sigma: standard deviation of the logarithm; at least 0. At 0.5, 1 % of the calls take
            more than 3.2 medians; at 1.0, more than 10.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        """Check the values."""
        checks.positive("median", self.median)
        checks.number("sigma", self.sigma, minimum=0)

    def quantile(self, fraction: float) -> float:
        """Return the latency in seconds that ``fraction`` of the calls stay below."""
        return self.median * math.exp(self.sigma * _STANDARD_NORMAL.inv_cdf(fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """A power law: a heavy tail, the smaller ``alpha`` the heavier.

    Attributes:
        minimum: no call is faster; seconds, above 0.
        alpha: the tail's exponent, above 0. At 1.5, 1 % of the calls take more than 21 minima.
    """

    minimum: float
    alpha: float

    def __post_init__(self) -> None:
        """Check the values."""
        checks.positive("minimum", self.minimum)
        checks.positive("alpha", self.alpha)

    def quantile(self, fraction: float) -> float:
        """Return the latency in seconds that ``fraction`` of the calls stay below."""
        # A tiny alpha overflows a float; a day is as good as never in a test.
        exponent = -math.log1p(-fraction) / self.alpha
        return min(self.minimum * math.exp(min(exponent, 700.0)), 86_400.0)
