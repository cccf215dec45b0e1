"""The client's end of one HTTP/2 connection (RFC 9113) that carries unary gRPC calls.

Its owner puts in what the socket has received, takes out what is to be sent, and gets the calls
that have ended; one thread at a time. Nothing is sent for calls until the server's settings are
here, as gRPC does it: from then on the connection *is ready*.

What a server can make us hold is bounded: the answers under way by the connection's window, each
of them and each header block by a size, our replies to its frames by a number. Whatever breaks the
protocol or a bound raises ``Http2Error``; only ``close`` and ``data_to_send`` are of use then.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from hedged_pubsub._http2 import frames
from hedged_pubsub._http2.call import MAX_MESSAGE, STREAM_WINDOW, Call
from hedged_pubsub._http2.frames import ACK, END_STREAM, ErrorCode, Http2Error
from hedged_pubsub._http2.grpc import Status, status_of_reset
from hedged_pubsub._http2.headers import MAX_LIST, BlockDecoder
from hedged_pubsub._http2.incoming import Incoming
from hedged_pubsub._http2.outgoing import Outgoing

CONNECTION_WINDOW: Final = 16 * MAX_MESSAGE
"""Bytes of answers that have begun and not ended. The window is opened again as calls end."""

_SETTINGS: Final = {
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_HEADER_LIST_SIZE: MAX_LIST,
}

_MAX_DEBUG: Final = 256
"""Bytes of a GOAWAY's text that are kept."""

MAX_BLOCKS: Final = 4
"""Header blocks for each call, on average, and twice as many more. An answer has two; a server that
sends informational ones without end would keep us busy decoding them, at 40 µs each."""

_FEW_STREAMS: Final = 2**16
"""Calls at a time, where the server sets no limit."""


