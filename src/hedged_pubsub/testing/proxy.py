"""A TCP proxy on loopback whose connections break on demand: the network's faults, for tests.

One thread does all that is done to connections, so there is nothing to lock but the hand-over of
commands to it. What it does to the bytes of one connection is in `hedged_pubsub.testing.link`.
"""

from __future__ import annotations

import functools
import selectors
import socket
import threading
import time
from collections import deque
from concurrent import futures
from types import TracebackType
from typing import Any, Final, cast

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.link import Link
from hedged_pubsub.testing.proxy_connection import Command, ProxyConnection

_BACKLOG: Final = 1024
_CONNECT_SECONDS: Final = 10.0
_MANY_WAKES: Final = 4096  # one byte each; what is left wakes the thread once more


class TcpProxy:
    """Accepts connections on loopback and leads each to a target, with faults on demand.

    It passes bytes without reading them: TLS goes through, and any server can be behind. Idle, it
    uses no CPU. Use it as a context manager, or call `start` and `stop`, once each.

    Args:
        target: host and port of the server behind, on this machine, such as
            ``"127.0.0.1:8085"``; `PubSubServer.address` is one.
        port: the port to listen on; 0 for one that is free.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a target without a port, or a port that is not between 0 and 65535.
    """

    def __init__(self, target: str, *, port: int = 0) -> None:
        host, _, target_port = checks.text("target", target, "127.0.0.1:8085").rpartition(":")
        if not host or not target_port.isdecimal():
            raise ValueError(f'target={target!r} must be host and port, such as "127.0.0.1:8085"')
        self._target = (host, int(target_port))
        self._port = checks.integer("port", port, minimum=0, maximum=65_535)
        self._listener: socket.socket | None = None
        self._new_are_frozen = False
        self._connections: list[ProxyConnection] = []
        self._by_port: dict[int, ProxyConnection] = {}
        self._max_open = 0
        self._links: set[Link] = set()  # those that are not over
        self._timed: set[Link] = set()  # and of them, those that wait for a time
        self._watched: dict[socket.socket, int] = {}
        self._lock = threading.Lock()  # guards the two below
        self._commands: deque[tuple[Command, futures.Future[None]]] = deque()
        self._running = False
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)

    def __repr__(self) -> str:
        """Says where the proxy is and where it leads."""
        return f"<{type(self).__name__} at {self.address} to {self._target[0]}:{self._target[1]}>"

    def __enter__(self) -> TcpProxy:
        """Starts the proxy."""
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops the proxy."""
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on; with ``port=0``, known once it was started."""
        return self._port

    @property
    def address(self) -> str:
        """Host and port, such as ``"127.0.0.1:40123"``: a value for ``PUBSUB_EMULATOR_HOST``."""
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> tuple[ProxyConnection, ...]:
        """Every connection since the start, in order of arrival, ended ones included."""
        return tuple(self._connections)

    @property
    def max_open(self) -> int:
        """The most connections that clients had open at the same time."""
        return self._max_open

    def connection_of(self, peer: str) -> ProxyConnection | None:
        """Returns the connection whose client the target knows by this address.

        Args:
            peer: host and port, or what gRPC makes of it: `Attempt.peer` of a server behind the
                proxy.

        Returns:
            The connection, or None if there is none; of several, the latest.
        """
        return self._by_port.get(int(peer.rpartition(":")[2]))

    def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: if the port is not free.
            RuntimeError: if it was started before.
        """
        if self._thread.ident is not None:
            raise RuntimeError("the proxy was started before; make another one")
        listener = self._open_listener()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._watch(self._wake_read, selectors.EVENT_READ)
        self._listen(listener)
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        """Closes all connections and the port. Does nothing if the proxy does not run."""
        self._do(lambda _now: self._end())
        if self._thread.ident is not None:
            self._thread.join()

    def accept(self, *, frozen: bool = False) -> None:
        """Takes new connections, as it does from the start.

        Args:
            frozen: whether each is frozen from its first byte: accepted, and never answered.

        Raises:
            OSError: if the port was closed and is not free any more.
        """

        def command(_now: float) -> None:
            self._new_are_frozen = frozen
            if self._listener is None:
                self._listen(self._open_listener())

        self._do(command)

    def refuse(self) -> None:
        """Closes the port, so that new connections are refused; those that are open stay so."""
        self._do(lambda _now: self._close_listener())

    def _do(self, command: Command) -> None:
        """Lets the thread run a command and waits for it; does nothing once it has ended."""
        done: futures.Future[None] = futures.Future()
        with self._lock:
            if not self._running:
                return
            self._commands.append((command, done))
            self._wake_write.send(b"\0")
        done.result()

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            with self._lock:
                self._running = False
            for _command, done in self._commands:
                done.set_exception(RuntimeError("the proxy's thread has failed"))
            self._wake_read.close()
            self._wake_write.close()
            self._selector.close()

    def _turn(self) -> None:
        ready = self._selector.select(self._seconds_to_next())
        now = time.monotonic()
        others = set()
        for key, events in ready:
            if key.data is None:
                others.add(key.fileobj)
            elif key.data in self._links:  # else it ended earlier in this turn
                key.data.ready(key.fileobj, events, now)
                self._watch_link(key.data)
        for link in [link for link in self._timed if cast(float, link.due) <= now]:
            link.write(now)
            self._watch_link(link)
        # After the bytes: a client that closes a connection and opens another never had two.
        if self._listener in others:
            self._take()
        if self._wake_read in others:
            self._wake_read.recv(_MANY_WAKES)
            self._run_commands(now)

    def _seconds_to_next(self) -> float | None:
        due = min((cast(float, link.due) for link in self._timed), default=None)
        return None if due is None else max(due - time.monotonic(), 0)

    def _run_commands(self, now: float) -> None:
        while self._commands:
            command, done = self._commands.popleft()
            try:
                command(now)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever gave the command
                done.set_exception(error)
            else:
                done.set_result(None)

    def _end(self) -> None:
        with self._lock:
            self._running = False
        self._close_listener()
        for link in list(self._links):
            link.finish(reset=False)
            self._watch_link(link)

    def _open_listener(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self._port), backlog=_BACKLOG)
        listener.setblocking(False)
        return listener

    def _listen(self, listener: socket.socket) -> None:
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._watch(listener, selectors.EVENT_READ)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._watch(self._listener, 0)
            self._listener.close()
            self._listener = None

    def _take(self) -> None:
        """Accepts a connection and opens the one that leads on."""
        listener = cast(socket.socket, self._listener)
        try:
            client = listener.accept()[0]
        except OSError:
            return  # it went away before we got to it
        try:
            target = socket.create_connection(self._target, _CONNECT_SECONDS)
        except OSError:
            client.close()
            return
        try:
            link = Link(client, target)
            connection = ProxyConnection(link, functools.partial(self._do_to, link))
        except OSError:  # the client has gone
            client.close()
            target.close()
            return
        if self._new_are_frozen:
            link.upstream.frozen = link.downstream.frozen = True
        self._links.add(link)
        self._max_open = max(self._max_open, sum(link.is_open for link in self._links))
        self._connections.append(connection)
        self._by_port[target.getsockname()[1]] = connection
        self._watch_link(link)

    def _do_to(self, link: Link, command: Command) -> None:
        def and_watch(now: float) -> None:
            if not link.over:
                command(now)
                self._watch_link(link)

        self._do(and_watch)

    def _watch_link(self, link: Link) -> None:
        """Watches what matters to a link now, after something has happened to it."""
        for end in (link.client, link.target):
            self._watch(end, link.events(end), link)
        if link.over:
            self._links.discard(link)
            link.close()
        if link.due is None:
            self._timed.discard(link)
        else:
            self._timed.add(link)

    def _watch(self, end: socket.socket, events: int, data: Any = None) -> None:
        watched = self._watched.get(end, 0)
        if events == watched:
            return
        if not events:
            del self._watched[end]
            self._selector.unregister(end)
            return
        if watched:
            self._selector.modify(end, events, data)
        else:
            self._selector.register(end, events, data)
        self._watched[end] = events
