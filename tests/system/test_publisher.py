"""``HedgedPublisher`` as a program uses it: construction, futures, threads, life cycle."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher._batch.thread import Batch
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from .conftest import FAST, ONE_MESSAGE, MakePublisher, wait_until


def test_only_the_class_name_changes(server: PubSubServer, topic: str) -> None:
    """A program for the official client runs as it is, with either class."""

    def program(publisher_class: type[pubsub_v1.PublisherClient]) -> list[object]:
        publisher = publisher_class(
            pubsub_v1.types.BatchSettings(max_messages=5, max_latency=0.02),
            pubsub_v1.types.PublisherOptions(
                flow_control=pubsub_v1.types.PublishFlowControl(
                    message_limit=10,
                    limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
                )
            ),
        )
        path = publisher.topic_path("test", "orders")
        futures = [
            publisher.publish(path, f"message {n}".encode(), n=str(n), text="héé✓")
            for n in range(25)
        ]
        for future in futures:
            assert isinstance(future, concurrent.futures.Future)
            assert isinstance(future.result(timeout=5), str)
        names = [found.name for found in publisher.list_topics(project="projects/test")]
        publisher.stop()
        publisher.transport.close()
        return [path, names, isinstance(publisher, pubsub_v1.PublisherClient)]

    seen = []
    for publisher_class in (pubsub_v1.PublisherClient, HedgedPublisher):
        server.clear()
        result = program(publisher_class)
        stored = sorted((m.data, m.attributes) for m in server.messages())
        seen.append((result, stored))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("value", ["1", "true", " YES "])
def test_operators_can_switch_hedging_off(
    server: PubSubServer, topic: str, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """With the variable set it is the official client, whatever the program asks for."""
    monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", value)
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    with HedgedPublisher((), options, hedging_settings=FAST) as publisher:
        assert publisher.hedging_settings is None
        publisher.publish(topic, b"data", ordering_key="key").result(timeout=5)
        assert publisher.hedging_stats() == HedgingStats()
    (attempt,) = server.attempts()
    assert attempt.attempt_number is None


@pytest.mark.parametrize("value", ["", "0", "false", "no"])
def test_the_switch_is_off_by_default(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """An empty or negative value leaves hedging on."""
    monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", value)
    with HedgedPublisher() as publisher:
        assert publisher.hedging_settings == HedgingSettings()


def test_with_hedging_off_the_official_path_is_untouched(server: PubSubServer, topic: str) -> None:
    """No header, no hedge, the official batch; flush and close work all the same."""
    server.set_script(FaultScript(latency=Fixed(0.3)))
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=None) as publisher:
        assert publisher._batch_class is Batch
        future = publisher.publish(topic, b"data")
        publisher.flush(timeout=5)
        assert future.done()
        assert publisher.hedging_settings is None
    (attempt,) = server.attempts()
    assert attempt.attempt_number is None


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("settings", [1.0, "on", True, {"hedge_delay": 1}], ids=repr)
def test_hedging_settings_of_another_type(settings: Any) -> None:
    """Anything but settings or ``None`` is a TypeError that says so."""
    with pytest.raises(TypeError, match="hedging_settings must be a HedgingSettings, or None"):
        HedgedPublisher(hedging_settings=settings)


def test_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the constructor raises what the official client raises."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(DefaultCredentialsError):
        HedgedPublisher()


@pytest.mark.usefixtures("server")
def test_a_refused_transport_that_was_made_here_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A constructor that raises leaves no channel behind, but does not close the user's."""
    closed: list[str] = []
    monkeypatch.setattr(PublisherGrpcTransport, "close", lambda _: closed.append("closed"))
    options = pubsub_v1.types.PublisherOptions(timeout=0.5)
    with pytest.raises(ValueError, match="hedge_delay"):
        HedgedPublisher(publisher_options=options)
    assert closed == ["closed"]
    own = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    with pytest.raises(ValueError, match="hedge_delay"):
        HedgedPublisher(publisher_options=options, transport=own)
    assert closed == ["closed"]


