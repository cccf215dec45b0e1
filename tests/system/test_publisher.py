"""``HedgedPublisher`` as a program uses it: construction, futures, threads, life cycle."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import gc
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.pubsub_v1.publisher._batch.thread import Batch
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from .conftest import FAST, ONE_MESSAGE, TOPIC, Make, New, both_kinds
from .test_rules import stall_originals

# They are one only from Python 3.11 on.
TIMEOUT = (concurrent.futures.TimeoutError, asyncio.TimeoutError, TimeoutError)


@pytest.mark.parametrize("value", [None, "1", "true", " YES "])
def test_with_hedging_off_it_is_the_official_client(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """By the argument, or by the operators' variable, whatever the program asks for.

    No header, no hedge, the official batch, ordering; flush and close work all the same.
    """
    server.set_script(FaultScript(latency=Fixed(0.15)))
    if value is not None:
        monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", value)
    options = PublisherOptions(enable_message_ordering=True)
    settings = None if value is None else FAST
    with HedgedPublisher(ONE_MESSAGE, options, hedging_settings=settings) as publisher:
        assert issubclass(publisher._batch_class, Batch)
        assert publisher.hedging_settings is None
        future = publisher.publish(TOPIC, b"data", ordering_key="key")
        publisher.flush(timeout=5)
        assert future.done()
        assert publisher.hedging_stats() == HedgingStats()
    (attempt,) = server.attempts()
    assert attempt.attempt_number is None


@pytest.mark.usefixtures("server")
def test_hedging_is_on_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty or negative value of the variable leaves it on."""
    for value in ("", "0", "false", "no"):
        monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", value)
        with HedgedPublisher() as publisher:
            assert publisher.hedging_settings == HedgingSettings()


@both_kinds
@pytest.mark.usefixtures("server")
def test_hedging_settings(new_publisher: New) -> None:
    """Anything but settings or ``None`` is a TypeError; a new publisher has done nothing yet."""
    wrong: list[Any] = [1.0, "on", True, {"hedge_delay": 1}]
    for settings in wrong:
        with pytest.raises(TypeError, match="hedging_settings must be a HedgingSettings, or None"):
            new_publisher(hedging_settings=settings)
    with new_publisher() as publisher:
        assert publisher.hedging_stats() == publisher.hedging_stats(TOPIC) == HedgingStats()
        assert publisher.hedging_settings == HedgingSettings()


