"""Feeds the HTTP/2 connection what no server should send: frames at random, and sessions mutated.

``python -m tests.unit.http2.fuzz 10000000`` takes about 20 minutes; a seed may follow. The unit
tests run a few thousand inputs. Each input may do one thing but be taken in, raise ``Http2Error``;
it may take a millisecond for each kilobyte, and make the connection hold no more than its bounds.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Final

import hpack

from hedged_pubsub._http2 import frames, headers
from hedged_pubsub._http2.call import Call, pack_prefix
from hedged_pubsub._http2.connection import CONNECTION_WINDOW, ClientConnection
from hedged_pubsub._http2.frames import Http2Error
from hedged_pubsub._http2.incoming import MAX_BLOCK
from hedged_pubsub._http2.outgoing import MAX_REPLIES

CALLS: Final = 3
SECONDS_A_KILOBYTE: Final = 1e-3
SECONDS_AN_INPUT: Final = 2e-3  # on top: on a busy machine a short one may take that
_STREAMS: Final = (1, 3, 5) * 12 + (0, 2, 7, 2**31 - 1)
_SIZES: Final = (0, 1, 4, 5, 6, 8, 9) * 6 + (100, 16_384, 16_385)
_NUMBERS: Final = (0, 1, 2, 100, 16_383, 16_384, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_ANSWER: Final = [(":status", "200"), ("content-type", "application/grpc")]
_STATUS: Final = [("grpc-status", "0"), ("grpc-message", "it is 100%25 fine")]


def _bomb(entries: int) -> bytes:
    """A block that puts one large field into the table, and names it many times."""
    name, value = b"x" * 10, b"y" * 4000
    return b"\x40" + bytes((len(name),)) + name + b"\x7f\xa1\x1e" + value + b"\xbe" * entries


_BLOCKS: Final = [
    hpack.Encoder().encode(_ANSWER),
    hpack.Encoder().encode(_STATUS),
    hpack.Encoder().encode([*_ANSWER, *_STATUS]),
    hpack.Encoder().encode([(":status", "103"), ("link", "<a>; rel=preload")]),
    hpack.Encoder().encode([(":status", "503"), ("content-type", "text/html")]),
    headers.encode([(name.encode(), value.encode()) for name, value in [*_ANSWER, *_STATUS]]),
    headers.encode([(b":status", b"200"), (b"UPPER", b"1"), (b":path", b"/")]),
    _bomb(3),
]
_LARGE_BLOCKS: Final = [
    _bomb(5000),
    b"\x20" * 50 + b"\x3f\xe1\x1f" * 50,  # sizes of the table
    b"\x82" * 2000,  # fields of the static table
    b"\x00\x01a\x00" * 2000,
    b"\xff" * 64,
]
_BODIES: Final = [
    *(pack_prefix(0, size) + bytes(size) for size in (0, 1, 30, 2000)),
    *(pack_prefix(1, 3) + b"abc", pack_prefix(0, 2**32 - 1), b"", b"\x05", b"\xff" * 300),
]


class Fuzzer:
    """Makes inputs from a seed, and feeds them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.inputs = self.bytes = self.refused = 0
        self.slowest = 0.0
        self._makers: list[Callable[[], bytes]] = [
            *(self._headers, self._headers, self._data, self._data, self._continuation),
            *(self._settings, self._ping, self._goaway, self._window_update, self._rst_stream),
            *(self._any, self._noise, self._flood),
            *[self._answer] * 4,
        ]

    # --- Inputs.

    def _stream(self) -> int:
        return self.random.choice(_STREAMS)

    def _frame(self, kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
        return frames.head(len(body), kind, flags, stream_id) + body

    def _headers(self) -> bytes:
        flags = self.random.choice((4, 4, 5, 5, 0, 1, 0xC, 0x24, 0x2D))
        return self._frame(frames.HEADERS, flags, self._stream(), self._block())

    def _block(self) -> bytes:
        return self.random.choice(_BLOCKS if self.random.random() < 0.97 else _LARGE_BLOCKS)

    def _data(self) -> bytes:
        flags = self.random.choice((0, 0, 1, 8, 9))
        return self._frame(frames.DATA, flags, self._stream(), self.random.choice(_BODIES))

    def _continuation(self) -> bytes:
        flags, stream = self.random.choice((0, 4)), self._stream()
        return self._frame(frames.CONTINUATION, flags, stream, self._block())

    def _settings(self) -> bytes:
        random, flags, stream = self.random, self.random.choice((0, 0, 0, 1)), 0
        body = b"".join(
            struct.pack(">HI", random.randrange(8), random.choice(_NUMBERS))
            for _ in range(random.randrange(3))
        )
        return self._frame(frames.SETTINGS, flags, stream, body)

    def _ping(self) -> bytes:
        body = self.random.choice((bytes(8), b"\0\0\0\0\0\0\0\1", b""))
        return self._frame(frames.PING, self.random.randrange(2), 0, body)

    def _goaway(self) -> bytes:
        body = struct.pack(">II", self.random.choice(_NUMBERS), self.random.randrange(14))
        return self._frame(frames.GOAWAY, 0, 0, body + b"why" * self.random.randrange(200))

    def _window_update(self) -> bytes:
        body = struct.pack(">I", self.random.choice(_NUMBERS))
        return self._frame(frames.WINDOW_UPDATE, 0, self._stream(), body)

    def _rst_stream(self) -> bytes:
        body = struct.pack(">I", self.random.randrange(15))
        return self._frame(frames.RST_STREAM, 0, self._stream(), body)

    def _any(self) -> bytes:
        random, size = self.random, self.random.choice(_SIZES)
        return self._frame(
            random.randrange(12), random.randrange(256), self._stream(), random.randbytes(size)
        )

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.randrange(40))

    def _answer(self) -> bytes:
        stream, body = self.random.choice((1, 3, 5)), self.random.choice(_BODIES)
        return (
            self._frame(frames.HEADERS, 4, stream, _BLOCKS[0])
            + self._frame(frames.DATA, 0, stream, body)
            + self._frame(frames.HEADERS, 5, stream, _BLOCKS[1])
        )

    def _flood(self) -> bytes:
        if self.random.random() > 0.01:  # they are long, and a few are enough
            return self._answer()
        maker = self.random.choice(self._makers[:12])
        return maker() * self.random.choice((30, 1500))

    def make(self) -> list[bytes]:
        """Return an input, in the pieces in which it is received."""
        random = self.random
        # Mostly the settings come first, or no call would have a stream.
        first = [frames.settings({3: 100})] if random.random() < 0.9 else []
        data = bytearray()
        for _ in range(random.randrange(1, 6)):
            data += random.choice(self._makers)()
        for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
            self._mutate(data)
        if random.random() < 0.7:
            return [*first, bytes(data)]
        cut = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(1, 4)))
        pieces = [bytes(data[a:b]) for a, b in zip([0, *cut], [*cut, len(data)], strict=True)]
        return [*first, *pieces]

    def _mutate(self, data: bytearray) -> None:
        random, at = self.random, self.random.randrange(len(data) + 1)
        how = random.randrange(5)
        if how == 0:
            del data[at : at + random.randrange(1, 12)]
        elif how == 1:
            data[at:at] = random.randbytes(random.randrange(1, 12))
        elif how == 2:
            begin = random.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + random.randrange(1, 200)]
        elif at < len(data):
            data[at] = random.randrange(256) if how == 3 else data[at] ^ 1 << random.randrange(8)

    # --- What must hold.

    def run(self, inputs: int) -> None:
        """Feed so many inputs; raise AssertionError, with the input, if one does what it must not.

        Exceptions but ``Http2Error`` get through.
        """
        for _ in range(inputs):
            pieces = self.make()
            try:
                self._check(pieces)
            except BaseException:
                print("the input:", pieces, file=sys.stderr)
                raise

    def _check(self, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        seconds = self._feed(pieces)
        allowed = SECONDS_AN_INPUT + SECONDS_A_KILOBYTE * size / 1024
        if seconds > allowed:  # the machine may have been busy
            seconds = min(seconds, *(self._feed(pieces) for _ in range(5)))
        assert seconds <= allowed, f"{seconds * 1e3:.2f} ms for {size} bytes"
        self.inputs += 1
        self.bytes += size
        self.slowest = max(self.slowest, seconds / allowed)

    def _feed(self, pieces: list[bytes]) -> float:
        """Feed an input to a new connection, and return the seconds of CPU time that it took."""
        connection = ClientConnection()
        calls = [Call(b"\x83", bytes(size), deadline=9.0) for size in (10, 40_000, 60_000)]
        for call in calls:
            connection.start(call)
        connection.ping(0.0)
        connection.data_to_send()
        ended = []
        began = time.thread_time()
        try:
            for piece in pieces:
                ended += connection.receive(piece, 1.0)
                _check_bounds(connection)
                connection.data_to_send()
        except Http2Error as error:
            self.refused += 1
            ended += connection.close(str(error), error.code)
        seconds = time.thread_time() - began
        ended += connection.expire(10.0)
        ended += connection.close("the end")
        connection.data_to_send()
        assert sorted(map(id, ended)) == sorted(map(id, calls)), "each call ends, and once"
        assert all(call.code is not None for call in calls)
        assert not connection.has_data_to_send
        return seconds


def _check_bounds(connection: ClientConnection) -> None:
    incoming, out = connection._incoming, connection._out
    assert len(incoming._rest) < frames.HEAD_SIZE + frames.DEFAULT_MAX_FRAME
    assert len(incoming._block or b"") <= MAX_BLOCK
    assert out._replies <= MAX_REPLIES
    assert 0 <= connection._held <= CONNECTION_WINDOW
    assert connection.in_flight + connection.waiting <= CALLS
    assert len(connection.goaway[1] if connection.goaway else "") <= 256


def main() -> None:
    """Run as many inputs as the first argument says, from a seed that may follow."""
    wanted = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    fuzzer, began = Fuzzer(seed), time.monotonic()
    while fuzzer.inputs < wanted:
        fuzzer.run(min(100_000, wanted - fuzzer.inputs))
        took = time.monotonic() - began
        print(
            f"seed {seed}: {fuzzer.inputs:,} inputs of {fuzzer.bytes / fuzzer.inputs:.0f} bytes, "
            f"{fuzzer.refused / fuzzer.inputs:.0%} refused, slowest {fuzzer.slowest:.2f} of the "
            f"time allowed, {took:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