class ClientConnection:
    """One connection, from the first byte to the last.

    Attributes:
        is_ready: Whether the server's settings are here.
        is_closing: Whether no call can be started any more: the server goes away, the numbers of
            streams have run out, or the connection has ended.
        goaway: The code and the text of the server's GOAWAY, if there was one.
        heard_at: When something was received last; ``None`` before.
        ping_sent_at: When the PING was sent that is not answered yet; ``None`` if all are.
        next_deadline: When ``expire`` is due: not later than any call's deadline.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.is_closing = False
        self.goaway: tuple[int, str] | None = None
        self.heard_at: float | None = None
        self.ping_sent_at: float | None = None
        self.next_deadline = math.inf
        self._calls: dict[int, Call] = {}  # by stream
        # For the settings, or for a stream; by their id(), for any of them may be cancelled.
        self._waiting: OrderedDict[int, Call] = OrderedDict()
        self._ended: list[Call] = []
        self._next_id = 1
        self._max_streams = _FEW_STREAMS
        self._is_closed = False
        self._pings = 0
        self._window = CONNECTION_WINDOW  # what the server may send
        self._held = 0  # bytes of answers that have begun
        self._blocks_allowed = 2 * MAX_BLOCKS
        self._decoder = BlockDecoder()
        self._incoming = Incoming()
        self._out = Outgoing(
            frames.PREFACE,
            frames.settings(_SETTINGS),
            frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW),
        )
        self._handlers: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
        )

    @property
    def in_flight(self) -> int:
        """How many calls have a stream."""
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """How many calls wait for the server's settings, or for another one to end."""
        return len(self._waiting)

    @property
    def has_data_to_send(self) -> bool:
        """Whether ``data_to_send`` has something."""
        return bool(self._out)

    # --- What the owner wants.

    def start(self, call: Call) -> None:
        """Send a call, or keep it until it can be sent. ``is_closing`` must be false."""
        if call.deadline < self.next_deadline:
            self.next_deadline = call.deadline
        if self.is_ready and len(self._calls) < self._max_streams and not self._waiting:
            self._open(call)
        else:
            self._waiting[id(call)] = call

    def cancel(self, call: Call, code: Status = Status.CANCELLED, details: str = "") -> None:
        """End a call, unless it has ended; the owner is not told of it again."""
        if call.code is not None:
            return
        if self._calls.pop(call.stream_id, None) is not None:
            self._held -= call.received
            self._out.forget(call)
            self._out.add(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        else:
            self._waiting.pop(id(call), None)
        call.end(code, details)
        if self._waiting:
            self._start_waiting()

    def expire(self, now: float) -> list[Call]:
        """End the calls whose deadline has passed, and return them."""
        if now < self.next_deadline:
            return []
        calls = self._undecided()
        late = [call for call in calls if call.deadline <= now]
        for call in reversed(late):  # those that wait first, or they would get the streams
            self.cancel(call, Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        rest = (call.deadline for call in calls if call.code is None)
        self.next_deadline = min(rest, default=math.inf)
        return late

    def ping(self, now: float) -> None:
        """Ask the server for a sign of life, unless it was asked and has not answered yet."""
        if self.ping_sent_at is None and not self._is_closed:
            self._pings += 1
            self.ping_sent_at = now
            self._out.add(frames.ping(self._pings.to_bytes(8, "big")))

    def data_to_send(self) -> bytes:
        """Take out what is to be sent. Ask again once all of it was sent, not earlier."""
        if self._window < CONNECTION_WINDOW // 2 and not self._is_closed:
            increment = CONNECTION_WINDOW - self._held - self._window
            if increment > 0:
                self._window += increment
                self._out.add(frames.window_update(0, increment))
        return self._out.take()

    def receive(self, data: bytes, now: float) -> list[Call]:
        """Take in what the server has sent; return the calls that have ended.

        Raises:
            Http2Error: If the server broke the protocol. ``close`` returns the calls.
        """
        if self._is_closed:
            return []
        self.heard_at = now
        handlers = self._handlers
        for kind, flags, stream_id, body in self._incoming.read(data):
            handlers[kind](flags, stream_id, body)
        self._out.send_held_back()
        if self._waiting:
            self._start_waiting()
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return ended

    def close(self, details: str, code: ErrorCode = ErrorCode.NO_ERROR) -> list[Call]:
        """End the connection; return the calls that end by it, or have ended unnoticed.

        The code is that of the GOAWAY: of the ``Http2Error``, if there was one. Calls that had no
        stream have certainly not reached the server.
        """
        if self._is_closed:
            return []
        self.is_closing = self._is_closed = True
        ended, self._ended = self._ended, []
        for call in self._undecided():
            call.is_unprocessed = call.stream_id == 0
            call.end(Status.UNAVAILABLE, details)
            ended.append(call)
        self._calls.clear()
        self._waiting.clear()
        self.next_deadline = math.inf
        self._out.add(frames.goaway(code))
        return ended

    # --- Calls.

    def _undecided(self) -> list[Call]:
        return [*self._calls.values(), *self._waiting.values()]

    def _open(self, call: Call) -> None:
        """Give a call a stream, and send it."""
        stream_id = call.stream_id = self._next_id
        self._next_id = stream_id + 2
        if self._next_id > frames.MAX_STREAM_ID:
            self.is_closing = True
        self._calls[stream_id] = call
        self._blocks_allowed += MAX_BLOCKS
        self._out.request(call)

    def _start_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self.is_ready and not self.is_closing:
            if len(self._calls) >= self._max_streams:
                return
            self._open(waiting.popitem(last=False)[1])
        if self.is_closing:
            self._refuse(waiting.values(), "the connection takes no more requests")
            waiting.clear()

    def _refuse(self, calls: Iterable[Call], details: str) -> None:
        """End calls that the server has certainly not processed."""
        for call in calls:
            call.is_unprocessed = True
            call.end(Status.UNAVAILABLE, details)
            self._ended.append(call)

    def _take_out(self, call: Call, *, is_whole: bool) -> None:
        """Note that a call has ended; unless both sides of its stream are, it is reset."""
        if not is_whole:
            self._out.reply(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        del self._calls[call.stream_id]
        self._out.forget(call)
        self._held -= call.received
        self._ended.append(call)

    def _call(self, stream_id: int) -> Call | None:
        """Return the call of a stream; ``None`` if it has ended."""
        call = self._calls.get(stream_id)
        if call is None and not (stream_id % 2 and stream_id < self._next_id):
            text = f"a frame for stream {stream_id}, which does not exist"
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, text)
        return call

    # --- Frames.

    def _on_data(self, flags: int, stream_id: int, body: bytes) -> None:
        size = len(body)
        self._window -= size
        if self._window < 0:
            text = "more DATA than the connection's window"
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, text)
        if flags & frames.PADDED:
            body = frames.without_padding(flags & frames.PADDED, body)
        call = self._call(stream_id)
        if call is None:
            return
        self._held += size
        is_last = flags & END_STREAM != 0
        is_whole = is_last and call.rest is None
        if call.take_data(body, size, is_last=is_last):
            self._take_out(call, is_whole=is_whole)

    def _on_headers(self, flags: int, stream_id: int, body: bytes) -> None:
        call = self._call(stream_id)
        self._blocks_allowed -= 1
        if self._blocks_allowed < 0:
            text = f"more than {MAX_BLOCKS} header blocks for each call"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text)
        block = self._decoder.decode(body)  # of an ended call too: it may change the table
        if call is None:
            return
        is_last = flags & END_STREAM != 0
        is_whole = is_last and call.rest is None
        if call.take_block(block, is_last=is_last):
            self._take_out(call, is_whole=is_whole)

    def _on_priority(self, _flags: int, _stream_id: int, body: bytes) -> None:
        if len(body) != 5:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(body)} bytes")

    def _on_rst_stream(self, _flags: int, stream_id: int, body: bytes) -> None:
        if len(body) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(body)} bytes")
        call = self._call(stream_id)
        if call is None:
            return
        code = int.from_bytes(body, "big")
        call.is_unprocessed = code == ErrorCode.REFUSED_STREAM
        call.end(status_of_reset(code), f"the server reset the stream with error code {code}")
        self._take_out(call, is_whole=True)

    def _on_settings(self, flags: int, stream_id: int, body: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS for a stream")
        if flags & ACK:
            if body:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        for key, value in frames.parse_settings(body):
            if key == frames.ENABLE_PUSH and value != 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a server that wants to be pushed to")
            if key == frames.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == frames.INITIAL_WINDOW_SIZE:
                self._out.set_stream_window(value, self._calls.values())
            elif key == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
                self._out.max_frame = value
        self.is_ready = True
        self._out.reply(frames.head(0, frames.SETTINGS, ACK, 0))

    def _on_push_promise(self, _flags: int, _stream_id: int, _body: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which our settings refuse")

    def _on_ping(self, flags: int, stream_id: int, body: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING for a stream")
        if len(body) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(body)} bytes")
        if not flags & ACK:
            self._out.reply(frames.ping(body, is_ack=True))
        elif int.from_bytes(body, "big") == self._pings:
            self.ping_sent_at = None

    def _on_goaway(self, _flags: int, stream_id: int, body: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY for a stream")
        if len(body) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(body)} bytes")
        last = int.from_bytes(body[:4], "big") & 0x7FFF_FFFF
        code = int.from_bytes(body[4:8], "big")
        self.goaway = code, body[8 : 8 + _MAX_DEBUG].decode("utf-8", "replace")
        self.is_closing = True
        beyond = [call for call in self._calls.values() if call.stream_id > last]
        for call in beyond:
            del self._calls[call.stream_id]
            self._out.forget(call)
            self._held -= call.received
        self._refuse(beyond, "the server goes away and has not processed the request")

    def _on_window_update(self, _flags: int, stream_id: int, body: bytes) -> None:
        if len(body) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(body)} bytes")
        call = self._call(stream_id) if stream_id else None
        if stream_id == 0 or call is not None:
            self._out.open_window(int.from_bytes(body, "big") & 0x7FFF_FFFF, call)
