"""A publish service on h2, which does what no gRPC server does on demand: goes away, refuses."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings
from google.pubsub_v1 import types


@dataclass(slots=True)
class Http2Server:
    """What it is to do, and what came in.

    Attributes:
        address: Where it listens.
        max_streams: Requests at a time on a connection.
        requests_a_connection: After how many it sends GOAWAY, and answers no more than those.
        refuses: How many requests are refused, unprocessed.
        seconds: That an answer takes.
        stored: The data of all messages that came in.
        connections: How many there were.
        most_streams: Requests that were under way at a time on one of them.
    """

    address: str = ""
    max_streams: int = 100
    requests_a_connection: int = 2**31
    refuses: int = 0
    seconds: float = 0.0
    stored: list[bytes] = field(default_factory=list)
    connections: int = 0
    most_streams: int = 0

    def serve(self, one: socket.socket) -> None:
        """Serve a connection until its end."""
        self.connections += 1
        with one, contextlib.suppress(OSError):
            _Served(self, one).run()


class _Served:
    def __init__(self, server: Http2Server, one: socket.socket) -> None:
        self._server = server
        self._socket = one
        self._lock = threading.Lock()
        self._bodies: dict[int, bytearray] = {}
        self._under_way: set[int] = set()
        self._taken = 0
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: server.max_streams}
        self._h2.local_settings = h2.settings.Settings(client=False, initial_values=limit)

    def run(self) -> None:
        self._h2.initiate_connection()
        self._send()
        while data := self._socket.recv(2**16):
            with self._lock:
                whole = [self._take(event) for event in self._h2.receive_data(data)]
                self._send()
            for stream_id in filter(None, whole):
                timer = threading.Timer(self._server.seconds, self._answer, (stream_id,))
                timer.daemon = True
                timer.start() if self._server.seconds else self._answer(stream_id)

    def _take(self, event: h2.events.Event) -> int | None:
        server = self._server
        if isinstance(event, h2.events.RequestReceived):
            if server.refuses:
                server.refuses -= 1
                self._h2.reset_stream(event.stream_id, 7)
                return None
            if self._taken == server.requests_a_connection:
                # By its number: h2 would say that it knows of this one as well.
                self._h2.close_connection(0, last_stream_id=event.stream_id - 2)
                self._taken += 1
            if self._taken > server.requests_a_connection:
                return None
            self._taken += 1
            self._bodies[event.stream_id] = bytearray()
            self._under_way.add(event.stream_id)
            server.most_streams = max(server.most_streams, len(self._under_way))
        elif isinstance(event, h2.events.DataReceived) and event.stream_id in self._bodies:
            self._bodies[event.stream_id] += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id in self._bodies:
            return event.stream_id
        return None

    def _answer(self, stream_id: int) -> None:
        request = types.PublishRequest.deserialize(bytes(self._bodies.pop(stream_id)[5:]))
        data = [message.data for message in request.messages]
        first = len(self._server.stored)
        self._server.stored += data
        ids = [str(first + number) for number in range(len(data))]
        answer = types.PublishResponse.serialize(types.PublishResponse(message_ids=ids))
        with self._lock:
            self._under_way.discard(stream_id)
            fields = [(":status", "200"), ("content-type", "application/grpc")]
            # After GOAWAY, h2 itself sends nothing any more.
            self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            self._h2.send_headers(stream_id, fields)
            self._h2.send_data(stream_id, b"\0" + len(answer).to_bytes(4, "big") + answer)
            self._h2.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
            with contextlib.suppress(OSError):
                self._send()
            if self._taken > self._server.requests_a_connection and not self._under_way:
                self._socket.shutdown(socket.SHUT_WR)

    def _send(self) -> None:
        if self._taken > self._server.requests_a_connection:
            # It goes on after its GOAWAY, which h2 does not know.
            self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        self._socket.sendall(self._h2.data_to_send())


@contextmanager
def http2_server(server: Http2Server) -> Iterator[Http2Server]:
    """Serve until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.address = f"127.0.0.1:{listener.getsockname()[1]}"
        accepting = threading.Thread(target=_accept, args=(server, listener), daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)


def _accept(server: Http2Server, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            one, _ = listener.accept()
            threading.Thread(target=server.serve, args=(one,), daemon=True).start()
