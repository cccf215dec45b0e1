"""The reader of the header that carries an attempt's number."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.testing.publish import decode_telemetry


@pytest.mark.parametrize(
    ("header", "decoded"),
    [
        ("CgA=", (0, None)),  # as other clients send them
        ("CgIIAQ==", (1, None)),
        (b"CgIIAQ==", (1, None)),
        ("Cg4SDAiA4s+qBhCAyrXuAQ==", (0, 1_700_000_000.5)),
        ("ChAIAhIMCIDiz6oGEIDKte4B", (2, 1_700_000_000.5)),
        ("Cg0IAhgHIQAAAAAAAAAAEAE=", (2, None)),  # with a varint and eight bytes of later versions
        ("CgoIAhIGCAMQgMq17gE=", None),  # cut short
        ("", None),
        ("====", None),
        ("not base64!", None),
        ("CgI=", None),
        ("Cv////8P", None),
        ("Dw==", None),
        ("/////////////////w==", None),
    ],
)
def test_known_headers(header: str | bytes, decoded: tuple[int, float | None] | None) -> None:
    """A client's mistake does not break the server, and unknown fields hide no known ones."""
    assert decode_telemetry(header) == decoded


@given(st.binary(max_size=64))
def test_no_header_raises(content: bytes) -> None:
    """Whatever the header holds, decoding ends with a result or None."""
    decode_telemetry(base64.b64encode(content))
