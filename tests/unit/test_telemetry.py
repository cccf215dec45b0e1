"""The telemetry header (R10)."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import telemetry

_TELEMETRY: Any = getattr(types, "PubsubClientTelemetry", None)


@pytest.mark.parametrize(
    ("attempt", "start_time", "value"),
    [
        (0, None, "CgA="),
        (1, None, "CgIIAQ=="),
        (2, None, "CgIIAg=="),
        (0, 1700000000.5, "Cg4SDAiA4s+qBhCAyrXuAQ=="),
        (2, 1700000000.5, "ChAIAhIMCIDiz6oGEIDKte4B"),
    ],
)
def test_golden_values(attempt: int, start_time: float | None, value: str) -> None:
    """The values that Google's other clients send for the same attempt."""
    assert telemetry.encode(attempt, start_time) == value


@pytest.mark.skipif(_TELEMETRY is None, reason="this google-cloud-pubsub has no such type yet")
@given(
    attempt=st.integers(0, 2**31 - 1),
    start_time=st.none() | st.floats(0, 2**33, allow_nan=False),
)
def test_it_is_what_the_generated_type_makes(attempt: int, start_time: float | None) -> None:
    """The official type reads it, and writes the same bytes."""
    encoded = base64.b64decode(telemetry.encode(attempt, start_time))
    message = _TELEMETRY.deserialize(encoded)
    assert message.publish_operation.hedged_attempt_count == attempt
    if start_time is not None:
        read = message.publish_operation.publish_start_time.timestamp()
        assert read == pytest.approx(start_time, abs=1e-5)
    assert _TELEMETRY.serialize(message) == encoded
