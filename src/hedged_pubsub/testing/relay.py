"""A TCP relay in front of the gRPC port: acts on single connections, which gRPC's server cannot.

Each client connection has one connection of its own to the server, so the port that gRPC names as
a call's peer leads back to the client. One thread moves the bytes. What one may do to a connection
is done on that thread, so there is nothing to lock but the table that `client_address` reads.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

_CHUNK = 64 * 1024

# With a linger time of zero, close() sends a reset instead of an orderly end.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Direction:
    """One half of a relayed connection: what was read from one end and not yet written."""

    __slots__ = ("buffer", "source", "target")

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.buffer = b""

    def read(self) -> None:
        """Reads from the source once and passes it on.

        Raises:
            ConnectionError: if the source has closed its end.
        """
        read = self.source.recv(_CHUNK)
        if not read:
            raise ConnectionError("closed")
        self.buffer += read
        self.flush()

    def flush(self) -> None:
        """Writes as much of the buffer as the target takes now."""
        # A slow target takes nothing more for now: go on when it can.
        with contextlib.suppress(BlockingIOError):
            self.buffer = self.buffer[self.target.send(self.buffer) :]


class _Connection:
    """A client's connection and the one it is relayed to."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client = client
        self.server = server
        self.address = "ipv4:{}:{}".format(*client.getpeername())
        self.server_port: int = server.getsockname()[1]
        self.upward = _Direction(client, server)
        self.downward = _Direction(server, client)

    def handle(self, end: socket.socket, events: int) -> None:
        """Moves bytes after events on one end.

        Raises:
            OSError: if an end has closed or broken.
        """
        incoming, outgoing = self._directions(end)
        if events & selectors.EVENT_READ:
            incoming.read()
        if events & selectors.EVENT_WRITE:
            outgoing.flush()

    def interests(self, end: socket.socket) -> int:
        """Returns the events to watch an end for; 0 for none."""
        incoming, outgoing = self._directions(end)
        # No more is read than could be written, so a slow end slows the other one down.
        reads = 0 if incoming.buffer else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if outgoing.buffer else 0)

    def close(self, *, reset: bool) -> None:
        """Closes both ends; the client's with a TCP reset if asked to."""
        if reset:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.client.close()
        self.server.close()

    def _directions(self, end: socket.socket) -> tuple[_Direction, _Direction]:
        if end is self.client:
            return self.upward, self.downward
        return self.downward, self.upward


class Relay:
    """Accepts connections on loopback and relays each to the server. Idle, it uses no CPU."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._server_port = 0
        # By the port of the relay's end towards the server: what gRPC sees as the peer's.
        self._connections: dict[int, _Connection] = {}
        self._addresses: dict[int, str] = {}
        self._addresses_lock = threading.Lock()
        self._watched: dict[socket.socket, int] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="pubsub-server-relay", daemon=True)
        self._stopping = False

    def start(self, port: int, server_port: int) -> int:
        """Listens on ``port`` (0: a free one), relays to ``server_port``, returns its own port.

        Raises:
            OSError: if the port is not free.
        """
        self._server_port = server_port
        listener = self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        listener.setblocking(False)
        self._watch(listener, selectors.EVENT_READ, lambda _events: self._accept(listener))
        self._watch(self._wake_read, selectors.EVENT_READ, lambda _events: self._run_commands())
        self._thread.start()
        return int(listener.getsockname()[1])

    def client_address(self, peer: str) -> str:
        """Turns a peer as gRPC names it into the client's own address."""
        with self._addresses_lock:
            return self._addresses.get(_port(peer), peer)

    def reset(self, peer: str) -> None:
        """Resets the client's connection of a peer as gRPC names it; returns at once."""
        self._do(lambda: self._close(_port(peer), reset=True))

    def stop(self) -> None:
        """Closes all connections and the port, and ends the thread."""
        if self._thread.is_alive():
            self._do(self._begin_stop)
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    def _begin_stop(self) -> None:
        self._stopping = True
        for server_port in list(self._connections):
            self._close(server_port, reset=False)

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake_write.send(b"\0")

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select():
                key.data(events)

    def _run_commands(self) -> None:
        self._wake_read.recv(_CHUNK)
        while self._commands:
            self._commands.popleft()()

    def _accept(self, listener: socket.socket) -> None:
        try:
            client = listener.accept()[0]
        except OSError:
            return  # it went away before we got to it
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
            connection = _Connection(client, server)
        except OSError:
            client.close()  # the server is stopping
            return
        self._connections[connection.server_port] = connection
        with self._addresses_lock:
            self._addresses[connection.server_port] = connection.address
        self._watch_ends(connection)

    def _handle(self, connection: _Connection, end: socket.socket, events: int) -> None:
        if connection.server_port not in self._connections:
            return  # closed earlier in this round of events
        try:
            connection.handle(end, events)
        except OSError:
            self._close(connection.server_port, reset=False)
        else:
            self._watch_ends(connection)

    def _watch_ends(self, connection: _Connection) -> None:
        for end in (connection.client, connection.server):
            self._watch(
                end,
                connection.interests(end),
                functools.partial(self._handle, connection, end),
            )

    def _watch(self, end: socket.socket, events: int, react: Callable[[int], None]) -> None:
        watched = self._watched.get(end, 0)
        if events == watched:
            return
        if not events:
            self._selector.unregister(end)
        elif not watched:
            self._selector.register(end, events, react)
        else:
            self._selector.modify(end, events, react)
        self._watched[end] = events

    def _close(self, port: int, *, reset: bool) -> None:
        connection = self._connections.pop(port, None)
        if connection is None:
            return
        with self._addresses_lock:
            self._addresses.pop(port, None)
        for end in (connection.client, connection.server):
            if self._watched.pop(end, 0):
                self._selector.unregister(end)
        connection.close(reset=reset)


def _port(peer: str) -> int:
    return int(peer.rpartition(":")[2])
