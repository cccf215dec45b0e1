"""The request header by which the service tells hedges from originals."""

from __future__ import annotations

import binascii
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from hedged_pubsub._wire import varint

HEADER: Final = "x-goog-pubsub-client-telemetry"

# Field numbers and wire types of google.pubsub.v1.PubsubClientTelemetry:
#   publish_operation = 1 { int32 hedged_attempt_count = 1; Timestamp publish_start_time = 2; }
#   Timestamp { int64 seconds = 1; int32 nanos = 2; }
# What is around the timestamp is written by hand, because the type came to google-cloud-pubsub
# later than the rest of what this package needs, and because it is on the path of every request.
# A test compares the two.
_VARINT_1: Final = b"\x08"
_MESSAGE_1: Final = b"\x0a"
_MESSAGE_2: Final = b"\x12"


def encode(attempt: int, publish_start_time: float | None = None) -> str:
    """Encode the header's value for one attempt.

    Args:
        attempt: 0 for the original, 1, 2, … for hedges.
        publish_start_time: Wall time of the oldest ``publish()`` in the batch, in seconds since
            the epoch; left out if ``None``.

    Returns:
        The serialized telemetry message in standard base64.
    """
    operation = _VARINT_1 + varint(attempt) if attempt else b""
    if publish_start_time is not None:
        seconds = int(publish_start_time)
        nanos = int((publish_start_time - seconds) * 1e9)
        timestamp: bytes = Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
        operation += _MESSAGE_2 + varint(len(timestamp)) + timestamp
    telemetry = _MESSAGE_1 + varint(len(operation)) + operation
    return binascii.b2a_base64(telemetry, newline=False).decode("ascii")
