"""The proxy's faults, seen by plain sockets on both sides."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, cast

import pytest

from hedged_pubsub.testing import ProxyConnection, TcpProxy
from tests.system.conftest import wait_until

SOON = 30.0  # seconds within which what is to happen must happen, also on a busy machine
QUIET = 0.1  # seconds in which what must not happen would have happened


class Wire(NamedTuple):
    """Both ends of a connection through the proxy."""

    client: socket.socket
    server: socket.socket
    connection: ProxyConnection


class Network:
    """A listening socket with a proxy in front of it."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        self.listener = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        target = "127.0.0.1:{}".format(*self.listener.getsockname()[1:])
        self.proxy = ends.enter_context(TcpProxy(target))

    def dial(self) -> socket.socket:
        """Connect to the proxy."""
        address = ("127.0.0.1", self.proxy.port)
        return self._ends.enter_context(socket.create_connection(address, timeout=SOON))

    def connect(self) -> Wire:
        """Connect through the proxy."""
        client = self.dial()
        server, address = self.listener.accept()
        self._ends.enter_context(server).settimeout(SOON)
        peer = "{}:{}".format(*address)
        wait_until(lambda: self.proxy.connection_of(peer))  # the kernel may be ahead of the proxy
        return Wire(client, server, cast(ProxyConnection, self.proxy.connection_of(peer)))


@pytest.fixture
def network() -> Iterator[Network]:
    """Put a proxy in front of a listening socket."""
    with ExitStack() as ends:
        yield Network(ends)


@pytest.fixture
def wire(network: Network) -> Wire:
    """Connect through the proxy."""
    return network.connect()


def receive(end: socket.socket, count: int) -> bytes:
    """Read so many bytes, or all there are until the end of the stream."""
    received = bytearray()
    while part := end.recv(count - len(received)):
        received += part
    return bytes(received)


def passes(body: bytes, sender: socket.socket, receiver: socket.socket) -> bool:
    """Tell whether what one end sends arrives at the other, and nothing before it."""
    sender.sendall(body)
    return receive(receiver, len(body)) == body


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
    return not select.select([end], [], [], QUIET)[0]


