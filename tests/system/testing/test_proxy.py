"""The proxy's faults, seen by plain sockets on both sides."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from hedged_pubsub.testing import ProxyConnection, TcpProxy

from .raw_client import wait_until

SOON = 10.0
"""Seconds within which what is to happen must happen, also on a busy machine."""
QUIET = 0.15
"""Seconds in which what must not happen would have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Both ends of a connection through the proxy."""

    client: socket.socket
    server: socket.socket
    connection: ProxyConnection


class Network:
    """A listening socket with a proxy in front of it."""

    def __init__(self) -> None:
        self._ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.proxy = TcpProxy("127.0.0.1:{}".format(*self.listener.getsockname()[1:]))
        self.proxy.start()

    def dial(self) -> socket.socket:
        """Connect to the proxy."""
        client = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=SOON)
        self._ends.append(client)
        return client

    def connect(self) -> Wire:
        """Connect through the proxy."""
        client = self.dial()
        server, address = self.listener.accept()
        server.settimeout(SOON)
        self._ends.append(server)
        peer = "{}:{}".format(*address)
        wait_until(lambda: self.proxy.connection_of(peer))  # the kernel may be ahead of the proxy
        connection = self.proxy.connection_of(peer)
        assert connection is not None
        return Wire(client=client, server=server, connection=connection)

    def close(self) -> None:
        """Close everything."""
        self.proxy.stop()
        for end in (*self._ends, self.listener):
            end.close()


@pytest.fixture
def network() -> Iterator[Network]:
    """Put a proxy in front of a listening socket."""
    network = Network()
    yield network
    network.close()


@pytest.fixture
def wire(network: Network) -> Wire:
    """Connect through the proxy."""
    return network.connect()


def test_bytes_pass_both_ways(network: Network, wire: Wire) -> None:
    """What one end writes the other one reads, and the proxy counts it."""
    wire.client.sendall(b"to the server")
    assert receive(wire.server, 13) == b"to the server"
    wire.server.sendall(b"back")
    assert receive(wire.client, 4) == b"back"

    assert network.proxy.connections == (wire.connection,)
    assert wire.connection.client_address == "{}:{}".format(*wire.client.getsockname())
    assert wire.connection.is_open
    # What was written may be read before it is counted.
    wait_until(lambda: wire.connection.delivered("upstream") == 13)
    wait_until(lambda: wire.connection.delivered("downstream") == 4)


def test_megabytes_pass_both_ways_at_once(wire: Wire) -> None:
    """More than any buffer takes arrives whole and in order, with slow readers."""
    body = bytes(range(256)) * 40_000

    def send(end: socket.socket) -> None:
        end.sendall(body)
        end.shutdown(socket.SHUT_WR)

    senders = [threading.Thread(target=send, args=[end]) for end in (wire.client, wire.server)]
    for sender in senders:
        sender.start()
    assert receive(wire.client, len(body) + 1) == body
    assert receive(wire.server, len(body) + 1) == body
    for sender in senders:
        sender.join()


def test_half_a_close_passes_and_the_other_half_goes_on(wire: Wire) -> None:
    """A client that has said its last word still hears the answer."""
    wire.client.sendall(b"question")
    wire.client.shutdown(socket.SHUT_WR)
    assert receive(wire.server, 100) == b"question"
    wire.server.sendall(b"answer")
    assert receive(wire.client, 6) == b"answer"
    assert not wire.connection.is_open


def test_a_close_and_a_reset_pass(network: Network) -> None:
    """The server learns of the client's end, of either kind, behind what the client sent."""
    closed, broken = network.connect(), network.connect()
    closed.client.sendall(b"bye")
    closed.client.close()
    assert receive(closed.server, 100) == b"bye"
    reset(broken.client)
    with pytest.raises(ConnectionResetError):
        broken.server.recv(100)
    wait_until(lambda: not closed.connection.is_open)
    assert not broken.connection.is_open


@pytest.mark.parametrize("direction", [None, "upstream", "downstream"])
def test_frozen_bytes_are_neither_delivered_nor_refused(wire: Wire, direction: Any) -> None:
    """Nothing passes in a frozen direction and all passes in the other; a thaw delivers it all."""
    wire.connection.freeze(direction)
    for part in (b"one ", b"two"):
        wire.client.sendall(part)
        wire.server.sendall(part)
    up, down = direction in (None, "upstream"), direction in (None, "downstream")

    assert is_quiet(wire.server) if up else receive(wire.server, 7) == b"one two"
    assert is_quiet(wire.client) if down else receive(wire.client, 7) == b"one two"
    assert wire.connection.is_open
    if up:
        wait_until(lambda: wire.connection.held("upstream") == 7)
        assert wire.connection.delivered("upstream") == 0

    wire.connection.thaw(direction)
    if up:
        assert receive(wire.server, 7) == b"one two"
    if down:
        assert receive(wire.client, 7) == b"one two"
    assert wire.connection.held("upstream") == 0


