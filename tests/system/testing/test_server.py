"""Starting, stopping and addressing a server."""

from __future__ import annotations

import os
import socket
import threading

import grpc
import pytest
from google.cloud import pubsub_v1
from opentelemetry.instrumentation.grpc import GrpcInstrumentorServer

from hedged_pubsub._google.core_server import CoreServer, ServerCall
from hedged_pubsub.testing import FaultScript, PubSubServer, ResetConnection

from .conftest import fails, outcomes, raw_client


def server_threads() -> list[str]:
    """Return the names of threads that servers started and that are still alive."""
    return [t.name for t in threading.enumerate() if t.name.startswith("pubsub-server")]


def test_the_emulator_variable_is_set_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """If asked for, it leads to the server while that is up; then the old value is back."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "elsewhere:1")
    with PubSubServer(set_emulator_host=True) as server:
        assert os.environ["PUBSUB_EMULATOR_HOST"] == server.address == f"127.0.0.1:{server.port}"
    assert os.environ["PUBSUB_EMULATOR_HOST"] == "elsewhere:1"
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    with server:
        pass
    assert "PUBSUB_EMULATOR_HOST" not in os.environ
    with PubSubServer():
        assert "PUBSUB_EMULATOR_HOST" not in os.environ


def test_records_stay_readable_after_a_stop() -> None:
    """What the server saw can be checked after the with block; the next run begins empty."""
    server = PubSubServer(auto_create_topics=True)
    with server, raw_client(server) as client:
        assert client.publish(b"a") == ["1"]
        client.publish(b"b", topic=server.topic_path("other"))
    assert outcomes(server) == ["answered", "answered"]
    assert [m.data for m in server.messages("other")] == [b"b"]
    server.clear()
    assert server.messages() == ()
    with server, raw_client(server) as client:
        assert server.attempts() == ()
        assert client.publish(b"a") == ["1"]


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_port_on_loopback_is_refused_while_in_use_and_free_after_a_stop(relay: bool) -> None:
    """Other machines cannot reach the server; neither a stop nor an error leaves a thread."""
    with PubSubServer(auto_create_topics=True, relay=relay) as server, raw_client(server) as client:
        client.publish(b"a")
        with socket.socket() as other:  # 127.0.0.2 is this machine, too: it is loopback only
            assert other.connect_ex(("127.0.0.2", server.port)) != 0
        before = server_threads()
        with pytest.raises(RuntimeError, match=f"port={server.port}"):
            PubSubServer(port=server.port, relay=relay).start()
        assert server_threads() == before
    assert server_threads() == []
    with PubSubServer(port=server.port) as again:
        assert again.port == server.port


def test_uses_at_the_wrong_time_are_refused() -> None:
    """Before the start, a second start, orders to a stopped one, and resets without a relay."""
    server = PubSubServer()
    server.stop()
    for use in (lambda: server.address, server.attempts, lambda: server.create_topic("a")):
        with pytest.raises(RuntimeError, match="not started"):
            use()
    with server:
        with pytest.raises(RuntimeError, match=server.address):
            server.start()
        with pytest.raises(ValueError, match="relay=True"):
            server.set_script(FaultScript(faults=[ResetConnection()]))
    server.stop()
    for order in (lambda: server.create_topic("a"), lambda: server.set_script(FaultScript())):
        with pytest.raises(RuntimeError, match="stopped"):
            order()


def test_paths() -> None:
    """Short names are completed, paths are left as they are."""
    server = PubSubServer(project="shop")
    assert server.topic_path("orders") == "projects/shop/topics/orders"
    assert server.topic_path("projects/a/topics/b") == "projects/a/topics/b"
    assert server.subscription_path("s") == "projects/shop/subscriptions/s"


def test_instrumentation_of_servers_changes_nothing() -> None:
    """OpenTelemetry puts interceptors into every server that gRPC makes in the process."""
    instrumentation = GrpcInstrumentorServer()  # type: ignore[no-untyped-call]
    instrumentation.instrument()
    try:
        with PubSubServer(set_emulator_host=True) as server, raw_client(server) as client:
            subscription = server.create_subscription("shop", server.create_topic("orders"))
            assert client.publish(b"a") == ["1"]
            with pubsub_v1.SubscriberClient() as subscriber:
                pulled = subscriber.pull(subscription=subscription, max_messages=1, timeout=10)
            assert [received.message.data for received in pulled.received_messages] == [b"a"]
    finally:
        instrumentation.uninstrument()


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [("Fail", b"", "UNKNOWN"), ("Fail", None, "UNIMPLEMENTED"), ("Else", b"", "UNIMPLEMENTED")],
)
def test_what_the_server_cannot_handle_is_answered(
    method: str, request_: bytes | None, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that raises is told and logged; a call without a handler or request is refused."""

    def handle(call: ServerCall, message: bytes) -> None:
        raise ZeroDivisionError

    server = CoreServer({"/S/Fail": handle}, (), "pubsub-server")
    port = server.listen("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, fails(code):
            requests = iter([] if request_ is None else [request_])
            channel.stream_unary(f"/S/{method}")(requests, timeout=10)
    finally:
        server.stop(0)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * (code == "UNKNOWN")
