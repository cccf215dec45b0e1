"""Starting, stopping and addressing a server."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import grpc
import pytest

from hedged_pubsub.testing import FaultScript, PubSubServer, ResetConnection, Stall

from .raw_client import raw_client, wait_until

BOTH = pytest.mark.parametrize("process", [False, True], ids=["local", "process"])


def server_threads() -> list[str]:
    """Return the names of threads that servers started and that are still alive."""
    return [t.name for t in threading.enumerate() if t.name.startswith("pubsub-server")]


@BOTH
def test_the_emulator_variable_is_set_and_restored(
    process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable leads to the server while it is up; then the old value is back."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "elsewhere:1")
    with PubSubServer(process=process, set_emulator_host=True) as server:
        assert os.environ["PUBSUB_EMULATOR_HOST"] == server.address == f"127.0.0.1:{server.port}"
    assert os.environ["PUBSUB_EMULATOR_HOST"] == "elsewhere:1"
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    with server:
        assert os.environ["PUBSUB_EMULATOR_HOST"] == server.address
    assert "PUBSUB_EMULATOR_HOST" not in os.environ


def test_the_emulator_variable_is_left_alone_by_default() -> None:
    """Without being asked to, the server does not touch the environment."""
    before = dict(os.environ)
    with PubSubServer():
        assert dict(os.environ) == before


@BOTH
def test_records_stay_readable_after_a_stop(process: bool) -> None:
    """What the server saw can be checked after the with block; the next start begins empty."""
    server = PubSubServer(process=process, auto_create_topics=True)
    with server, raw_client(server) as client:
        client.publish(b"a")
        client.publish(b"b", topic=server.topic_path("other"))
    assert [a.outcome for a in server.attempts()] == ["answered", "answered"]
    assert [m.data for m in server.messages("other")] == [b"b"]
    server.clear()
    assert server.messages() == ()
    with server:
        assert server.attempts() == ()


@BOTH
def test_a_server_can_be_used_again(process: bool) -> None:
    """Start, stop, start: the second run serves like the first."""
    server = PubSubServer(process=process, auto_create_topics=True)
    for _ in range(2):
        with server, raw_client(server) as client:
            assert client.publish(b"a") == ["1"]


@BOTH
@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relay"])
def test_a_stop_frees_port_and_threads(process: bool, relay: bool) -> None:
    """After a stop the port can be listened on and no thread is left."""
    with PubSubServer(process=process, relay=relay, auto_create_topics=True) as server:
        with raw_client(server) as client:
            client.publish(b"a")
        port = server.port
    assert server_threads() == []
    with PubSubServer(port=port) as again:
        assert again.port == port


def test_the_server_listens_on_loopback_only() -> None:
    """Other machines cannot reach the server: all it listens on is loopback."""
    with PubSubServer() as server:
        with socket.socket() as other:
            # 127.0.0.2 is this machine, too, and not where the server listens.
            assert other.connect_ex(("127.0.0.2", server.port)) != 0


@BOTH
@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relay"])
def test_a_port_in_use_is_refused(process: bool, relay: bool) -> None:
    """The error names the port, and the failed server leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PubSubServer(process=process, relay=relay, port=port)
        with pytest.raises(RuntimeError, match=f"port={port} .*another server"):
            server.start()
    assert server_threads() == []
    server.stop()


def test_starting_twice_is_refused() -> None:
    """A second start would lose the first server."""
    with PubSubServer() as server:
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()


def test_stop_may_be_called_at_any_time() -> None:
    """A stop without a start, and a second stop, do nothing."""
    server = PubSubServer()
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_a_server_that_was_not_started_says_so() -> None:
    """An address is not made up."""
    server = PubSubServer()
    for use in (lambda: server.address, server.attempts, lambda: server.create_topic("a")):
        with pytest.raises(RuntimeError, match="not started"):
            use()


@BOTH
def test_a_stopped_server_takes_no_orders(process: bool) -> None:
    """Setting up a stopped server would be without effect, so it is refused."""
    with PubSubServer(process=process) as server:
        pass
    for use in (lambda: server.create_topic("a"), lambda: server.set_script(FaultScript())):
        with pytest.raises(RuntimeError, match="stopped"):
            use()


def test_paths() -> None:
    """Short names are completed, paths are left as they are."""
    server = PubSubServer(project="shop")
    assert server.topic_path("orders") == "projects/shop/topics/orders"
    assert server.topic_path("projects/a/topics/b") == "projects/a/topics/b"
    assert server.subscription_path("s") == "projects/shop/subscriptions/s"


@BOTH
def test_a_reset_needs_a_relay(process: bool) -> None:
    """A script that the server cannot carry out is refused when it is set."""
    script = FaultScript(faults=[ResetConnection()])
    with PubSubServer(process=process) as server:
        with pytest.raises(ValueError, match="relay=True"):
            server.set_script(script)
    with PubSubServer(process=process, relay=True) as server:
        server.set_script(script)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"script": Stall(1)}, TypeError, "must be a FaultScript"),
        ({"port": 65_536}, ValueError, "port=65536 must be between 0 and 65535"),
        ({"port": "80"}, TypeError, "port='80' must be an int"),
        ({"project": ""}, ValueError, "project is empty"),
        ({"project": "projects/a"}, ValueError, "without slashes"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """An error names the argument, its value and what is allowed, before anything starts."""
    with pytest.raises(error, match=words):
        PubSubServer(**arguments)


@BOTH
def test_a_stop_ends_held_calls(process: bool) -> None:
    """A client with a call that the server holds learns at once that the server is gone."""
    script = FaultScript(faults=[Stall(60)])
    with PubSubServer(script, process=process, auto_create_topics=True) as server:
        with raw_client(server) as client:
            call = client.start(b"a")
            wait_until(server.attempts)
            start = time.monotonic()
            server.stop()
            assert time.monotonic() - start < 2
            assert isinstance(call.exception(timeout=5), grpc.RpcError)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
    assert [a.outcome for a in server.attempts()] == ["cancelled"]
    assert server.messages() == ()
