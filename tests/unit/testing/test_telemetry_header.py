"""The reader of the header that carries an attempt's number."""

from __future__ import annotations

import base64

import pytest
from google.pubsub_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.testing import telemetry_header


@pytest.mark.parametrize(
    ("header", "decoded"),
    [
        ("CgA=", (0, None)),
        ("CgIIAQ==", (1, None)),
        (b"CgIIAQ==", (1, None)),
        ("CgoIAhIGCAMQgMq17gE=", None),
    ],
)
def test_known_headers(header: str | bytes, decoded: tuple[int, float | None] | None) -> None:
    """Headers as other clients send them decode; one that is cut short does not."""
    assert telemetry_header.decode(header) == decoded


@pytest.mark.parametrize(
    "header", ["", "====", "not base64!", "CgI=", "Cv////8P", "Dw==", "/////////////////w=="]
)
def test_a_header_that_makes_no_sense_gives_none(header: str) -> None:
    """A client's mistake must not break the server."""
    assert telemetry_header.decode(header) is None


@given(st.binary(max_size=64))
def test_no_header_raises(content: bytes) -> None:
    """Whatever the header holds, decoding ends with a result or None."""
    telemetry_header.decode(base64.b64encode(content))


def test_fields_of_later_versions_are_skipped() -> None:
    """Unknown fields of every wire type leave the known ones readable."""
    operation = b"\x08\x02" + b"\x18\x07" + b"\x21" + bytes(8) + b"\x2d" + bytes(4) + b"\x32\x01x"
    message = b"\x0a" + bytes([len(operation)]) + operation + b"\x10\x01"
    assert telemetry_header.decode(base64.b64encode(message)) == (2, None)


@pytest.mark.skipif(
    not hasattr(types, "PubsubClientTelemetry"),
    reason="this google-cloud-pubsub is older than the telemetry type",
)
@given(
    count=st.integers(min_value=0, max_value=2**31 - 1),
    seconds=st.integers(min_value=0, max_value=2**33),
    nanos=st.integers(min_value=0, max_value=999_999_999),
)
def test_reads_what_the_official_type_writes(count: int, seconds: int, nanos: int) -> None:
    """The reader agrees with the type that newer official clients have."""
    telemetry = types.PubsubClientTelemetry.pb()()
    telemetry.publish_operation.hedged_attempt_count = count
    telemetry.publish_operation.publish_start_time.seconds = seconds
    telemetry.publish_operation.publish_start_time.nanos = nanos
    decoded = telemetry_header.decode(base64.b64encode(telemetry.SerializeToString()))
    assert decoded is not None
    assert decoded[0] == count
    assert decoded[1] == pytest.approx(seconds + nanos / 1e9)
