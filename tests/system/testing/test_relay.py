"""Connections through the relay, and their resets."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest

from hedged_pubsub.testing import DropReply, FaultScript, PubSubServer, ResetConnection, Stall

from .raw_client import raw_client, wait_until


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server behind a relay."""
    with PubSubServer(relay=True, auto_create_topics=True) as running:
        yield running


def test_a_reset_breaks_all_calls_of_its_connection(server: PubSubServer) -> None:
    """The call that meets the fault fails, and so does another one on the same connection."""
    server.set_script(FaultScript(faults=[Stall(60, calls=[1]), ResetConnection(calls=[2])]))
    with raw_client(server) as client:
        bystander = client.start(b"held")
        wait_until(server.attempts)
        struck = client.start(b"struck")
        for call in (bystander, struck):
            assert isinstance(call.exception(timeout=10), grpc.RpcError)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: all(a.ended is not None for a in server.attempts()))
    assert [(a.fault, a.outcome) for a in server.attempts()] == [
        ("Stall", "cancelled"),
        ("ResetConnection", "dropped"),
    ]
    assert server.messages() == ()


def test_a_reset_spares_other_connections(server: PubSubServer) -> None:
    """A call that another client has in flight goes on, and the server takes new connections."""
    server.set_script(FaultScript(faults=[Stall(0.3, calls=[1]), ResetConnection(calls=[2])]))
    with raw_client(server) as one, raw_client(server) as other:
        held = one.start(b"kept")
        wait_until(server.attempts)
        with pytest.raises(grpc.RpcError):
            other.publish(b"lost")
        assert len(held.result(timeout=10).message_ids) == 1
        with raw_client(server) as third:
            third.publish(b"new")
    assert [m.data for m in server.messages()] == [b"kept", b"new"]


def test_peers_are_the_clients_own_addresses(server: PubSubServer) -> None:
    """Attempts of one connection have one peer, and of two connections two."""
    with raw_client(server) as one, raw_client(server) as other:
        one.publish(b"a")
        one.publish(b"a")
        other.publish(b"a")
    peers = [attempt.peer for attempt in server.attempts()]
    assert peers[0] == peers[1] != peers[2]


def test_large_requests_pass_both_ways_at_once(server: PubSubServer) -> None:
    """Megabytes from several clients pass the relay unharmed, whatever the order of the parts."""
    body = bytes(range(256)) * 12_000

    def publish() -> None:
        with raw_client(server) as client:
            for _ in range(3):
                client.publish(body)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = server.messages()
    assert len(messages) == 12
    assert all(message.data == body for message in messages)


def test_a_reset_of_a_call_that_is_gone_is_harmless(server: PubSubServer) -> None:
    """A client that goes away at the same moment does not break the relay."""
    server.set_script(FaultScript(faults=[DropReply(calls=[1]), ResetConnection(times=20)]))
    for _ in range(20):
        with raw_client(server) as client:
            client.start(b"a").cancel()
    server.set_script(FaultScript())
    with raw_client(server) as client:
        client.publish(b"b")
