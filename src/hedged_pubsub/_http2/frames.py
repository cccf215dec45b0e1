"""The frames of HTTP/2 (RFC 9113), and the error that ends a connection."""

from __future__ import annotations

import enum
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first, before its settings."""

HEAD_SIZE: Final = 9
DEFAULT_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = 2**24 - 1
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


class ErrorCode(enum.IntEnum):
    """Why a stream was reset, or a connection ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(Exception):
    """The server broke the protocol, or asks us to hold too much: the connection cannot go on.

    Attributes:
        code: What the GOAWAY frame says to the server.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


# The length has 24 bits, which no format has: two high bytes and a low one.
_HEAD: Final = struct.Struct(">HBBBI")
unpack_head: Final = _HEAD.unpack_from
_pack_head: Final = _HEAD.pack
_SETTING: Final = struct.Struct(">HI")


def head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the first nine bytes of a frame."""
    return _pack_head(size >> 8, size & 0xFF, kind, flags, stream_id)


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    body = b"".join(_SETTING.pack(*one) for one in values.items())
    return head(len(body), SETTINGS, 0, 0) + body


def parse_settings(body: bytes) -> list[tuple[int, int]]:
    """Return the identifiers and values of a SETTINGS frame, in their order."""
    if len(body) % _SETTING.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(body)} bytes")
    return [(key, value) for key, value in _SETTING.iter_unpack(body)]


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return head(4, WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4, "big")


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return head(4, RST_STREAM, 0, stream_id) + code.to_bytes(4, "big")


def goaway(code: ErrorCode) -> bytes:
    """Return the GOAWAY frame of a client, which has processed no stream of the server's."""
    return head(8, GOAWAY, 0, 0) + bytes(4) + code.to_bytes(4, "big")


def ping(opaque: bytes, *, is_ack: bool = False) -> bytes:
    """Return a PING frame, or the answer to one."""
    return head(8, PING, ACK if is_ack else 0, 0) + opaque


def without_padding(flags: int, body: bytes) -> bytes:
    """Return what a DATA or HEADERS frame carries, without padding and priority."""
    begin, end = 0, len(body)
    if flags & PADDED:
        if not body:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its padding")
        begin, end = 1, end - body[0]
    if flags & HAS_PRIORITY:
        begin += 5
    if begin > end:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame that is shorter than its padding")
    return body[begin:end]
