"""The proxy's faults, met by gRPC calls to the server in this process and in its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from hedged_pubsub.testing import ProxyConnection, PubSubServer, TcpProxy

from .raw_client import RawClient, wait_until

SHORT = 0.3
"""Seconds of a call's timeout that is to pass."""


@pytest.fixture(scope="module", params=[False, True], ids=["in-process", "own process"])
def server(request: pytest.FixtureRequest) -> Iterator[PubSubServer]:
    """Run a server, here or in a process of its own."""
    with PubSubServer(process=request.param, auto_create_topics=True) as running:
        yield running


@pytest.fixture
def proxy(server: PubSubServer) -> Iterator[TcpProxy]:
    """Put a proxy in front of it."""
    server.clear()
    with TcpProxy(server.address) as running:
        yield running


@contextmanager
def client_of(proxy: TcpProxy, server: PubSubServer) -> Iterator[RawClient]:
    """Make a client that connects through the proxy with its first call."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(proxy.address, options=options) as channel:
        yield RawClient(channel, server.topic_path("orders"))


def test_attempts_are_told_apart_by_their_connection(proxy: TcpProxy, server: PubSubServer) -> None:
    """The server's record of a call leads to the client's connection."""
    with client_of(proxy, server) as one, client_of(proxy, server) as other:
        one.publish(b"a")
        other.publish(b"b")
        one.publish(b"c")
    peers = [proxy.connection_of(attempt.peer) for attempt in server.attempts()]
    first, second = proxy.connections
    assert peers == [first, second, first]


def test_a_frozen_call_times_out_and_a_thaw_lets_the_next_one_through(
    proxy: TcpProxy, server: PubSubServer
) -> None:
    """Frozen upstream, the server never hears of the call; the connection survives it."""
    with client_of(proxy, server) as client:
        client.publish(b"before")
        (connection,) = proxy.connections
        connection.freeze()
        with pytest.raises(grpc.RpcError) as raised:
            client.publish(b"frozen", timeout=SHORT)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(server.attempts()) == 1
        assert connection.is_open

        connection.thaw()
        client.publish(b"after")
    assert len(proxy.connections) == 1
    assert [m.data for m in server.messages()][-1] == b"after"


def test_frozen_downstream_the_reply_is_lost_after_the_batch_was_stored(
    proxy: TcpProxy, server: PubSubServer
) -> None:
    """The worst case for duplicates: stored, and the client does not know."""
    with client_of(proxy, server) as client:
        client.publish(b"before")
        proxy.connections[0].freeze("downstream")
        with pytest.raises(grpc.RpcError) as raised:
            client.publish(b"stored", timeout=SHORT)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [m.data for m in server.messages()] == [b"before", b"stored"]


@pytest.mark.parametrize(
    "fault",
    [ProxyConnection.reset, ProxyConnection.half_close],
    ids=["reset", "half-close"],
)
def test_a_broken_connection_fails_its_calls_and_the_next_call_opens_another(
    proxy: TcpProxy, server: PubSubServer, fault: Callable[[ProxyConnection], None]
) -> None:
    """The client hears of it at once, and reconnects."""
    with client_of(proxy, server) as client:
        client.publish(b"before")
        first = proxy.connections[0]
        first.freeze("downstream")
        call = client.start(b"in flight")
        wait_until(lambda: len(server.attempts()) == 2)
        fault(first)
        assert call.exception(timeout=10).code() is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: not first.is_open)

        client.publish(b"after")
        assert [connection.is_open for connection in proxy.connections] == [False, True]


def test_a_call_takes_as_much_longer_as_the_latency_added_each_way(
    proxy: TcpProxy, server: PubSubServer
) -> None:
    """The request waits, and so does the reply."""
    with client_of(proxy, server) as client:
        client.publish(b"fast")
        proxy.connections[0].delay(0.2)
        start = time.monotonic()
        client.publish(b"slow")
        assert 0.4 <= time.monotonic() - start < 4


def test_a_large_call_takes_as_long_as_the_bandwidth_allows(
    proxy: TcpProxy, server: PubSubServer
) -> None:
    """100 kB at 200 kB/s are half a second."""
    with client_of(proxy, server) as client:
        client.publish(b"fast")
        proxy.connections[0].limit(200_000, "upstream")
        start = time.monotonic()
        client.publish(bytes(100_000))
        assert 0.45 <= time.monotonic() - start < 5


def test_a_refused_endpoint_fails_a_call_at_once(proxy: TcpProxy, server: PubSubServer) -> None:
    """Its error says that the connection was refused."""
    proxy.refuse()
    with client_of(proxy, server) as client:
        with pytest.raises(grpc.RpcError) as raised:
            client.publish(b"refused")
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "refused" in raised.value.details()
    assert proxy.connections == ()


def test_an_endpoint_that_never_answers_lets_a_call_time_out(
    proxy: TcpProxy, server: PubSubServer
) -> None:
    """The connection is there, but what gRPC says on it is not heard."""
    proxy.accept(frozen=True)
    with client_of(proxy, server) as client:
        with pytest.raises(grpc.RpcError) as raised:
            client.publish(b"unheard", timeout=SHORT)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert proxy.connections[0].is_open
    assert server.attempts() == ()