def reset(end: socket.socket) -> None:
    """Close with a TCP reset instead of in order."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    end.close()


def assert_ended(end: socket.socket, how: Callable[[socket.socket], None]) -> None:
    """Read the end of the stream, which is a close or a reset."""
    if how is reset:
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    else:
        assert end.recv(1) == b""


def test_bytes_pass_both_ways(network: Network, wire: Wire) -> None:
    """What one end writes the other one reads, also after the other has ended its half."""
    assert passes(b"to the server", wire.client, wire.server)
    assert passes(b"back", wire.server, wire.client)
    assert network.proxy.connections == (wire.connection,)
    assert wire.connection.client_address == "{}:{}".format(*wire.client.getsockname())
    assert wire.connection.is_open
    # What was written may be read before it is counted.
    wait_until(lambda: wire.connection.delivered("upstream") == 13)
    wait_until(lambda: wire.connection.delivered("downstream") == 4)

    wire.client.shutdown(socket.SHUT_WR)
    assert wire.server.recv(1) == b""
    assert passes(b"answer", wire.server, wire.client)
    assert not wire.connection.is_open


@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_megabytes_pass_everywhere_at_once(network: Network, wire: Wire, latency: float) -> None:
    """More than any buffer takes arrives whole and in order, both ways on two connections.

    A latency does not limit the throughput: what was sent together arrives together.
    """
    body = bytes(range(256)) * 40_000
    other = network.connect()
    for connection in (wire.connection, other.connection):
        connection.delay(latency)
    ends = [*wire[:2], *other[:2]]
    start = time.monotonic()
    with ThreadPoolExecutor(len(ends)) as senders:
        sent = [senders.submit(end.sendall, body) for end in ends]
        assert all(receive(end, len(body)) == body for end in ends)
    assert [sending.result() for sending in sent] == [None] * len(ends)
    assert latency <= time.monotonic() - start < 10  # one buffer at a time, it would be 46


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["close", "reset"])
def test_a_clients_end_reaches_the_server_behind_its_bytes(
    wire: Wire, end: Callable[[socket.socket], None]
) -> None:
    """With the thaw, as behind a vanished NAT entry; only the proxy knows before."""
    wire.connection.freeze()
    wire.client.sendall(b"last words")
    wait_until(lambda: wire.connection.held("upstream") == 10)
    end(wire.client)
    wait_until(lambda: not wire.connection.is_open)
    assert is_quiet(wire.server)
    wire.connection.thaw()
    assert receive(wire.server, 10) == b"last words"
    assert_ended(wire.server, end)


@pytest.mark.parametrize("direction", [None, "upstream", "downstream"])
def test_frozen_bytes_are_neither_delivered_nor_refused(wire: Wire, direction: Any) -> None:
    """Nothing passes in a frozen direction and all passes in the other; a thaw delivers it all."""
    client, server, connection = wire
    connection.freeze(direction)
    ways: dict[Any, tuple[socket.socket, ...]] = {
        "upstream": (client, server),
        "downstream": (server, client),
    }
    for way, (sender, receiver) in ways.items():
        if direction not in (None, way):
            assert passes(b"one two", sender, receiver)
            continue
        sender.sendall(b"one two")
        assert is_quiet(receiver)
        wait_until(partial(lambda way: connection.held(way) == 7, way))
        assert connection.delivered(way) == 0
        connection.thaw(way)
        assert receive(receiver, 7) == b"one two"
        assert connection.held(way) == 0


def test_a_frozen_sender_is_stopped_by_its_window_in_the_end(wire: Wire) -> None:
    """The proxy does not take in bytes without bound, and loses none of those it took."""
    wire.connection.freeze("upstream")
    sent = 0
    while wire.connection.held("upstream") < 16 * 1024 * 1024:
        sent += send_until_blocked(wire.client)
    assert wire.connection.held("upstream") < 17 * 1024 * 1024
    wire.connection.thaw()
    assert len(receive(wire.server, sent)) == sent


def test_a_reset_is_a_tcp_reset_at_both_ends(network: Network, wire: Wire) -> None:
    """It is not held back by a freeze, and another connection is spared."""
    other = network.connect()
    wire.connection.freeze()
    wire.connection.reset()
    for end in (wire.client, wire.server):
        assert_ended(end, reset)
    assert not wire.connection.is_open
    assert passes(b"spared", other.client, other.server)
    reset(other.client)
    assert_ended(other.server, reset)


@pytest.mark.parametrize("direction", ["downstream", "upstream"])
def test_a_half_close_ends_one_direction_only(wire: Wire, direction: Any) -> None:
    """One end reads the end of the stream, and what it writes still arrives."""
    ended, other = wire.client, wire.server
    if direction == "upstream":
        ended, other = other, ended
    wire.connection.half_close(direction)
    assert ended.recv(1) == b""
    other.sendall(b"lost")
    assert passes(b"goes on", ended, other)
    assert wire.connection.is_open
    ended.shutdown(socket.SHUT_WR)
    assert other.recv(1) == b""


def test_added_latency_delays_and_keeps_the_order(wire: Wire) -> None:
    """Every byte waits its time, also when the latency falls meanwhile; the way back does not."""
    client, server, connection = wire
    connection.delay(0.3, "upstream")
    start = time.monotonic()
    client.sendall(b"slow ")
    wait_until(lambda: connection.held("upstream") + connection.delivered("upstream") == 5)
    connection.delay(0, "upstream")
    client.sendall(b"fast")
    assert passes(b"back", server, client)
    assert receive(server, 9) == b"slow fast"
    assert time.monotonic() - start >= 0.3


def test_a_bandwidth_limit_bounds_the_bytes_of_a_second_until_it_is_lifted(wire: Wire) -> None:
    """What takes a third of a second arrives in parts until then; one byte's wait is ended."""
    wire.connection.limit(100_000, "upstream")
    start = time.monotonic()
    wire.client.sendall(bytes(30_000))
    first = wire.server.recv(30_000)
    assert len(first) < 30_000
    receive(wire.server, 30_000 - len(first))
    assert time.monotonic() - start >= 0.25
    wire.connection.limit(0.01)
    wire.client.sendall(bytes(1_000))
    receive(wire.server, 1)
    wire.connection.limit(None)
    receive(wire.server, 999)


def test_new_connections_are_refused_or_never_answered(network: Network, wire: Wire) -> None:
    """The kernel refuses, or the proxy freezes each until its thaw; what is open stays as it is."""
    network.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        network.dial()
    network.proxy.accept(frozen=True)
    dead = network.connect()
    dead.client.sendall(b"hello?")
    network.proxy.accept()
    alive = network.connect()
    assert passes(b"hello", alive.client, alive.server)
    assert passes(b"still here", wire.client, wire.server)
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
    assert [c.is_open for c in network.proxy.connections] == [False] * 5 + [True] * 2


def test_a_target_that_is_gone_ends_the_connection(network: Network) -> None:
    """The client is told, and the proxy goes on."""
    network.listener.close()
    assert [network.dial().recv(1), network.dial().recv(1)] == [b"", b""]
    assert network.proxy.connections == ()


def test_a_stop_closes_all_and_ends_the_thread(network: Network, wire: Wire) -> None:
    """Connections are closed, the port is free, and faults do nothing any more."""
    wire.connection.freeze()
    network.proxy.stop()
    assert wire.client.recv(1) == wire.server.recv(1) == b""
    assert not wire.connection.is_open
    assert "tcp-proxy" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConnectionRefusedError):
        network.dial()
    wire.connection.thaw()
    network.proxy.accept()
    network.proxy.stop()
    with pytest.raises(RuntimeError, match="before"):
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
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda wire: wire.connection.delay(-1), "seconds must be .* got -1"),
        (lambda wire: wire.connection.limit(0), "bytes_per_second must be .* got 0"),
        (lambda wire: wire.connection.freeze("sideways"), "direction='sideways'"),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(
    wire: Wire, use: Callable[[Wire], object], words: str
) -> None:
    """The error names argument and value."""
    with pytest.raises(ValueError, match=words):
        use(wire)
    assert passes(b"as before", wire.client, wire.server)
