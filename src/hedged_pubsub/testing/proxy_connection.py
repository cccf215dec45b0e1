"""One connection through a `TcpProxy`: two sockets, a flow of bytes each way, and their faults.

A `Link` belongs to the event loop's thread; a `ProxyConnection` hands commands to it.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal

from hedged_pubsub.testing import checks

Direction = Literal["upstream", "downstream"]
"""``"upstream"``: from the client to the target. ``"downstream"``: back to the client."""

_DIRECTIONS: Final = ("upstream", "downstream")

_READ_SIZE: Final = 64 * 1024

# More than the largest publish request, so that what holds bytes back does not also bound how many
# are under way.
_MAX_HELD: Final = 16 * 1024 * 1024

# A limited flow is written in so many parts a second: often enough to trickle.
_PARTS_PER_SECOND: Final = 20

# With a linger time of zero, close() sends a reset instead of an orderly end.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Flow:
    """The bytes from one socket, the source, to the other one, the sink."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.opposite = self  # the flow back, once that is there
        self.frozen = False  # nothing is written
        self.latency = 0.0  # seconds from reading to writing
        self.bandwidth: float | None = None  # bytes a second
        self.free_at = 0.0  # when a limited flow may write its next part
        self.delivered = 0  # bytes written so far
        self.held = 0  # bytes read and not yet written
        self.source_ended = False  # it has closed its half, or broken
        self.ended = False  # nothing is written any more; what the source still sends is dropped
        self.blocked = False  # the sink takes nothing for now
        # In the order of reading, each with the time before which it is not written. An empty one
        # is the end of the stream, None a reset.
        self._chunks: deque[tuple[float, memoryview | None]] = deque()

    @property
    def due(self) -> float:
        """When to `write` again; infinity if that is not a matter of time."""
        if not self._chunks or self.frozen or self.blocked:
            return math.inf
        return max(self._chunks[0][0], self.free_at)

    def add(self, chunk: memoryview | None) -> None:
        """Take in what comes from the source; the sink gets it after what came before."""
        if not chunk:
            self.source_ended = True
        if not self.ended:
            self.held += len(chunk or b"")
            self._chunks.append((time.monotonic() + self.latency, chunk))

    def write(self) -> Literal["closed", "reset"] | None:
        """Write what is due and what the sink takes; return how the flow has ended, if it has.

        Raise OSError if the sink is broken.
        """
        now = time.monotonic()
        self.blocked = False
        while self.due <= now:
            due, chunk = self._chunks[0]
            if not chunk:
                self.drop()
                return "reset" if chunk is None else "closed"
            part = chunk
            if self.bandwidth is not None:
                part = chunk[: max(1, int(self.bandwidth / _PARTS_PER_SECOND))]
            try:
                written = self.sink.send(part)
            except BlockingIOError:
                self.blocked = True
                break
            self.delivered += written
            self.held -= written
            if self.bandwidth is not None:
                self.free_at = now + written / self.bandwidth
            self._chunks[0] = (due, chunk[written:])
            if written == len(chunk):
                self._chunks.popleft()
        return None

    def drop(self) -> None:
        """End the flow: forget what it holds, and drop what the source still sends."""
        self.ended = True
        self.blocked = False
        self._chunks.clear()
        self.held = 0


class Link:
    """A client's connection and the one that leads on to the target."""

    def __init__(
        self, client: socket.socket, target: socket.socket, loop: asyncio.AbstractEventLoop
    ) -> None:
        for end in (client, target):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.upstream = Flow(client, target)
        self.downstream = self.upstream.opposite = Flow(target, client)
        self.downstream.opposite = self.upstream
        self.flows = (self.upstream, self.downstream)
        self.over = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def do(self, command: Callable[..., object], *args: object, **kwargs: object) -> None:
        """Run a command unless the link has ended, and see to what follows from it."""
        if not self.over:
            command(*args, **kwargs)
            self.update()

    def update(self) -> None:
        """Write what is due, then watch what matters from now on; after whatever has happened."""
        for flow in self.flows:
            try:
                how = None if self.over else flow.write()
            except OSError:
                self._break(flow.opposite)
            else:
                if how == "reset":
                    self.finish(reset=True)
                elif how == "closed":
                    self._close_half(flow.sink)
        if self._timer is not None:
            self._timer.cancel()
        for flow in self.flows:
            # Even if frozen, to notice that the source has gone.
            if not (self.over or flow.source_ended) and flow.held < _MAX_HELD:
                self._loop.add_reader(flow.source, self._read, flow)
            else:
                self._loop.remove_reader(flow.source)
            if flow.blocked and not flow.frozen:
                self._loop.add_writer(flow.sink, self.update)
            else:
                self._loop.remove_writer(flow.sink)
        due = min(flow.due for flow in self.flows)
        if self.over:
            for flow in self.flows:
                flow.source.close()
        elif due < math.inf:
            self._timer = self._loop.call_at(due, self.update)

    def half_close(self, flow: Flow) -> None:
        """End a flow at once, as if its source had closed its half of the connection."""
        if not flow.ended:
            flow.drop()
            self._close_half(flow.sink)

    def finish(self, *, reset: bool) -> None:
        """End the link, with a TCP reset towards both sides if asked to."""
        self.over = True
        for flow in self.flows:
            flow.drop()
            if reset:
                flow.sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def _read(self, flow: Flow) -> None:
        try:
            flow.add(memoryview(flow.source.recv(_READ_SIZE)))
        except BlockingIOError:
            pass
        except OSError:
            self._break(flow)
        self.update()

    def _close_half(self, sink: socket.socket) -> None:
        with suppress(OSError):  # it has gone meanwhile
            sink.shutdown(socket.SHUT_WR)
        if self.upstream.ended and self.downstream.ended:
            self.finish(reset=False)

    def _break(self, flow: Flow) -> None:
        """Note that a flow's source is broken; the sink learns of it after the bytes before."""
        flow.opposite.drop()
        if not flow.source_ended:
            flow.add(None)
        if flow.ended:
            self.finish(reset=False)


