"""``hedged-pubsub serve``: the line to export, the official clients, and a clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from google.cloud import pubsub_v1

from tests.system.cli.command import Command

TOPIC = "projects/test/topics/orders"


@pytest.fixture
def serve(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.Popen[str]]:
    """Starts ``serve`` at a free port and does what the line it prints says."""

    def start(*options: str) -> subprocess.Popen[str]:
        process = command.start("serve", "--port", "0", *options)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"export PUBSUB_EMULATOR_HOST=(127\.0\.0\.1:\d+)\n", line)
        assert found, line
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", found[1])
        return process

    return start


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_serves_the_official_client_until_a_signal(
    serve: Callable[..., subprocess.Popen[str]], ending: signal.Signals
) -> None:
    """Topics appear when they are published to; the end is clean and says what was served."""
    process = serve()
    with pubsub_v1.PublisherClient() as client:
        assert client.publish(TOPIC, b"one").result(timeout=10)
    process.send_signal(ending)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out == ""
    assert err == "Served 1 publish request; 1 message was stored.\n"


def test_delivers_to_the_official_subscriber(
    serve: Callable[..., subprocess.Popen[str]],
) -> None:
    """A message published to the server can be pulled from it."""
    serve()
    subscription = "projects/test/subscriptions/orders-sub"
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        publisher.create_topic(name=TOPIC)
        subscriber.create_subscription(name=subscription, topic=TOPIC)
        publisher.publish(TOPIC, b"one", origin="test").result(timeout=10)
        pulled = subscriber.pull(subscription=subscription, max_messages=1, timeout=10)
    (received,) = pulled.received_messages
    assert received.message.data == b"one"
    assert dict(received.message.attributes) == {"origin": "test"}


def test_stalls_on_demand(serve: Callable[..., subprocess.Popen[str]]) -> None:
    """The fault options reach the server."""
    serve("--stall-rate", "1", "--stall", "0.5", "--seed", "3")
    with pubsub_v1.PublisherClient() as client:
        start = time.monotonic()
        client.publish(TOPIC, b"one").result(timeout=10)
    assert time.monotonic() - start >= 0.5


def test_latency_on_demand(serve: Callable[..., subprocess.Popen[str]]) -> None:
    """Each publish request takes the time asked for."""
    serve("--latency", "0.25")
    with pubsub_v1.PublisherClient() as client:
        start = time.monotonic()
        client.publish(TOPIC, b"one").result(timeout=10)
    assert time.monotonic() - start >= 0.25


def test_a_port_in_use_is_one_clear_line(
    serve: Callable[..., subprocess.Popen[str]],
    command: Command,
) -> None:
    """The line names the port and what to do."""
    serve()
    port = os.environ["PUBSUB_EMULATOR_HOST"].rpartition(":")[2]
    done = command.run("serve", "--port", port)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert port in done.stderr
    assert "--port 0" in done.stderr