@both_kinds
def test_missing_credentials(new_publisher: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the constructor raises what the official client raises."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(DefaultCredentialsError):
        new_publisher()


@both_kinds
def test_data_and_attributes(server: PubSubServer, make: Make) -> None:
    """What is published is what is stored; text and UTF-8 bytes are attributes."""
    publisher = make()
    publisher.publish(TOPIC, b"\x00\xff", colour="blue", text="h\u00e9\u2713".encode()).result(5)
    publisher.publish(TOPIC, b"", empty="").result(5)
    wrong: list[tuple[Any, dict[str, Any]]] = [("text", {}), (b"data", {"number": 1})]
    for data, attributes in wrong:
        with pytest.raises(TypeError, match="must be sent as"):
            publisher.publish(TOPIC, data, **attributes)
    first, second = server.messages()
    assert first.data == b"\x00\xff"
    assert first.attributes == (("colour", "blue"), ("text", "h\u00e9\u2713"))
    assert (second.data, second.attributes) == (b"", (("empty", ""),))


@pytest.mark.usefixtures("server")
def test_a_refused_transport_that_was_made_here_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constructor that raises leaves no channel behind, but does not close the user's."""
    closed: list[str] = []
    monkeypatch.setattr(PublisherGrpcTransport, "close", lambda _: closed.append("closed"))
    options = PublisherOptions(timeout=0.5)
    with pytest.raises(ValueError, match="hedge_delay"):
        HedgedPublisher(publisher_options=options)
    assert closed == ["closed"]
    own = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    with pytest.raises(ValueError, match="hedge_delay"):
        HedgedPublisher(publisher_options=options, transport=own)
    assert closed == ["closed"]


@both_kinds
def test_a_topic_that_does_not_exist(server: PubSubServer, make: Make) -> None:
    """The future has NOT_FOUND, with the gRPC error as its cause; the next publish works."""
    publisher = make()
    error = publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    assert isinstance(error, exceptions.NotFound)
    assert isinstance(error.__cause__, grpc.RpcError)
    again = publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    assert isinstance(again, exceptions.NotFound)
    assert publisher.publish(TOPIC, b"data").result(timeout=5)


def test_a_server_with_a_size_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that gRPC refuses for its size fails at once, where the official client loops."""
    server = grpc.server(ThreadPoolExecutor(1))  # with gRPC's limit of 4 MB
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", {"Publish": handler})]
    )
    monkeypatch.setenv(
        "PUBSUB_EMULATOR_HOST", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    )
    server.start()
    with HedgedPublisher(ONE_MESSAGE) as publisher:
        error = publisher.publish("projects/p/topics/t", b"x" * 5_000_000).exception(timeout=5)
        assert isinstance(error, exceptions.ResourceExhausted)
        assert publisher.hedging_stats().attempts == 1
    server.stop(None)


@both_kinds
def test_debug_logging_tells_no_payload(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """With the official client's DEBUG logging on, a slow publish is hedged and says nothing."""
    publisher = make(tokens=1, script=stall_originals())
    with caplog.at_level(logging.DEBUG):
        publisher.publish(TOPIC, b"secret payload").result(timeout=5)  # the answer takes 30 s
    payload = base64.b64encode(b"secret payload").decode()
    # With what the official client's log line about a request would have beside its text.
    said = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert not [line for line in said if "secret payload" in line or payload in line]


@both_kinds
def test_flush_waits_for_what_was_accepted(server: PubSubServer, make: Make) -> None:
    """An open batch is sent at once, and flush returns when it is decided.

    If it runs out of time it names the number of messages, which stay under way.
    """
    faults = [Status("NOT_FOUND", calls=[2]), Stall(0.3, calls=[3])]
    publisher = make(
        batch_settings=BatchSettings(max_latency=60),
        script=FaultScript(latency=Fixed(0.05), faults=faults),
    )
    stored = publisher.publish(TOPIC, b"data")
    publisher.flush(timeout=5)
    assert stored.result(timeout=5)
    failed = publisher.publish(TOPIC, b"data")
    publisher.flush(timeout=5)
    assert isinstance(failed.exception(timeout=5), exceptions.NotFound)
    publisher.flush(timeout=0)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(3)]
    with pytest.raises(TIMEOUT, match="3 of 3 messages are not decided"):
        publisher.flush(timeout=0.05)
    publisher.flush(timeout=5)
    assert all(future.result(timeout=5) for future in futures)


def test_the_with_block_leaves_nothing_behind(server: PubSubServer) -> None:
    """Leaving the block flushes, then closes: every message is stored, the channel is closed."""
    settings = BatchSettings(max_latency=60)
    with HedgedPublisher(settings, hedging_settings=FAST) as publisher:
        futures = [publisher.publish(TOPIC, b"%d" % n) for n in range(250)]
    assert all(future.done() for future in futures)
    assert len(server.messages()) == 250
    publisher.close()
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.publish(TOPIC, b"late")


def test_calls_are_held_through_garbage_collection(server: PubSubServer, make: Make) -> None:
    """A stalled call that nobody else refers to survives the collector."""
    publisher = make(script=FaultScript(faults=[Stall(0.3)]))
    future = publisher.publish(TOPIC, b"data")
    for _ in range(5):
        gc.collect()
        time.sleep(0.02)
    future.result(timeout=5)
    assert [attempt.outcome for attempt in server.attempts()] == ["answered"]


def test_bytes_of_a_class_of_the_users(server: PubSubServer, make: Make) -> None:
    """They are sent as they are, and so is what comes after them with the same size."""

    class Token(bytes):
        pass

    publisher = make()
    sent = [Token(b"a" * 77), b"b" * 77, Token(b""), b"c" * 77]
    for data in sent:
        publisher.publish(TOPIC, data, **({} if data else {"empty": "yes"})).result(timeout=5)
    assert [message.data for message in server.messages()] == sent