class ProxyConnection:
    """One client's connection through a `TcpProxy`, and what can be done to it.

    Each fault takes a direction, and without one acts on both. It is in force when the method
    returns, and does nothing to a connection that has ended. The methods are thread-safe.

    Attributes:
        client_address: host and port of the client's end, such as ``"127.0.0.1:40123"``.
    """

    def __init__(self, link: Link, run: Callable[[Callable[[], object]], None]) -> None:
        self.client_address = "{}:{}".format(*link.upstream.source.getpeername())
        self._link = link
        self._run = run

    def __repr__(self) -> str:
        """Say whose connection it is and how much went over it."""
        return (
            f"<{type(self).__name__} of {self.client_address}, {'open' if self.is_open else 'over'}"
            f", {self.delivered('upstream')} bytes up, {self.delivered('downstream')} down>"
        )

    @property
    def is_open(self) -> bool:
        """Whether the client still has it, as far as the proxy was told.

        False from when the client closes or resets its end, frozen or not, or the proxy does.
        """
        return not (self._link.over or self._link.upstream.source_ended)

    def delivered(self, direction: Direction) -> int:
        """Return the number of bytes that have passed in a direction."""
        return self._flow(direction).delivered

    def held(self, direction: Direction) -> int:
        """Return the number of bytes that the proxy holds back in a direction."""
        return self._flow(direction).held

    def freeze(self, direction: Direction | None = None) -> None:
        """Let nothing pass, as when a NAT entry has vanished: no byte, no close and no reset.

        Both ends stay open and go on writing, until their windows are full.
        """
        self._set(direction, frozen=True)

    def thaw(self, direction: Direction | None = None) -> None:
        """End a freeze; what was held back is sent on, in order."""
        self._set(direction, frozen=False)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Add latency to the bytes that arrive from now on, and keep their order.

        Args:
            seconds: how long each byte is held, in each direction; at least 0.
            direction: one direction, or None for both.

        Raises:
            ValueError: if ``seconds`` is below 0 or not finite.
            TypeError: if it is no number.
        """
        self._set(direction, latency=checks.number("seconds", seconds))

    def limit(self, bytes_per_second: float | None, direction: Direction | None = None) -> None:
        """Bound how many bytes pass a second.

        Args:
            bytes_per_second: above 0, in each direction; None for no limit.
            direction: one direction, or None for both.

        Raises:
            ValueError: if ``bytes_per_second`` is not above 0 or not finite.
            TypeError: if it is neither None nor a number.
        """
        if bytes_per_second is not None:
            checks.number("bytes_per_second", bytes_per_second, checks.ABOVE_0)
        self._set(direction, bandwidth=bytes_per_second, free_at=0.0)

    def half_close(self, direction: Direction = "downstream") -> None:
        """End one direction in order, as if its sender had closed its half; the other goes on.

        What the proxy holds in that direction is lost.

        Args:
            direction: ``"downstream"``: the client reads the end of the stream.
        """
        flow = self._flow(direction)
        self._do(self._link.half_close, flow)

    def reset(self) -> None:
        """Break the connection with a TCP reset towards each end."""
        self._do(self._link.finish, reset=True)

    def _set(self, direction: Direction | None, **changes: object) -> None:
        for name in _DIRECTIONS if direction is None else (direction,):
            self._do(vars(self._flow(name)).update, changes)

    def _do(self, command: Callable[..., object], *args: object, **kwargs: object) -> None:
        """Let the link do it on the proxy's thread, and wait for that."""
        self._run(partial(self._link.do, command, *args, **kwargs))

    def _flow(self, direction: str) -> Flow:
        if direction not in _DIRECTIONS:
            raise ValueError(
                f'direction={direction!r} must be "upstream" (from the client to the target) or '
                '"downstream"'
            )
        return self._link.upstream if direction == "upstream" else self._link.downstream
