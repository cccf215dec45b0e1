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
# The largest draw lies at 8.2 standard deviations: with more, its latency would overflow a float.
_MAX_SIGMA = 50


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
        checks.number("seconds", self.seconds)

    def quantile(self, fraction: float) -> float:  # noqa: ARG002 - the same for every draw
        """Return ``seconds``."""
        return self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """The logarithm of the latency is normally distributed: a body with a moderate tail.

    Attributes:
        median: half of the calls take longer; seconds, above 0.
        sigma: standard deviation of the logarithm; 0 to 50. At 0.5, 1 % of the calls take
            more than 3.2 medians; at 1.0, more than 10.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        """Check the values."""
        checks.number("median", self.median, checks.ABOVE_0)
        checks.number("sigma", self.sigma, high=_MAX_SIGMA)

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
        checks.number("minimum", self.minimum, checks.ABOVE_0)
        checks.number("alpha", self.alpha, checks.ABOVE_0)

    def quantile(self, fraction: float) -> float:
        """Return the latency in seconds that ``fraction`` of the calls stay below."""
        # A tiny alpha overflows a float; a day is as good as never in a test.
        exponent = -math.log1p(-fraction) / self.alpha
        return min(self.minimum * math.exp(min(exponent, 700.0)), 86_400.0)
