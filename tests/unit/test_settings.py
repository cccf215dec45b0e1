"""``HedgingSettings`` and ``HedgeDelay``: the bounds, and what is said of a value beyond them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from datetime import timedelta
from typing import Any

import pytest

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub._core.settings import MAX_HEDGE_DELAY, MIN_HEDGE_DELAY

P95 = HedgeDelay.percentile(0.95, initial=0.3)
DELAYS = "from 0.1 to 10 seconds"
FRACTIONS = "above 0.5 and up to 0.999"
TOKENS = "from 1 to 250"
RATIOS = "from 0.001 to 0.2"


def make(field: str, value: Any) -> Any:
    """Set one field, and return what it reads back as."""
    if field in ("fraction", "initial"):
        return getattr(HedgeDelay.percentile(**{"fraction": 0.9, field: value}), field)
    return getattr(HedgingSettings(**{field: value}), field)


def test_the_defaults() -> None:
    """The defaults, and the bounds of a delay, are those of Google's other clients."""
    settings = HedgingSettings(hedge_delay=1.0, max_tokens=50, refill_ratio=0.1)
    assert HedgingSettings() == settings
    assert settings.second_connection is True
    assert (MIN_HEDGE_DELAY, MAX_HEDGE_DELAY) == (0.1, 10)
    arguments = inspect.signature(HedgingSettings).parameters.values()
    fields = dataclasses.fields(HedgingSettings)
    assert [(one.name, one.default) for one in fields] == [(a.name, a.default) for a in arguments]
    assert HedgeDelay.percentile(0.9) == HedgeDelay(fraction=0.9, initial=1.0)
    assert HedgeDelay(fraction=0.9).initial == 1.0


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("hedge_delay", [0.1, 10, 10.0, P95]),
        ("max_tokens", [1, 250]),
        ("refill_ratio", [0.001, 0.2]),
        ("second_connection", [True, False]),
        ("fraction", [math.nextafter(0.5, 1), 0.501, 0.95, 0.999]),
        ("initial", [0.1, 1, 10.0]),
    ],
)
def test_the_bounds_are_inclusive(field: str, values: list[Any]) -> None:
    """Each bound itself is taken, but for the lower one of a percentile, and reads back."""
    assert [make(field, value) for value in values] == values


@pytest.mark.parametrize("field", ["hedge_delay", "initial"])
def test_a_timedelta_reads_back_as_seconds(field: str) -> None:
    """A delay may be a timedelta, and the attribute is always a number of seconds."""
    for delay in (timedelta(milliseconds=100), timedelta(seconds=10)):
        assert make(field, delay) == delay.total_seconds()
    for whole in (1, timedelta(seconds=1)):
        assert isinstance(make(field, whole), float)
    assert isinstance(make("refill_ratio", 0.1), float)
    assert HedgeDelay(fraction=0.9, initial=timedelta(seconds=2)).initial == 2.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "bounds", "beyond", "wrong"),
    [
        (
            *("hedge_delay", DELAYS),
            [0.0999, 10.0005, 0, -1, math.nan, math.inf, timedelta(microseconds=99_999)],
            ["1", None, True],
        ),
        (
            *("initial", DELAYS),
            [0.0999, 10.0005, 0, -1, math.nan, math.inf, timedelta.max],
            ["1", None, True, P95],
        ),
        (
            *("fraction", FRACTIONS),
            [0.5, 0.9991, 1, 0, -0.95, 95, math.nan],
            ["0.95", None, True, timedelta(seconds=0.9)],
        ),
        ("max_tokens", TOKENS, [0, 251, -5], [10.0, True, "50", None, timedelta(1)]),
        (
            *("refill_ratio", RATIOS),
            [0.0009, 0.2001, 0, 1, math.nan, -math.inf],
            ["0.1", False, None, 0.1j, timedelta(0.1)],
        ),
        ("second_connection", "True or False", [], [1, "no", None]),
    ],
)
def test_what_is_refused(field: str, bounds: str, beyond: list[Any], wrong: list[Any]) -> None:
    """A value beyond the bounds or of a wrong type is an error that names field, value, bounds."""
    for error, values in ((ValueError, beyond), (TypeError, wrong)):
        for value in values:
            with pytest.raises(error, match=rf"^{field} .*{bounds}") as caught:
                make(field, value)
            assert repr(value) in str(caught.value)


@pytest.mark.parametrize("delay", [1.0, P95])
def test_settings_are_values(delay: Any) -> None:
    """They compare, hash, take a replacement, and cannot change under a publisher."""
    settings = HedgingSettings(hedge_delay=delay)
    assert settings != HedgingSettings(hedge_delay=0.3)
    assert hash(settings) == hash(dataclasses.replace(settings))
    assert dataclasses.replace(settings, max_tokens=7) == HedgingSettings(delay, max_tokens=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.hedge_delay = 2.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        P95.initial = 2.0  # type: ignore[misc]


def test_the_initial_hedge_delay() -> None:
    """It is known before anything was measured; a fixed one is always that."""
    assert HedgingSettings(hedge_delay=0.4).initial_hedge_delay == 0.4
    assert HedgingSettings(hedge_delay=P95).initial_hedge_delay == 0.3


def test_a_ratio_that_does_not_pay_for_the_percentile() -> None:
    """It is warned of where the settings are made; one that does is not."""
    with pytest.warns(UserWarning, match=r"refill_ratio \(0.05\) must exceed 0.05") as warned:
        HedgingSettings(hedge_delay=P95, refill_ratio=0.05)
    assert warned[0].filename == __file__
    HedgingSettings(hedge_delay=P95, refill_ratio=0.06)
