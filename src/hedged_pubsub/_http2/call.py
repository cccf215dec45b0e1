"""One unary gRPC call on an HTTP/2 connection: what it sends, and the answer."""

from __future__ import annotations

import math
import struct
from typing import Final

from hedged_pubsub._http2.frames import ErrorCode, Http2Error
from hedged_pubsub._http2.grpc import Status, decode_metadata, status_of_http
from hedged_pubsub._http2.headers import Block

MAX_MESSAGE: Final = 4 * 2**20
"""Bytes of an answer. The ids of the 1,000 messages that a request can have are some 22 kB."""

STREAM_WINDOW: Final = MAX_MESSAGE + 2**16
"""Bytes of DATA frames that a server may send for one call. It covers the largest answer and its
padding, so that no window of a stream is ever opened further."""

_PREFIX: Final = struct.Struct(">BI")
pack_prefix: Final = _PREFIX.pack
_PREFIX_SIZE: Final = _PREFIX.size


class Call:
    """One request and its answer. The connection fills in the answer.

    Args:
        block: The header block.
        message: The request, serialized.
        deadline: When it has taken too long, by the clock of whoever drives the connection.

    Attributes:
        code: The gRPC status once the call has ended; ``None`` until then.
        details: The text that goes with it.
        answer: The serialized answer where ``code`` is 0.
        is_unprocessed: Whether the server has certainly not seen the request, or refused it unseen:
            it can be sent on another connection.
        stream_id: That of its stream; 0 while it has none.
    """

    __slots__ = (
        "answer",
        "block",
        "code",
        "credit",
        "deadline",
        "details",
        "http_status",
        "is_unprocessed",
        "message",
        "metadata",
        "received",
        "rest",
        "stream_id",
    )

    def __init__(self, block: bytes, message: bytes, deadline: float = math.inf) -> None:
        self.block = block
        self.message = message
        self.deadline = deadline
        self.stream_id = 0
        self.rest: memoryview | None = None  # of the message, where windows hold it back
        self.credit = 0  # bytes that the server has allowed for it, less those sent
        self.http_status: int | None = None
        self.received = 0
        self.answer: bytes | bytearray = b""
        self.metadata: tuple[tuple[bytes, bytes], ...] = ()
        self.code: int | None = None
        self.details = ""
        self.is_unprocessed = False

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata that came with the status."""
        return decode_metadata(self.metadata)

    def end(self, code: int, details: str = "") -> None:
        """Note the outcome, and let go of what was to be sent."""
        self.code = code
        self.details = details
        self.block = self.message = b""
        self.rest = None

    # --- Each of these returns whether the call has ended by it.

    def take_data(self, body: bytes, size: int, *, is_last: bool) -> bool:
        """Take in a DATA frame of ``size`` bytes, padding included."""
        if self.http_status is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        self.received += size
        if self.received > STREAM_WINDOW:
            text = f"more than {STREAM_WINDOW} bytes of DATA on a stream"
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, text)
        if not self.answer:
            self.answer = body
        elif isinstance(self.answer, bytes):
            self.answer = bytearray(self.answer)
            self.answer += body
        else:
            self.answer += body
        if is_last:
            self.end(Status.INTERNAL, "the server ended the call without a status")
            return True
        if len(self.answer) >= _PREFIX_SIZE:
            size = int.from_bytes(self.answer[1:_PREFIX_SIZE], "big")
            if size > MAX_MESSAGE:
                text = f"Received message larger than max ({size} vs. {MAX_MESSAGE})"
                self.end(Status.RESOURCE_EXHAUSTED, text)
                return True
        return False

    def take_block(self, block: Block, *, is_last: bool) -> bool:
        """Take in a header block."""
        status = block.status
        if self.http_status is not None:
            if status is not None or not is_last:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream")
        elif status is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "an answer without :status")
        elif status < 200:
            if is_last or status < 100 or status == 101:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"an answer that ends with {status}")
            return False
        else:
            self.http_status = status
            if not is_last and status == 200 and block.is_grpc:
                return False
        self.metadata = block.fields
        if block.code is not None and (is_last or block.is_grpc):
            self._end_with(block.code, block.details)
        elif self.http_status != 200:
            text = f"Received http2 header with status: {self.http_status}"
            self.end(status_of_http(self.http_status or 0), text)
        elif is_last:
            self.end(Status.UNKNOWN, "the server ended the call without a status")
        else:
            self.end(Status.UNKNOWN, "the answer is not gRPC's: wrong content-type")
        return True

    def _end_with(self, code: int, details: str) -> None:
        self.end(code, details)
        if code == Status.OK:
            answer = self.answer
            if len(answer) < _PREFIX_SIZE:
                self.end(Status.INTERNAL, "the server sent no message")
                return
            is_compressed, size = _PREFIX.unpack_from(answer)
            if is_compressed:
                self.end(Status.INTERNAL, "the server compressed a message, unasked")
            elif size != len(answer) - _PREFIX_SIZE:
                self.end(Status.INTERNAL, "the server sent something else than one message")
            else:
                self.answer = bytes(answer[_PREFIX_SIZE:])