def test_a_transport_of_the_users(server: PubSubServer, topic: str) -> None:
    """A ready transport with the user's channel and interceptor is used as it is."""
    seen: list[str] = []

    class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            seen.append(f"{details.method} {type(request).__name__}")
            return continuation(details, request)

    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), Interceptor())
    publisher = HedgedPublisher(
        ONE_MESSAGE, transport=PublisherGrpcTransport(channel=channel), hedging_settings=FAST
    )
    for _ in range(10):
        publisher.publish(topic, b"data").result(timeout=5)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    publisher.flush()
    publisher.publish(topic, b"data").result(timeout=5)
    publisher.close()
    assert seen == ["/google.pubsub.v1.Publisher/Publish PublishRequest"] * 12


def test_a_topic_that_does_not_exist(make_publisher: MakePublisher, server: PubSubServer) -> None:
    """The future has NOT_FOUND, with the gRPC error as its cause; the next publish works."""
    publisher = make_publisher(tokens=0)
    error = publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    assert isinstance(error, exceptions.NotFound)
    assert isinstance(error.__cause__, grpc.RpcError)
    again = publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    assert isinstance(again, exceptions.NotFound)


def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes within the retry timeout, and no hedge hammers a closed port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{unused.getsockname()[1]}")
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        called = time.monotonic()
        future = publisher.publish("projects/test/topics/orders", b"data", retry=None, timeout=1.0)
        assert isinstance(future.exception(timeout=5), exceptions.ServiceUnavailable)
        assert time.monotonic() - called < 1.2
        assert publisher.hedging_stats().hedges_sent == 0


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


