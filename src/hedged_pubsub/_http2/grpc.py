"""What gRPC says in HTTP/2's terms: timeouts, texts, binary metadata, and which status is which.

The sources are the documents "gRPC over HTTP2" and "HTTP to gRPC status code mapping" of gRPC.
"""

from __future__ import annotations

import base64
import binascii
import enum
import math
from typing import Final
from urllib.parse import unquote_to_bytes

from hedged_pubsub._http2.frames import ErrorCode


class Status(enum.IntEnum):
    """The status codes of gRPC that this side uses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_OF_HTTP: Final[dict[int, Status]] = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}
_OF_RESET: Final[dict[int, Status]] = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
    ErrorCode.STREAM_CLOSED: Status.UNKNOWN,
    ErrorCode.HTTP_1_1_REQUIRED: Status.UNKNOWN,
}
_MAX_DIGITS: Final = 10**8 - 1
"""A timeout has at most eight digits."""


def status_of_http(status: int) -> Status:
    """Return the gRPC status of an answer that has none, only one of HTTP."""
    return _OF_HTTP.get(status, Status.UNKNOWN)


def status_of_reset(code: int) -> Status:
    """Return the gRPC status of a call that the server has reset."""
    return _OF_RESET.get(code, Status.INTERNAL)


def encode_timeout(seconds: float) -> bytes:
    """Return the value of ``grpc-timeout``: never less than ``seconds``, but for years."""
    if seconds <= 0:
        return b"1n"
    if seconds % 1 == 0 and seconds <= _MAX_DIGITS:
        return b"%dS" % seconds
    microseconds = seconds * 1e6
    for unit, size in ((b"u", 1), (b"m", 1e3), (b"S", 1e6), (b"H", 3.6e9)):
        if microseconds <= _MAX_DIGITS * size:
            return b"%d%s" % (math.ceil(microseconds / size), unit)
    return b"%dH" % _MAX_DIGITS


def decode_details(value: bytes) -> str:
    """Return the text of ``grpc-message``: UTF-8 with percent signs before hexadecimal bytes.

    What is neither stays as it is: the text of an error is never worth another error.
    """
    return unquote_to_bytes(value).decode("utf-8", "replace")


def decode_metadata(fields: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str | bytes], ...]:
    """Return metadata as gRPC gives it to a program: text, and bytes where a name ends in -bin."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.endswith(b"-bin"):
            # Several values may share one field; padding may be left out.
            for one in value.split(b","):
                try:
                    stripped = one.strip().rstrip(b"=")
                    decoded = base64.b64decode(stripped + b"=" * (-len(stripped) % 4))
                except (binascii.Error, ValueError):
                    continue
                metadata.append((name.decode("ascii"), decoded))
        else:
            metadata.append((name.decode("ascii"), value.decode("utf-8", "replace")))
    return tuple(metadata)
