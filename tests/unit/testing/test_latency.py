"""The latency distributions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.testing import Fixed, Latency, LogNormal, Pareto

FRACTIONS = st.floats(min_value=2.0**-54, max_value=1 - 2.0**-53)


def test_fixed_is_fixed() -> None:
    """Every draw gives the same latency."""
    assert {Fixed(0.2).quantile(fraction) for fraction in (0.001, 0.5, 0.999)} == {0.2}


def test_lognormal_has_its_median_and_tail() -> None:
    """Half of the calls exceed the median; one standard deviation is a factor of e to the sigma."""
    latency = LogNormal(median=0.01, sigma=0.5)
    assert latency.quantile(0.5) == pytest.approx(0.01)
    assert latency.quantile(0.8413447) == pytest.approx(0.01 * math.exp(0.5), rel=1e-5)
    assert latency.quantile(0.99) == pytest.approx(0.032, rel=0.01)


def test_pareto_has_its_minimum_and_tail() -> None:
    """The chance to exceed x is (minimum / x) ** alpha."""
    latency = Pareto(minimum=0.01, alpha=1.5)
    assert latency.quantile(2.0**-54) == pytest.approx(0.01)
    for exceeded in (0.1, 0.01, 0.001):
        seconds = latency.quantile(1 - exceeded)
        assert (0.01 / seconds) ** 1.5 == pytest.approx(exceeded)


@pytest.mark.parametrize(
    "latency", [LogNormal(median=0.01, sigma=2), Pareto(minimum=0.01, alpha=0.001), Fixed(1)]
)
@given(one=FRACTIONS, other=FRACTIONS)
def test_quantiles_are_finite_and_ordered(latency: Latency, one: float, other: float) -> None:
    """Whatever is drawn, the latency is a usable number, and a larger draw is not faster."""
    low, high = (latency.quantile(fraction) for fraction in sorted((one, other)))
    assert 0 <= low <= high < math.inf


@pytest.mark.parametrize(
    ("make", "arguments", "error", "words"),
    [
        (Fixed, {"seconds": -0.1}, ValueError, "seconds=-0.1"),
        (LogNormal, {"median": 0, "sigma": 1}, ValueError, "median=0 must be above 0"),
        (LogNormal, {"median": 1, "sigma": -1}, ValueError, "sigma=-1"),
        (Pareto, {"minimum": 0.0, "alpha": 1}, ValueError, "minimum=0.0 must be above 0"),
        (Pareto, {"minimum": 1, "alpha": 0}, ValueError, "alpha=0 must be above 0"),
        (Pareto, {"minimum": "1", "alpha": 1}, TypeError, "minimum='1' must be a number"),
    ],
)
def test_bad_values_are_refused(
    make: Any, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """An error names the argument, its value and what is allowed."""
    with pytest.raises(error, match=words):
        make(**arguments)