def test_a_thaw_of_one_direction_leaves_the_other_frozen(wire: Wire) -> None:
    """Directions are frozen on their own."""
    wire.connection.freeze()
    wire.client.sendall(b"up")
    wire.server.sendall(b"down")
    wire.connection.thaw("downstream")
    assert receive(wire.client, 4) == b"down"
    assert is_quiet(wire.server)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_the_end_of_a_frozen_connection_reaches_the_other_side_with_the_thaw(
    wire: Wire, end: str
) -> None:
    """As behind a vanished NAT entry the server hears nothing; the proxy knows."""
    wire.connection.freeze()
    wire.client.sendall(b"last words")
    wait_until(lambda: wire.connection.held("upstream") == 10)
    if end == "close":
        wire.client.close()
    else:
        reset(wire.client)
    wait_until(lambda: not wire.connection.is_open)
    assert is_quiet(wire.server)

    wire.connection.thaw()
    assert receive(wire.server, 10) == b"last words"
    if end == "close":
        assert wire.server.recv(100) == b""
    else:
        with pytest.raises(ConnectionResetError):
            wire.server.recv(100)


def test_a_frozen_sender_is_stopped_by_its_window_in_the_end(wire: Wire) -> None:
    """The proxy does not take in bytes without bound, and loses none of those it took."""
    wire.connection.freeze("upstream")
    sent = send_until_blocked(wire.client)
    wait_until(lambda: wire.connection.held("upstream") >= 16 * 1024 * 1024)
    assert wire.connection.held("upstream") < 17 * 1024 * 1024

    wire.connection.thaw()
    assert len(receive(wire.server, sent)) == sent


def test_a_reset_is_a_tcp_reset_at_both_ends(network: Network, wire: Wire) -> None:
    """Neither end sees an orderly close, and another connection is spared."""
    other = network.connect()
    wire.connection.reset()
    for end in (wire.client, wire.server):
        with pytest.raises(ConnectionResetError):
            end.recv(100)
    assert not wire.connection.is_open

    other.client.sendall(b"spared")
    assert receive(other.server, 6) == b"spared"


def test_a_reset_also_breaks_a_frozen_connection(wire: Wire) -> None:
    """A reset of the proxy's own is not held back."""
    wire.connection.freeze()
    wire.connection.reset()
    with pytest.raises(ConnectionResetError):
        wire.client.recv(100)


@pytest.mark.parametrize(
    ("direction", "reader"), [("downstream", "client"), ("upstream", "server")]
)
def test_a_half_close_ends_one_direction_only(wire: Wire, direction: Any, reader: str) -> None:
    """One end reads the end of the stream, and what it writes still arrives."""
    ends = {"client": wire.client, "server": wire.server}
    ended = ends.pop(reader)
    (other,) = ends.values()
    wire.connection.half_close(direction)
    assert ended.recv(100) == b""
    other.sendall(b"lost")
    ended.sendall(b"goes on")
    assert receive(other, 7) == b"goes on"
    assert wire.connection.is_open

    ended.shutdown(socket.SHUT_WR)
    assert other.recv(100) == b""


def test_added_latency_delays_and_keeps_the_order(wire: Wire) -> None:
    """Every byte waits its time, also when the latency falls meanwhile: none overtakes another."""
    start = time.monotonic()
    wire.connection.delay(0.3, "upstream")
    wire.client.sendall(b"slow ")
    wait_until(lambda: wire.connection.held("upstream") == 5)
    wire.connection.delay(0, "upstream")
    wire.client.sendall(b"fast")
    assert receive(wire.server, 9) == b"slow fast"
    assert time.monotonic() - start >= 0.3

    wire.server.sendall(b"back")  # the other direction has no latency
    before = time.monotonic()
    assert receive(wire.client, 4) == b"back"
    assert time.monotonic() - before < 0.3


def test_latency_is_not_a_limit_of_throughput(wire: Wire) -> None:
    """Bytes that were sent together arrive together, however many there are."""
    wire.connection.delay(0.3)
    body = bytes(4_000_000)
    start = time.monotonic()
    sender = threading.Thread(target=wire.client.sendall, args=[body])
    sender.start()
    assert len(receive(wire.server, len(body))) == len(body)
    sender.join()
    assert 0.3 <= time.monotonic() - start < 3


def test_a_bandwidth_limit_bounds_the_bytes_of_a_second(wire: Wire) -> None:
    """Half a second's worth of bytes takes half a second, in parts; the other way is not slower."""
    wire.connection.limit(100_000, "upstream")
    start = time.monotonic()
    wire.client.sendall(bytes(50_000))
    first = wire.server.recv(50_000)
    assert len(first) < 25_000
    receive(wire.server, 50_000 - len(first))
    assert 0.4 <= time.monotonic() - start < 5

    start = time.monotonic()
    wire.server.sendall(bytes(1_000_000))
    receive(wire.client, 1_000_000)
    assert time.monotonic() - start < 5


