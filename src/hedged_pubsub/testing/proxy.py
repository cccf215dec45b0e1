"""A TCP proxy on loopback whose connections break on demand: the network's faults, for tests.

One thread, with an event loop, does everything to the connections.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.proxy_connection import Link, ProxyConnection
from hedged_pubsub.testing.threads import LoopThread

_BACKLOG: Final = 1024
_CONNECT_SECONDS: Final = 10.0


class TcpProxy:
    """Accept connections on loopback and lead each to a target, with faults on demand.

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
        self._port = checks.integer("port", port, 0, 65_535)
        self._listener: socket.socket | None = None
        self._new_are_frozen = False
        self._connections: list[ProxyConnection] = []
        self._by_port: dict[int, ProxyConnection] = {}
        self._max_open = 0
        self._links: list[Link] = []
        self._thread = LoopThread("tcp-proxy")

    def __repr__(self) -> str:
        """Say where the proxy is and where it leads."""
        return f"<{type(self).__name__} at {self.address} to {self._target[0]}:{self._target[1]}>"

    def __enter__(self) -> TcpProxy:
        """Start the proxy."""
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop the proxy."""
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
        """Return the latest connection whose client the target knows by this address, or None.

        Args:
            peer: host and port, or what gRPC makes of it: `Attempt.peer` of a server behind the
                proxy.
        """
        return self._by_port.get(int(peer.rpartition(":")[2]))

    def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: if the port is not free.
            RuntimeError: if it was started before.
        """
        self._thread.start()
        try:
            self._thread.call(self._listen)
        except OSError:
            self._thread.stop()
            self._thread = LoopThread("tcp-proxy")
            raise

    def stop(self) -> None:
        """Close all connections and the port. Do nothing if the proxy does not run."""
        self._thread.call(self._end)
        self._thread.stop()

    def accept(self, *, frozen: bool = False) -> None:
        """Take new connections, as it does from the start.

        Args:
            frozen: whether each is frozen from its first byte: accepted, and never answered.

        Raises:
            OSError: if the port was closed and is not free any more.
        """

        def accept() -> None:
            self._new_are_frozen = frozen
            if self._listener is None:
                self._listen()

        self._thread.call(accept)

    def refuse(self) -> None:
        """Close the port, so that new connections are refused; those that are open stay so."""
        self._thread.call(self._close_listener)

    def _end(self) -> None:
        self._close_listener()
        for link in self._links:
            link.do(link.finish, reset=False)

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._thread.loop.add_reader(self._listener, self._take_soon, self._listener)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._thread.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _take_soon(self, listener: socket.socket) -> None:
        """Accept after the bytes: who closes a connection and opens another never had two."""
        self._thread.loop.remove_reader(listener)
        self._thread.loop.call_soon(self._take, listener)

    def _take(self, listener: socket.socket) -> None:
        """Accept a connection and open the one that leads on."""
        if listener is not self._listener:  # closed meanwhile
            return
        self._thread.loop.add_reader(listener, self._take_soon, listener)
        try:
            with ExitStack() as ends:
                client = ends.enter_context(listener.accept()[0])
                target = socket.create_connection(self._target, _CONNECT_SECONDS)
                ends.enter_context(target)
                link = Link(client, target, self._thread.loop)
                connection = ProxyConnection(link, self._thread.call)
                ends.pop_all()
        except OSError:  # the client has gone, or the target
            return
        link.upstream.frozen = link.downstream.frozen = self._new_are_frozen
        self._links.append(link)
        self._connections.append(connection)
        self._max_open = max(self._max_open, sum(c.is_open for c in self._connections))
        self._by_port[target.getsockname()[1]] = connection
        link.update()
