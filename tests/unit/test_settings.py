"""``HedgingSettings``: the bounds, and what is said of a value beyond them."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest

from hedged_pubsub import HedgingSettings


def test_the_defaults() -> None:
    """The defaults are those of Google's other clients."""
    assert HedgingSettings() == HedgingSettings(hedge_delay=1.0, max_tokens=50, refill_ratio=0.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hedge_delay", 0.1),
        ("hedge_delay", 10),
        ("hedge_delay", 10.0),
        ("max_tokens", 1),
        ("max_tokens", 250),
        ("refill_ratio", 0.001),
        ("refill_ratio", 0.2),
    ],
)
def test_the_bounds_are_inclusive(field: str, value: Any) -> None:
    """Each bound itself is accepted."""
    assert getattr(HedgingSettings(**{field: value}), field) == value


@pytest.mark.parametrize("delay", [timedelta(milliseconds=100), timedelta(seconds=10)])
def test_a_timedelta_reads_back_as_seconds(delay: timedelta) -> None:
    """A timedelta is taken, and the attribute is always a number of seconds."""
    settings = HedgingSettings(hedge_delay=delay)
    assert settings.hedge_delay == delay.total_seconds()
    assert isinstance(settings.hedge_delay, float)


@pytest.mark.parametrize(
    ("field", "value", "bounds"),
    [
        ("hedge_delay", 0.0999, "from 0.1 to 10 seconds"),
        ("hedge_delay", 10.0005, "from 0.1 to 10 seconds"),
        ("hedge_delay", 0, "from 0.1 to 10 seconds"),
        ("hedge_delay", -1, "from 0.1 to 10 seconds"),
        ("hedge_delay", math.nan, "from 0.1 to 10 seconds"),
        ("hedge_delay", math.inf, "from 0.1 to 10 seconds"),
        ("hedge_delay", timedelta(microseconds=99_999), "from 0.1 to 10 seconds"),
        ("hedge_delay", timedelta.max, "from 0.1 to 10 seconds"),
        ("max_tokens", 0, "from 1 to 250"),
        ("max_tokens", 251, "from 1 to 250"),
        ("max_tokens", -5, "from 1 to 250"),
        ("refill_ratio", 0.0009, "from 0.001 to 0.2"),
        ("refill_ratio", 0.2001, "from 0.001 to 0.2"),
        ("refill_ratio", 0, "from 0.001 to 0.2"),
        ("refill_ratio", 1, "from 0.001 to 0.2"),
        ("refill_ratio", math.nan, "from 0.001 to 0.2"),
        ("refill_ratio", -math.inf, "from 0.001 to 0.2"),
    ],
)
def test_out_of_range(field: str, value: Any, bounds: str) -> None:
    """A value out of range is a ValueError that names the field, the value and the bounds."""
    with pytest.raises(ValueError, match=field) as caught:
        HedgingSettings(**{field: value})
    assert bounds in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hedge_delay", "1"),
        ("hedge_delay", None),
        ("hedge_delay", True),
        ("max_tokens", 10.0),
        ("max_tokens", 10.5),
        ("max_tokens", True),
        ("max_tokens", "50"),
        ("max_tokens", None),
        ("refill_ratio", "0.1"),
        ("refill_ratio", False),
        ("refill_ratio", None),
        ("refill_ratio", 0.1j),
    ],
)
def test_wrong_type(field: str, value: Any) -> None:
    """A value of a wrong type is a TypeError that names the field, the value and the bounds."""
    with pytest.raises(TypeError, match=rf"{field} must be .* from .* to ") as caught:
        HedgingSettings(**{field: value})
    assert repr(value) in str(caught.value)


def test_it_is_frozen() -> None:
    """Settings cannot change under a publisher that uses them."""
    settings = HedgingSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.hedge_delay = 2.0  # type: ignore[misc]
    assert dataclasses.replace(settings, max_tokens=7) == HedgingSettings(max_tokens=7)
    assert hash(settings) == hash(HedgingSettings())