def test_threads_do_not_grow_with_stalled_batches(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Two hundred stalled one-message batches take no thread each."""
    publisher = make_publisher(tokens=1)
    # The server runs in this process; its threads come and go with its calls, ours must not.
    before = our_threads()
    server.set_script(FaultScript(faults=[Stall(30)]))
    futures = [publisher.publish(topic, b"data") for _ in range(200)]
    wait_until(lambda: len(server.attempts()) >= 200)
    time.sleep(0.25)  # two looks
    assert len(our_threads() - before) <= 2
    with pytest.raises(concurrent.futures.TimeoutError):
        publisher.close(timeout=0.1)
    for future in futures:
        assert isinstance(future.exception(timeout=1), RuntimeError)


def our_threads() -> set[threading.Thread]:
    """Return the threads that this package or the official client has started."""
    prefixes = ("hedged-pubsub-", "Thread-CommitBatch")
    return {thread for thread in threading.enumerate() if thread.name.startswith(prefixes)}


def test_a_callback_that_blocks_harms_nobody(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Neither other results nor hedges wait for a user's callback."""
    publisher = make_publisher(tokens=2)
    release = threading.Event()
    for _ in range(5):
        publisher.publish(topic, b"data").add_done_callback(lambda _: release.wait(20))
    time.sleep(0.1)
    called = time.monotonic()
    publisher.publish(topic, b"data").result(timeout=5)
    assert time.monotonic() - called < 2  # what would block takes 20 s
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    called = time.monotonic()
    publisher.publish(topic, b"data").result(timeout=5)
    assert time.monotonic() - called < 2
    release.set()


def test_a_callback_may_publish_and_wait(topic: str, make_publisher: MakePublisher) -> None:
    """``publish(...).result()`` in a done-callback works, however deep."""
    publisher = make_publisher(tokens=0)
    ids: list[str] = []
    done = threading.Event()

    def publish_next(future: Any) -> None:
        ids.append(future.result())
        if len(ids) < 5:
            inner = publisher.publish(topic, b"data")
            inner.add_done_callback(publish_next)
            inner.result(timeout=5)
        else:
            done.set()

    publisher.publish(topic, b"data").add_done_callback(publish_next)
    assert done.wait(5)
    assert len(set(ids)) == 5


def test_futures_work_with_asyncio(topic: str, make_publisher: MakePublisher) -> None:
    """``asyncio.wrap_future`` awaits a publish."""
    publisher = make_publisher(tokens=0)

    async def main() -> list[str]:
        futures = [publisher.publish(topic, b"data") for _ in range(10)]
        return list(await asyncio.gather(*(asyncio.wrap_future(future) for future in futures)))

    assert len(set(asyncio.run(main()))) == 10


def test_debug_logging_does_not_block(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the official client's DEBUG logging on, a slow publish is still hedged."""
    publisher = make_publisher(tokens=1)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    with caplog.at_level(logging.DEBUG):
        called = time.monotonic()
        future = publisher.publish(topic, b"secret payload")
        assert time.monotonic() - called < 2  # the answer takes 30 s
        future.result(timeout=1)
    assert "secret payload" not in caplog.text


def test_flush_waits_for_what_was_accepted(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """An open batch is sent at once, and flush returns when it is decided."""
    publisher = make_publisher(
        tokens=0, batch_settings=pubsub_v1.types.BatchSettings(max_latency=60)
    )
    server.set_script(FaultScript(latency=Fixed(0.05), faults=[Status("NOT_FOUND", calls=[2])]))
    stored = publisher.publish(topic, b"data")
    publisher.flush(timeout=5)
    assert stored.done()
    failed = publisher.publish(topic, b"data")
    publisher.flush(timeout=5)
    assert isinstance(failed.exception(timeout=0), exceptions.NotFound)
    publisher.flush(timeout=0)


def test_flush_says_what_is_left(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A flush that runs out of time names the number of messages, which stay under way."""
    publisher = make_publisher(tokens=0)
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    futures = [publisher.publish(topic, b"data") for _ in range(3)]
    with pytest.raises(concurrent.futures.TimeoutError, match="3 of 3 messages are not decided"):
        publisher.flush(timeout=0.05)
    publisher.flush(timeout=5)
    assert all(future.done() for future in futures)


def test_the_with_block_leaves_nothing_behind(server: PubSubServer, topic: str) -> None:
    """Leaving the block flushes, then closes: every message is stored, the channel is closed."""
    settings = pubsub_v1.types.BatchSettings(max_latency=60)
    with HedgedPublisher(settings, hedging_settings=FAST) as publisher:
        futures = [publisher.publish(topic, b"%d" % n) for n in range(250)]
    assert all(future.done() for future in futures)
    assert len(server.messages()) == 250
    publisher.close()
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.publish(topic, b"late")


def test_close_with_a_timeout_ends_what_is_left(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Undecided messages fail with an error that says why, at once, and attempts are cancelled."""
    publisher = make_publisher(tokens=0)
    server.set_script(FaultScript(faults=[Stall(30)]))
    future = publisher.publish(topic, b"data")
    called = time.monotonic()
    with pytest.raises(concurrent.futures.TimeoutError, match="1 of 1 messages"):
        publisher.close(timeout=0.1)
    error = future.exception(timeout=1)
    assert time.monotonic() - called < 0.5
    assert isinstance(error, RuntimeError)
    assert "closed before the message was stored" in str(error)
    wait_until(lambda: server.attempts()[0].outcome == "cancelled")
    publisher.close()


def test_a_decided_batch_is_let_go(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """However far its next look is, nothing keeps a decided batch alive."""
    publisher = make_publisher(tokens=0, hedging_settings=HedgingSettings(hedge_delay=10))
    future = publisher.publish(topic, b"data")
    future.result(timeout=5)
    alive = weakref.ref(future)
    del future
    publisher.publish(topic, b"data").result(timeout=5)  # the batch after it
    wait_until(lambda: gc.collect() is not None and alive() is None)


def test_calls_are_held_through_garbage_collection(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A stalled call that nobody else refers to survives the collector."""
    publisher = make_publisher(tokens=0)
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    future = publisher.publish(topic, b"data")
    for _ in range(5):
        gc.collect()
        time.sleep(0.02)
    future.result(timeout=5)
    assert [attempt.outcome for attempt in server.attempts()] == ["answered"]


def test_the_stats_agree_with_the_server(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """What the publisher counts is what the server saw."""
    publisher = make_publisher(tokens=5)
    before = publisher.hedging_stats()
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0], calls=[1, 5, 9])]))
    for _ in range(10):
        publisher.publish(topic, b"data").result(timeout=5)
    publisher.flush()
    wait_until(lambda: all(attempt.outcome != "pending" for attempt in server.attempts()))
    stats = publisher.hedging_stats(topic)
    attempts = server.attempts()
    assert stats.attempts - before.attempts == len(attempts) == 10 + stats.hedges_sent
    assert stats.hedges_sent == sum(bool(attempt.attempt_number) for attempt in attempts)
    assert stats.hedges_won == stats.hedges_sent == stats.attempts_cancelled
    assert stats.attempts_cancelled == sum(a.outcome == "cancelled" for a in attempts)
    assert stats.batches - before.batches == 10
