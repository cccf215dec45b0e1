"""Reads the header that carries an attempt's number.

``x-goog-pubsub-client-telemetry`` is base64 of this message, which only newer releases of
google-cloud-pubsub have as a type; the server must understand it under older ones, too::

    PubsubClientTelemetry { PublishOperation publish_operation = 1; }
    PublishOperation { int32 hedged_attempt_count = 1; Timestamp publish_start_time = 2; }
    Timestamp { int64 seconds = 1; int32 nanos = 2; }
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

HEADER = "x-goog-pubsub-client-telemetry"

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def decode(header: str | bytes) -> tuple[int, float | None] | None:
    """Returns the attempt number and the publish start time (seconds since the epoch, or None).

    Returns None for a header that does not decode: a client's mistake must show in the records,
    not break the server.
    """
    try:
        operation, number, start_time = (
            _last_bytes(base64.b64decode(header, validate=True), 1),
            0,
            None,
        )
        if operation is None:
            return None
        for field, value in _fields(operation):
            if field == 1 and isinstance(value, int):
                number = value
            elif field == 2 and isinstance(value, bytes):
                start_time = _seconds(value)
    except (binascii.Error, ValueError, IndexError):
        return None
    return number, start_time


def _seconds(timestamp: bytes) -> float:
    parts = {field: value for field, value in _fields(timestamp) if isinstance(value, int)}
    return parts.get(1, 0) + parts.get(2, 0) / 1e9


def _last_bytes(message: bytes, wanted: int) -> bytes | None:
    found = [value for field, value in _fields(message) if field == wanted]
    return found[-1] if found and isinstance(found[-1], bytes) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field: an int for a varint, bytes for a nested message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is not in use")
        if position + length > len(message):
            raise ValueError("the message ends inside a field")
        yield tag >> 3, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than ten bytes")
