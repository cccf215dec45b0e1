"""``close()`` and ``stop()`` beside each other and beside waiters; a fork beside a user's code."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import sys
import time
from functools import partial
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from ..conftest import FAST, TOPIC, Make, on_threads, settled, wait_until
from ..programs import run

_BATCHES = BatchSettings(max_messages=10, max_latency=60)


def publish_all(publisher: HedgedPublisher, topic: str) -> list[Any]:
    """Publish many messages."""
    return [publisher.publish(topic, b"%d" % number) for number in range(300)]


def test_close_while_stop_is_under_way(server: PubSubServer) -> None:
    """Wherever ``stop()`` is when another thread closes it, all is stored when that returns."""
    server.set_script(FaultScript(latency=Fixed(0.02)))
    lines = run(
        """
        from tests.system.interruptions.places import interrupt
        def close():
            publisher.close()
            decided.append(all(future.done() for future in futures))
        def close_beside(place):
            closing.start()
            closing.join(0.05)  # it may have to wait for stop()
        number = place = 1
        while place is not None:
            publisher = HedgedPublisher(settings(max_messages=10, max_latency=60))
            futures = [publisher.publish(topic, b"data") for _ in range(25)]
            closing, decided = threading.Thread(target=close), []
            place = interrupt(publisher.stop, number, close_beside).place
            if place is not None:
                closing.join()
                print(decided, {future.exception(timeout=0) for future in futures}, place)
            number += 1
        """
    )
    assert len(lines) > 1
    assert [line for line in lines if not line.startswith("[True] {None}")] == []


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
    stored = sorted(server.messages(), key=lambda message: int(message.data))
    assert [message.message_id for message in stored] == [future.result() for future in futures]


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


def test_waiters_for_the_same_two_batches(
    server: PubSubServer, make: Make, request: pytest.FixtureRequest
) -> None:
    """Threads that wait for overlapping futures of two batches, however listed, all return.

    So do ``flush()`` and ``close()`` beside them.
    """
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    other = server.create_topic("other")
    for _ in range(15):
        publisher = make(BatchSettings(max_messages=1000, max_latency=0.002))
        server.set_script(FaultScript(latency=Fixed(0.03)))
        futures = [publisher.publish(name, b"data") for name in [TOPIC, other] * 20]

        def wait(futures: list[Any] = futures) -> None:
            while not all(future.done() for future in futures):
                some = random.sample(futures, 6)
                concurrent.futures.wait(some, timeout=0.0005)
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    list(concurrent.futures.as_completed(some, timeout=0.0005))

        for outcome in on_threads(*[wait] * 4, publisher.flush, publisher.close):
            outcome.result(timeout=10)
        assert not any(future.exception() for future in futures)
