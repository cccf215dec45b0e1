"""Flow control in its three behaviours: a message is released on every path."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc.aio
import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import (
    FlowControlLimitError,
    MessageTooLargeError,
    PublishError,
)
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import Fault, FaultScript, Fixed, PubSubServer, Stall, Status, TooFewIds

from .conftest import FAST, ONE_MESSAGE, TOPIC, Make, both_kinds, on_threads

SLOW = HedgingSettings(hedge_delay=10)
"""Sends no hedge meanwhile."""

IGNORE, BLOCK, ERROR = (
    LimitExceededBehavior.IGNORE,
    LimitExceededBehavior.BLOCK,
    LimitExceededBehavior.ERROR,
)


def limited(
    behavior: LimitExceededBehavior, *, messages: int = 1, tracing: bool = False
) -> PublisherOptions:
    """Make options that let so many messages be under way."""
    return PublisherOptions(
        flow_control=PublishFlowControl(
            message_limit=messages, byte_limit=20_000_000, limit_exceeded_behavior=behavior
        ),
        enable_open_telemetry_tracing=tracing,
    )


def error_of(publisher: HedgedPublisher, data: Any = b"data") -> BaseException | None:
    """Publish and return the error, which a refusal raises at once."""
    error: BaseException | None
    try:
        error = publisher.publish(TOPIC, data).exception(timeout=5)
    except (FlowControlLimitError, MessageTooLargeError, TypeError) as refused:
        error = refused
    return error


@both_kinds
def test_error(make: Make) -> None:
    """A message above the limit fails at once; the others are stored."""
    script = FaultScript(latency=Fixed(0.5))
    publisher = make(publisher_options=limited(ERROR, messages=2), script=script)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    assert isinstance(error_of(publisher), FlowControlLimitError)
    assert [future.done() for future in futures] == [False, False]
    assert all(future.result(timeout=5) for future in futures)


@both_kinds
@pytest.mark.parametrize("behavior", [IGNORE, BLOCK])
def test_ignore_and_block(
    server: PubSubServer, make: Make, behavior: LimitExceededBehavior
) -> None:
    """With room for one, five messages go one after the other, or all at once."""
    script = FaultScript(latency=Fixed(0.1))
    publisher = make(publisher_options=limited(behavior), hedging_settings=SLOW, script=script)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(5)]
    assert futures[0].done() is (behavior is BLOCK)
    assert len({future.result(timeout=5) for future in futures}) == 5
    arrivals = [attempt.arrival for attempt in server.attempts()]
    ends = [attempt.ended or 0.0 for attempt in server.attempts()]
    one_by_one = all(arrival >= end for arrival, end in zip(arrivals[1:], ends[:-1], strict=True))
    assert one_by_one is (behavior is BLOCK)


@both_kinds
def test_many_threads_block(server: PubSubServer, make: Make) -> None:
    """With room for three, sixty messages of twenty threads all get through, in full batches."""
    publisher = make(
        batch_settings=BatchSettings(max_messages=3, max_latency=0.01),
        publisher_options=limited(BLOCK, messages=3),
        hedging_settings=SLOW,
        script=FaultScript(latency=Fixed(0.005)),
    )

    def publish(number: int) -> str:
        return str(publisher.publish(TOPIC, b"%d" % number).result(timeout=10))

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(publish, range(60)))) == 60
    assert {int(message.data) for message in server.messages()} == set(range(60))
    assert len(server.messages()) == 60


@both_kinds
@pytest.mark.parametrize("tracing", [False, True], ids=["", "tracing"])
@pytest.mark.parametrize(
    ("fault", "error_type"),
    [
        (None, type(None)),
        (Stall(30, calls=[1]), type(None)),
        (Status("PERMISSION_DENIED", calls=[1]), exceptions.PermissionDenied),
        (TooFewIds(calls=[1]), PublishError),
        (b"x" * 10_000_001, MessageTooLargeError),
        ("text", TypeError),
        ("closed channel", (ValueError, grpc.aio.UsageError)),
    ],
    ids=["stored", "hedged", "failed", "too few ids", "oversize", "text", "closed channel"],
)
def test_a_message_is_released(
    server: PubSubServer, make: Make, fault: Any, error_type: Any, tracing: bool
) -> None:
    """However a message ends, there is room for the next one as soon as that is known (R8)."""
    publisher = make(tokens=1, publisher_options=limited(ERROR, tracing=tracing))
    if fault == "closed channel":
        publisher.transport.close()
    elif isinstance(fault, Fault):
        server.set_script(FaultScript(faults=[fault]))
    error = error_of(publisher, fault if fault == "text" or isinstance(fault, bytes) else b"data")
    assert isinstance(error, error_type)
    assert isinstance(error_of(publisher), error_type if fault == "closed channel" else type(None))


@both_kinds
def test_a_failed_publish_leaves_room_for_a_blocked_one(make: Make) -> None:
    """Whoever waits behind a message that fails goes on."""
    script = FaultScript(faults=[Status("PERMISSION_DENIED", calls=[1], after=0.05)])
    publisher = make(script=script, publisher_options=limited(BLOCK))
    first, second = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    assert isinstance(first.exception(timeout=5), exceptions.PermissionDenied)
    assert second.result(timeout=5)


@pytest.mark.parametrize("end", ["stop", "close"])
def test_who_waits_for_room_when_it_ends(server: PubSubServer, end: str) -> None:
    """Threads that wait in ``publish()`` when the publisher ends get an error, each of them."""
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    publisher = HedgedPublisher(ONE_MESSAGE, limited(BLOCK), hedging_settings=FAST)
    first = publisher.publish(TOPIC, b"data")
    waiting = on_threads(*[partial(publisher.publish, TOPIC, b"late")] * 3)
    time.sleep(0.05)  # until they wait
    end_it: Callable[[], None] = getattr(publisher, end)
    end_it()
    for call in waiting:
        assert isinstance(call.exception(timeout=5), RuntimeError)
    assert first.result(timeout=5)
    publisher.close()
    assert len(server.messages()) == 1
