"""``close()`` and ``stop()`` beside each other, in callbacks, beside waiters, and beside a fork."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from ..conftest import FAST, TOPIC, on_threads, settled, wait_until
from ..programs import run

_BATCHES = BatchSettings(max_messages=10, max_latency=60)

_MESSAGES = 300


def publish_all(publisher: HedgedPublisher, topic: str) -> list[Any]:
    """Publish many messages."""
    return [publisher.publish(topic, b"%d" % number) for number in range(_MESSAGES)]


def assert_all_stored(server: PubSubServer, futures: list[Any]) -> None:
    """Fail unless each message is stored once and decided by now."""
    ids = [future.result(timeout=0) for future in futures]
    assert ids == [
        message.message_id
        for message in sorted(server.messages(), key=lambda message: int(message.data))
    ]


def test_close_beside_stop(server: PubSubServer) -> None:
    """All is stored when ``close()`` returns, though another thread stops the publisher."""
    server.set_script(FaultScript(latency=Fixed(0.02)))
    for _ in range(20):
        server.clear()
        publisher = HedgedPublisher(_BATCHES, hedging_settings=FAST)
        futures = publish_all(publisher, TOPIC)
        stopped, closed = on_threads(publisher.stop, publisher.close)
        assert closed.exception(timeout=10) is None
        assert_all_stored(server, futures)
        error = stopped.exception(timeout=10)  # whoever comes second may be told so
        assert error is None or "already stopped" in str(error)


def test_close_while_stop_is_under_way(server: PubSubServer) -> None:
    """Wherever ``stop()`` is when another thread closes the publisher, all is stored."""
    lines = run(
        """
        from tests.system.interruptions.places import interrupt
        def close_beside(place):
            closing.start()
            closing.join(0.05)  # it may have to wait for stop()
        number = place = 1
        while place is not None:
            publisher = HedgedPublisher(settings(max_messages=10, max_latency=60))
            futures = [publisher.publish(topic, b"data") for _ in range(25)]
            closing = threading.Thread(target=publisher.close)
            place = interrupt(publisher.stop, number, close_beside).place
            if place is not None:
                closing.join()
                print({future.exception(timeout=0) for future in futures}, place)
            number += 1
        """
    )
    assert len(lines) > 1
    assert [line for line in lines if not line.startswith("{None}")] == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_three_threads_close(server: PubSubServer, is_stopped: bool) -> None:
    """No ``close()`` returns before every message is decided, also after a ``stop()``."""
    server.set_script(FaultScript(faults=[Stall(0.4)]))
    publisher = HedgedPublisher(_BATCHES, hedging_settings=FAST)
    futures = publish_all(publisher, TOPIC)

    def close() -> list[bool]:
        publisher.close()
        return [future.done() for future in futures]

    if is_stopped:
        publisher.stop()
    for outcome in on_threads(close, close, close):
        assert all(outcome.result(timeout=10))
    assert_all_stored(server, futures)


@pytest.mark.parametrize("first", ["close", "stop"])
def test_close_with_a_timeout(server: PubSubServer, first: str) -> None:
    """What is undecided then fails, also after a ``stop()``, or while another ``close()`` waits."""
    server.set_script(FaultScript(faults=[Stall(60)]))
    publisher = HedgedPublisher(_BATCHES, hedging_settings=FAST)
    futures = publish_all(publisher, TOPIC)
    (ended,) = on_threads(getattr(publisher, first))
    time.sleep(0.1)  # until it waits
    with pytest.raises(concurrent.futures.TimeoutError):
        publisher.close(timeout=0.2)
    for future in futures:
        error = future.exception(timeout=1)
        assert isinstance(error, RuntimeError)
        assert "closed before the message was stored" in str(error)
    ended.result(timeout=5)
    wait_until(settled(server))
    assert {attempt.outcome for attempt in server.attempts()} == {"cancelled"}
    publisher.close()


def test_close_in_a_callback(server: PubSubServer) -> None:
    """A done-callback may close the publisher, also while other threads do."""
    server.set_script(FaultScript(latency=Fixed(0.05)))
    publisher = HedgedPublisher(BatchSettings(max_messages=10), hedging_settings=FAST)
    closed = threading.Event()

    def close(_: object) -> None:
        publisher.close()
        closed.set()

    futures = publish_all(publisher, TOPIC)
    for future in futures[:3]:
        future.add_done_callback(close)
    outcomes = on_threads(publisher.close, publisher.close)
    assert closed.wait(5)
    for outcome in outcomes:
        outcome.result(timeout=5)
    assert_all_stored(server, futures)


def test_an_interceptor_that_sleeps_does_not_hold_up_a_fork(server: PubSubServer) -> None:
    """``os.fork()`` waits for our own calls of gRPC at most, not for a user's code in them."""
    lines = run(
        """
        import grpc
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        class Sleep(grpc.UnaryUnaryClientInterceptor):
            def intercept_unary_unary(self, continuation, details, request):
                sleeping.set()
                time.sleep(1)
                return continuation(details, request)
        sleeping = threading.Event()
        channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        transport = PublisherGrpcTransport(channel=grpc.intercept_channel(channel, Sleep()))
        with HedgedPublisher(settings(max_latency=0), transport=transport) as publisher:
            future = publisher.publish(topic, b"data")
            sleeping.wait(5)
            child = os.fork()
            if not child:
                os._exit(0)
            print(future.done())
            os.waitpid(child, 0)
        print(future.exception())
        """
    )
    assert lines == ["False", "None"]


def test_waiters_for_the_same_two_batches(server: PubSubServer) -> None:
    """Threads that wait for overlapping futures of two batches, however listed, all return.

    So do ``flush()`` and ``close()`` beside them.
    """
    server.create_topic("other")
    server.set_script(FaultScript(latency=Fixed(0.03)))
    lines = run(
        """
        sys.setswitchinterval(1e-5)
        def wait(futures):
            while not all(future.done() for future in futures):
                for _ in range(5):
                    some = random.sample(futures, 6)
                    concurrent.futures.wait(some, timeout=0.0005)
                    try:
                        list(concurrent.futures.as_completed(some, timeout=0.0005))
                    except concurrent.futures.TimeoutError:
                        pass
            concurrent.futures.wait(futures)
        for _ in range(15):
            publisher = HedgedPublisher(settings(max_messages=1000, max_latency=0.002))
            futures = []
            for _ in range(20):
                futures += [publisher.publish(topic, b"data"), publisher.publish(other, b"data")]
            threads = [threading.Thread(target=wait, args=[futures]) for _ in range(4)]
            threads += [threading.Thread(target=publisher.flush) for _ in range(2)]
            for thread in threads:
                thread.start()
            publisher.close()
            for thread in threads:
                thread.join()
            print({future.exception() for future in futures})
        """,
        hangs=15,
    )
    assert lines == ["{None}"] * 15