def test_a_limit_is_lifted(wire: Wire) -> None:
    """What waited for its turn at one byte a second goes at once."""
    wire.connection.limit(1)
    wire.client.sendall(bytes(1000))
    receive(wire.server, 1)
    wire.connection.limit(None)
    start = time.monotonic()
    receive(wire.server, 999)
    assert time.monotonic() - start < 5


def test_refused_connections_are_refused_by_the_kernel(network: Network, wire: Wire) -> None:
    """Nothing listens meanwhile; what is open stays, and the same port opens again."""
    network.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        network.dial()
    wire.client.sendall(b"still here")
    assert receive(wire.server, 10) == b"still here"

    network.proxy.accept()
    again = network.connect()
    again.client.sendall(b"back")
    assert receive(again.server, 4) == b"back"
    assert len(network.proxy.connections) == 2


def test_connections_can_be_accepted_and_never_answered(network: Network, wire: Wire) -> None:
    """New ones are frozen from the first byte, each until its thaw; older ones are not."""
    network.proxy.accept(frozen=True)
    dead = network.connect()
    dead.client.sendall(b"hello?")
    wire.client.sendall(b"here")
    assert receive(wire.server, 4) == b"here"
    assert is_quiet(dead.server)

    network.proxy.accept()
    alive = network.connect()
    alive.client.sendall(b"hello")
    assert receive(alive.server, 5) == b"hello"
    assert is_quiet(dead.server)
    dead.connection.thaw()
    assert receive(dead.server, 6) == b"hello?"


def test_the_most_connections_open_at_once_are_counted(network: Network) -> None:
    """Clients that come one after the other are one at a time, frozen or not."""
    for number in range(5):
        wire = network.connect()
        if number % 2:
            wire.connection.freeze()
        wire.client.close()
    assert network.proxy.max_open == 1
    network.connect()
    network.connect()
    assert network.proxy.max_open == 2
    assert len(network.proxy.connections) == 7
    open_ones = [connection.is_open for connection in network.proxy.connections]
    assert open_ones == [False] * 5 + [True] * 2


def test_a_target_that_is_gone_ends_the_connection(network: Network) -> None:
    """The client is told, and the proxy goes on."""
    network.listener.close()
    client = network.dial()
    assert client.recv(100) == b""
    assert network.proxy.connections == ()


def test_a_stop_closes_all_and_ends_the_thread(network: Network, wire: Wire) -> None:
    """Connections are closed, the port is free, and faults do nothing any more."""
    wire.connection.freeze()
    network.proxy.stop()
    assert wire.client.recv(100) == b""
    assert wire.server.recv(100) == b""
    assert not wire.connection.is_open
    assert "tcp-proxy" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConnectionRefusedError):
        network.dial()

    wire.connection.thaw()
    network.proxy.accept()
    network.proxy.stop()
    with pytest.raises(RuntimeError, match="started before"):
        network.proxy.start()


def test_idle_and_frozen_it_takes_no_time(network: Network, wire: Wire) -> None:
    """The thread sleeps while nothing passes, whatever is held back, closed or broken."""
    half_closed, broken, blocked = network.connect(), network.connect(), network.connect()
    wire.connection.freeze()
    wire.client.sendall(b"held")
    half_closed.client.shutdown(socket.SHUT_WR)
    broken.connection.freeze("upstream")
    reset(broken.client)
    send_until_blocked(blocked.client)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("target", ["localhost", "127.0.0.1:", ":8085", "127.0.0.1:http"])
def test_a_target_without_host_or_port_is_refused(target: str) -> None:
    """The error says what a target looks like."""
    with pytest.raises(ValueError, match=r"target=.* must be host and port"):
        TcpProxy(target)


def test_wrong_values_are_refused_and_change_nothing(wire: Wire) -> None:
    """The error names argument and bound."""
    with pytest.raises(ValueError, match=r"seconds=-1 must be a finite number, at least 0"):
        wire.connection.delay(-1)
    with pytest.raises(ValueError, match=r"bytes_per_second=0 must be above 0"):
        wire.connection.limit(0)
    with pytest.raises(ValueError, match=r'direction="?.*"upstream"'):
        wire.connection.freeze("sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="port=65536"):
        TcpProxy("127.0.0.1:1", port=65_536)
    wire.client.sendall(b"as before")
    assert receive(wire.server, 9) == b"as before"


def receive(end: socket.socket, count: int) -> bytes:
    """Read so many bytes, or all there are until the end of the stream."""
    parts = []
    while count and (part := end.recv(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def send_until_blocked(end: socket.socket) -> int:
    """Write until the other side takes nothing for a while; returns how many bytes it took."""
    end.settimeout(QUIET)
    sent = 0
    with suppress(TimeoutError):
        while True:
            sent += end.send(bytes(1_000_000))
    return sent


def is_quiet(end: socket.socket) -> bool:
    """Tell whether nothing arrives for a while, not even an end."""
    end.settimeout(QUIET)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(SOON)
    return False


def reset(end: socket.socket) -> None:
    """Close with a TCP reset instead of in order."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    end.close()
