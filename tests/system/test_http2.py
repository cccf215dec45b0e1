"""Publish requests over HTTP/2: what differs from gRPC's channels, on real connections."""

from __future__ import annotations

import datetime
import gc
import logging
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.auth.credentials import Credentials
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, TcpProxy

from .conftest import ONE_MESSAGE, TOPIC, wait_until
from .http2_server import Http2Server, http2_server
from .test_rules import stall_originals
from .tls_server import Authority, authority, tls_server

__all__ = ["authority"]

PATIENT = HedgingSettings(hedge_delay=10, second_connection=False)
ALONE = HedgingSettings(hedge_delay=0.1, second_connection=False)


def publisher(**arguments: Any) -> HedgedPublisher:
    """A publisher over HTTP/2 that sends one message a request."""
    return HedgedPublisher(ONE_MESSAGE, publish_transport="http2", **arguments)


def results(futures: list[Future[str]]) -> set[str]:
    """The different message ids."""
    return {future.result(20) for future in futures}


class Tokens(Credentials):
    """Credentials whose token is valid for some seconds, as the client counts them."""

    def __init__(self, seconds: float = 3600) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refreshes = 0
        self._seconds = seconds

    def refresh(self, _request: Any) -> None:
        self.refreshes += 1
        self.token = f"token-{self.refreshes}"
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        self.expiry = now + datetime.timedelta(seconds=self._seconds)


def test_tls_and_credentials(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roots are found as gRPC finds them, one token serves both connections, as metadata."""
    roots = tmp_path / "roots.pem"
    roots.write_bytes(authority.root)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(roots))
    tokens = Tokens()
    with PubSubServer(auto_create_topics=True) as server:
        with tls_server(server.address, authority) as endpoint:
            options = {"api_endpoint": endpoint, "quota_project_id": None}
            settings = HedgingSettings(hedge_delay=0.1, initial_tokens=50)
            with publisher(
                credentials=tokens, client_options=options, hedging_settings=settings
            ) as client:
                assert len(results([client.publish(TOPIC, b"%d" % n) for n in range(20)])) == 20
                server.set_script(stall_originals())
                assert client.publish(TOPIC, b"hedged").result(20)
                assert client.hedging_stats().hedges_won >= 1
        assert tokens.refreshes == 1


def test_a_token_is_renewed_before_it_expires(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the old one is still used: no request waits."""
    roots = tmp_path / "roots.pem"
    roots.write_bytes(authority.root)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(roots))
    tokens = Tokens(seconds=221)  # google-auth renews it 220 to 225 seconds before its end
    with PubSubServer(auto_create_topics=True) as server:
        with tls_server(server.address, authority) as endpoint:
            with publisher(credentials=tokens, client_options={"api_endpoint": endpoint}) as client:
                assert client.publish(TOPIC, b"first").result(20)
                wait_until(
                    lambda: client.publish(TOPIC, b"more").result(20) and tokens.refreshes > 1
                )


def test_a_server_that_goes_away_again_and_again_costs_no_message() -> None:
    """What it has not processed is sent on another connection, without an error or a copy."""
    with http2_server(Http2Server(requests_a_connection=10)) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PUBSUB_EMULATOR_HOST", server.address)
            with publisher(hedging_settings=PATIENT) as client:
                data = [b"%d" % number for number in range(100)]
                ids = results([client.publish(TOPIC, one) for one in data])
                stats = client.hedging_stats()
    assert len(ids) == 100
    assert sorted(server.stored) == sorted(data)
    assert (stats.batches_failed, stats.attempts) == (0, 100)
    assert server.connections >= 10


def test_more_requests_than_a_server_takes_at_a_time_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do refused ones, which are sent again."""
    with http2_server(Http2Server(max_streams=3, refuses=2, seconds=0.01)) as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        with publisher(hedging_settings=PATIENT) as client:
            assert len(results([client.publish(TOPIC, b"%d" % n) for n in range(40)])) == 40
    assert server.most_streams == 3
    assert sorted(server.stored) == sorted(b"%d" % number for number in range(40))


def test_large_batches(server: PubSubServer) -> None:
    """Messages beyond every window and frame arrive as they are."""
    with publisher() as client:
        assert len(results([client.publish(TOPIC, bytes([n]) * 3_000_000) for n in range(6)])) == 6
    sizes = {len(message.data) for message in server.messages()}
    assert sizes == {3_000_000}


def test_a_connection_that_answers_nothing_is_given_up(server: PubSubServer) -> None:
    """A ping tells it within two hedge delays, even where hedges have no other connection."""
    with TcpProxy(server.address) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        with publisher(hedging_settings=ALONE) as client:
            client.publish(TOPIC, b"before").result(20)
            (connection,) = proxy.connections
            connection.freeze()
            assert client.publish(TOPIC, b"frozen").result(5)
            assert len(proxy.connections) == 2


def test_a_slow_service_keeps_its_connection(server: PubSubServer) -> None:
    """It answers the ping, so nothing is given up, however late its answers are."""
    with TcpProxy(server.address) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        with publisher(hedging_settings=ALONE) as client:
            client.publish(TOPIC, b"before").result(20)
            server.set_script(FaultScript(faults=[Stall(0.7)]))
            assert len(results([client.publish(TOPIC, b"slow") for _ in range(5)])) == 5
        assert len(proxy.connections) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"publish_transport": "carrier pigeon"}, "must be 'grpc' or 'http2'"),
        ({"transport": PublisherGrpcTransport(channel=grpc.insecure_channel("x"))}, "a transport"),
        ({"transport": type("Mine", (PublisherGrpcTransport,), {})}, "a transport"),
    ],
)
def test_what_it_cannot_do_is_refused(
    server: PubSubServer, arguments: dict[str, Any], reason: str
) -> None:
    """With the reason; the variable falls back to gRPC, with a line in the log."""
    with pytest.raises(ValueError, match=reason):
        HedgedPublisher(**{"publish_transport": "http2", **arguments})


def test_the_variable_falls_back(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where HTTP/2 cannot be, publishing goes on with gRPC, and one line says why."""
    monkeypatch.setenv("HEDGED_PUBSUB_PUBLISH_TRANSPORT", "http2")
    with caplog.at_level(logging.WARNING), HedgedPublisher() as plain:
        assert plain.publish(TOPIC, b"data").result(20)
        assert not caplog.records
    transport = PublisherGrpcTransport(channel=grpc.insecure_channel(server.address))
    with HedgedPublisher(transport=transport) as other:
        assert other.publish(TOPIC, b"data").result(20)
    (record,) = caplog.records
    assert "publishing with gRPC" in record.getMessage()


def test_a_dropped_publisher_leaves_no_connection(server: PubSubServer) -> None:
    """Though nobody has closed it."""
    with TcpProxy(server.address) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        client = publisher()
        client.publish(TOPIC, b"data").result(20)
        wait_until(lambda: len(proxy.connections) == 2)
        gone = weakref.ref(client)
        del client
        wait_until(lambda: gc.collect() >= 0 and gone() is None)
        wait_until(lambda: gc.collect() >= 0 and not any(one.is_open for one in proxy.connections))
    assert [thread.name for thread in threading.enumerate()].count("hedged-pubsub-io") == 1
