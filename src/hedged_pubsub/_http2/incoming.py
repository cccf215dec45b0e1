"""What a server sends, cut into frames, each header block in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hedged_pubsub._http2 import frames
from hedged_pubsub._http2.frames import (
    ACK,
    CONTINUATION,
    DEFAULT_MAX_FRAME,
    END_HEADERS,
    HEAD_SIZE,
    HEADERS,
    SETTINGS,
    ErrorCode,
    Http2Error,
    unpack_head,
)
from hedged_pubsub._http2.headers import MAX_LIST

MAX_BLOCK: Final = 2 * MAX_LIST
"""Bytes of an encoded header block, in however many frames."""

MAX_FRAGMENTS: Final = 32
"""Frames that a header block may come in: empty ones could go on for ever."""

Frame = tuple[int, int, int, bytes]
"""Its type, its flags, the number of its stream, and what it carries."""


class Incoming:
    """Cuts bytes into frames. It holds one frame that is not whole, and one header block, at most.

    The frames it returns are of known types, and no CONTINUATION is among them. HEADERS have lost
    their padding and their priority; DATA have not, for padding counts against windows.
    """

    __slots__ = ("_block", "_block_of", "_fragments", "_is_first", "_rest")

    def __init__(self) -> None:
        self._is_first = True
        self._rest = b""
        self._block: bytearray | None = None
        self._block_of = (0, 0)  # the flags and the stream of the HEADERS frame
        self._fragments = 0

    def read(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that end in ``data``. Raise Http2Error where there can be none."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= HEAD_SIZE:
            high, low, kind, flags, stream_id = unpack_head(data, at)
            begin = at + HEAD_SIZE
            stop = begin + (high << 8 | low)
            if stop - begin > DEFAULT_MAX_FRAME:
                raise self._too_large(data, stop - begin)
            if stop > end:
                break
            at = stop
            if self._is_first:
                self._check_first(kind, flags)
            stream_id &= 0x7FFF_FFFF  # the highest bit is reserved
            if self._block is not None or kind == CONTINUATION:
                block = self._go_on(kind, flags, stream_id, data[begin:stop])
                if block is not None:
                    yield HEADERS, self._block_of[0], stream_id, block
            elif kind == HEADERS:
                block = frames.without_padding(flags, data[begin:stop])
                if flags & END_HEADERS:
                    yield kind, flags, stream_id, block
                else:
                    self._block, self._block_of = bytearray(block), (flags, stream_id)
                    self._fragments = 1
            elif kind < CONTINUATION:
                yield kind, flags, stream_id, data[begin:stop]
        self._rest = data[at:]

    def _go_on(self, kind: int, flags: int, stream_id: int, body: bytes) -> bytes | None:
        """Go on with a header block; return it once it is whole."""
        if self._block is None or kind != CONTINUATION or stream_id != self._block_of[1]:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block in frames that do not match")
        self._block += body
        self._fragments += 1
        if len(self._block) > MAX_BLOCK or self._fragments > MAX_FRAGMENTS:
            text = f"a header block of more than {MAX_BLOCK} bytes or {MAX_FRAGMENTS} frames"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text)
        if not flags & END_HEADERS:
            return None
        block, self._block = bytes(self._block), None
        return block

    def _check_first(self, kind: int, flags: int) -> None:
        if kind != SETTINGS or flags & ACK:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._is_first = False

    def _too_large(self, data: bytes, size: int) -> Http2Error:
        text = f"a frame of {size} bytes, where {DEFAULT_MAX_FRAME} are allowed"
        if self._is_first:
            text = f"the server does not speak HTTP/2; it says {bytes(data[:32])!r}"
        return Http2Error(ErrorCode.FRAME_SIZE_ERROR, text)
