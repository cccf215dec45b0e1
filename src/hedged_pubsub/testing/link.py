"""One proxied connection: two sockets, a flow of bytes each way, and what holds the flows up.

A link knows neither threads nor a selector. `hedged_pubsub.testing.proxy` calls it from one thread,
with the time, when a socket is ready or a chunk is due.
"""

from __future__ import annotations

import enum
import selectors
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final

_READ_SIZE: Final = 64 * 1024

# More than the largest publish request, so that what holds bytes back does not also bound how many
# are under way.
_MAX_HELD: Final = 16 * 1024 * 1024

# A limited flow is written in so many parts a second: often enough to trickle.
_PARTS_PER_SECOND: Final = 20

# With a linger time of zero, close() sends a reset instead of an orderly end.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class End(enum.Enum):
    """How one half of a connection ends; it takes its place behind the bytes sent before."""

    CLOSED = enum.auto()
    RESET = enum.auto()


class Flow:
    """The bytes from one socket to the other.

    Attributes:
        source: where they are read.
        sink: where they are written.
        frozen: whether none are written.
        latency: seconds from reading to writing.
        bandwidth: bytes written a second; None for no limit.
        delivered: bytes written so far.
        held: bytes read and not yet written.
        source_ended: whether the source has closed its half, or broken.
        ended: whether nothing is written any more; what the source still sends is dropped.
        blocked: whether the sink takes nothing for now.
    """

    __slots__ = (
        "_chunks",
        "_free_at",
        "bandwidth",
        "blocked",
        "delivered",
        "ended",
        "frozen",
        "held",
        "latency",
        "sink",
        "source",
        "source_ended",
    )

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.frozen = False
        self.latency = 0.0
        self.bandwidth: float | None = None
        self.delivered = 0
        self.held = 0
        self.source_ended = False
        self.ended = False
        self.blocked = False
        # In the order of reading, each with the time before which it is not written.
        self._chunks: deque[tuple[float, memoryview | End]] = deque()
        self._free_at = 0.0  # when a limited flow may write its next part

    @property
    def reads(self) -> bool:
        """Whether the source is to be read.

        A frozen flow is read, too: so the proxy learns that an end has gone, and keeps it to
        itself.
        """
        return not self.source_ended and self.held < _MAX_HELD

    @property
    def due(self) -> float | None:
        """When to `write` again; None if that is not a matter of time."""
        if not self._chunks or self.frozen or self.blocked:
            return None
        return max(self._chunks[0][0], self._free_at)

    def read(self, now: float) -> None:
        """Reads from the source once.

        Raises:
            OSError: if the source is broken.
        """
        try:
            data = self.source.recv(_READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self.end(now, End.CLOSED)
        elif not self.ended:
            self.held += len(data)
            self._chunks.append((now + self.latency, memoryview(data)))

    def end(self, now: float, how: End) -> None:
        """Takes note that the source has ended; the sink learns of it in its turn."""
        self.source_ended = True
        if not self.ended:
            self._chunks.append((now + self.latency, how))

    def write(self, now: float) -> End | None:
        """Writes what is due and what the sink takes.

        Returns:
            How the flow has ended, if it has come to its end.

        Raises:
            OSError: if the sink is broken.
        """
        self.blocked = False
        while (due := self.due) is not None and due <= now:
            chunk = self._chunks[0][1]
            if isinstance(chunk, End):
                self.drop()
                return chunk
            try:
                written = self.sink.send(chunk[: self._part()])
            except BlockingIOError:
                self.blocked = True
                break
            self.delivered += written
            self.held -= written
            if self.bandwidth is not None:
                self._free_at = now + written / self.bandwidth
            if written < len(chunk):
                self._chunks[0] = (due, chunk[written:])
            else:
                self._chunks.popleft()
        return None

    def drop(self) -> None:
        """Ends the flow: forgets what it holds, and drops what the source still sends."""
        self.ended = True
        self.blocked = False
        self._chunks.clear()
        self.held = 0

    def limit(self, bandwidth: float | None) -> None:
        """Sets the bandwidth, in bytes a second; None for no limit."""
        self.bandwidth = bandwidth
        self._free_at = 0.0

    def _part(self) -> int | None:
        if self.bandwidth is None:
            return None
        return max(1, int(self.bandwidth / _PARTS_PER_SECOND))


class Link:
    """A client's connection and the one that leads on to the target.

    Attributes:
        client: the socket towards the client.
        target: the socket towards the target.
        upstream: the bytes from the client to the target.
        downstream: those from the target to the client.
        over: whether it has ended, and waits only to be closed.
    """

    __slots__ = ("client", "downstream", "over", "target", "upstream")

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        for end in (client, target):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client = client
        self.target = target
        self.upstream = Flow(client, target)
        self.downstream = Flow(target, client)
        self.over = False

    @property
    def is_open(self) -> bool:
        """Whether the client still has its end open, as far as that was told."""
        return not (self.over or self.upstream.source_ended)

    @property
    def due(self) -> float | None:
        """When to `write` again, if that is a matter of time."""
        times = [due for due in (self.upstream.due, self.downstream.due) if due is not None]
        return min(times, default=None)

    def events(self, end: socket.socket) -> int:
        """Returns the events to watch a socket for; 0 for none."""
        if self.over:
            return 0
        outgoing, incoming = self._flows(end)
        reads = selectors.EVENT_READ if outgoing.reads else 0
        writes = incoming.blocked and not incoming.frozen
        return reads | (selectors.EVENT_WRITE if writes else 0)

    def ready(self, end: socket.socket, events: int, now: float) -> None:
        """Reads and writes after events on a socket."""
        outgoing = self._flows(end)[0]
        if events & selectors.EVENT_READ and outgoing.reads:
            try:
                outgoing.read(now)
            except OSError:
                self._lose(end, now)
        self.write(now)

    def write(self, now: float) -> None:
        """Writes what is due in both directions."""
        for flow in (self.upstream, self.downstream):
            if self.over:
                return
            try:
                how = flow.write(now)
            except OSError:
                self._lose(flow.sink, now)
            else:
                if how is not None:
                    self._pass_on(how, flow.sink)

    def half_close(self, flow: Flow) -> None:
        """Ends a flow at once, as if its source had closed its half of the connection."""
        if not flow.ended:
            flow.drop()
            self._pass_on(End.CLOSED, flow.sink)

    def finish(self, *, reset: bool) -> None:
        """Ends the link, with a TCP reset towards both sides if asked to."""
        self.over = True
        for flow in (self.upstream, self.downstream):
            flow.drop()
            if reset:
                flow.sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def close(self) -> None:
        """Closes both sockets; whoever watches them has to stop that before."""
        self.client.close()
        self.target.close()

    def _pass_on(self, how: End, sink: socket.socket) -> None:
        if how is End.RESET:
            self.finish(reset=True)
            return
        with suppress(OSError):  # it has gone meanwhile
            sink.shutdown(socket.SHUT_WR)
        if self.upstream.ended and self.downstream.ended:
            self.finish(reset=False)

    def _lose(self, end: socket.socket, now: float) -> None:
        """Takes note that a socket is broken; the other one learns of it in its turn."""
        outgoing, incoming = self._flows(end)
        incoming.drop()
        if not outgoing.source_ended:
            outgoing.end(now, End.RESET)
        if outgoing.ended:
            self.finish(reset=False)

    def _flows(self, end: socket.socket) -> tuple[Flow, Flow]:
        """Returns the flow out of a socket, and the one into it."""
        if end is self.client:
            return self.upstream, self.downstream
        return self.downstream, self.upstream
