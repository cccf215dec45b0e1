"""What is to be sent to a server, as far as its windows allow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from hedged_pubsub._http2 import frames
from hedged_pubsub._http2.call import Call, pack_prefix
from hedged_pubsub._http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    ErrorCode,
    Http2Error,
    head,
)

MAX_REPLIES: Final = 1_000
"""Acknowledgements and resets that wait to be sent, because the server sends and does not read."""


class Outgoing:
    """The bytes to send, and the messages that the server's windows hold back.

    Attributes:
        max_frame: The bytes that a frame may carry.
    """

    __slots__ = (
        "_bytes",
        "_held_back",
        "_is_opened",
        "_largest_credit",
        "_replies",
        "_stream_window",
        "_window",
        "max_frame",
    )

    def __init__(self, *first: bytes) -> None:
        self.max_frame = frames.DEFAULT_MAX_FRAME
        self._bytes = list(first)
        self._replies = 0
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._largest_credit = 0
        self._is_opened = False  # a window, since the messages held back were looked at
        self._held_back: dict[int, Call] = {}  # by stream, the oldest first

    def __bool__(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._bytes)

    def take(self) -> bytes:
        """Take out the bytes to send."""
        if not self._bytes:
            return b""
        out, self._bytes = self._bytes, []
        self._replies = 0
        return out[0] if len(out) == 1 else b"".join(out)

    def add(self, frame: bytes) -> None:
        """Send a frame that no window is about."""
        self._bytes.append(frame)

    def reply(self, frame: bytes) -> None:
        """Send a frame that one of the server's makes us send: so many at a time, and no more."""
        self._replies += 1
        if self._replies > MAX_REPLIES:
            text = f"more than {MAX_REPLIES} frames to be answered, and it reads no answer"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text)
        self._bytes.append(frame)

    def request(self, call: Call) -> None:
        """Send the request of a call that has a stream."""
        out, limit, stream_id = self._bytes, self.max_frame, call.stream_id
        block, message = call.block, call.message
        call.block = call.message = b""
        size = len(block)
        if size <= limit:
            out += (head(size, HEADERS, END_HEADERS, stream_id), block)
        else:
            for begin in range(0, size, limit):
                part = block[begin : begin + limit]
                flags = END_HEADERS if begin + limit >= size else 0
                out += (head(len(part), CONTINUATION if begin else HEADERS, flags, stream_id), part)
        size = len(message) + 5
        if size <= limit and size <= self._window and size <= self._stream_window:
            self._window -= size
            call.credit = -size
            prefix = pack_prefix(0, size - 5)
            out += (head(size, DATA, END_STREAM, stream_id), prefix, message)
        else:
            call.rest = memoryview(pack_prefix(0, size - 5) + message)
            self._held_back[stream_id] = call
            self._send_held_back()

    def send_held_back(self) -> None:
        """Send what the server has allowed since."""
        if self._is_opened:
            self._is_opened = False
            self._send_held_back()

    def _send_held_back(self) -> None:
        """Send of the messages held back what the windows allow, the oldest first."""
        held_back, limit = self._held_back, self.max_frame
        for call in list(held_back.values()):
            if self._window <= 0:
                return
            rest = cast("memoryview", call.rest)
            allowed = min(self._window, self._stream_window + call.credit)
            sent, size = 0, len(rest)
            while sent < size and sent < allowed:
                part = bytes(rest[sent : min(sent + limit, allowed)])
                sent += len(part)
                flags = END_STREAM if sent == size else 0
                self._bytes += (head(len(part), DATA, flags, call.stream_id), part)
            self._window -= sent
            call.credit -= sent
            call.rest = None if sent == size else rest[sent:]
            if sent == size:
                del held_back[call.stream_id]

    def forget(self, call: Call) -> None:
        """Hold back nothing for a call that has ended."""
        if self._held_back:
            self._held_back.pop(call.stream_id, None)

    def open_window(self, increment: int, call: Call | None) -> None:
        """Take note of a window that the server opens: that of a call, or the connection's."""
        if increment == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if call is None:
            self._window += increment
            window = self._window
        else:
            call.credit += increment
            self._largest_credit = max(self._largest_credit, call.credit)
            window = self._stream_window + call.credit
        if window > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {window} bytes")
        self._is_opened = True

    def set_stream_window(self, value: int, calls: Iterable[Call]) -> None:
        """Take note of the window that each call begins with; those under way get as much more."""
        if value > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {value}")
        # Few servers open a window so far that it matters, so the calls are hardly ever looked at.
        if value + self._largest_credit > MAX_WINDOW and any(
            value + call.credit > MAX_WINDOW for call in calls
        ):
            text = f"INITIAL_WINDOW_SIZE of {value} on top of a window that was opened"
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, text)
        self._is_opened |= value > self._stream_window
        self._stream_window = value
