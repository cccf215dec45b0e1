"""What programs do with the official client, they can do with this one, to the same effect."""

from __future__ import annotations

import asyncio
import copy
import enum
import functools
import logging
import pickle
import typing
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from google.api_core.retry import Retry
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings
from hedged_pubsub._google.patched import is_patched
from hedged_pubsub.testing import PubSubServer

from .conftest import TOPIC, Make, New, both_kinds, wait_until
from .test_rules import stall_originals


@both_kinds
def test_a_new_retry_for_each_publish_shares_batches(make: Make, server: PubSubServer) -> None:
    """Celery's broker library makes one each time; what they say is the same."""
    settings = BatchSettings(max_latency=60)
    publisher = make(settings, hedging_settings=HedgingSettings())
    for number in range(300):
        publisher.publish(TOPIC, b"%d" % number, retry=Retry(deadline=90), timeout=30)
    publisher.flush(timeout=10)
    assert len(server.messages()) == 300
    assert len(server.attempts()) == 4


@both_kinds
@pytest.mark.parametrize(
    ("mistake", "error", "answer"),
    [
        (lambda new: new(HedgingSettings()), TypeError, "pass it by name, as hedging_settings="),
        (
            lambda new: new(hedge_delay=0.3),
            TypeError,
            r"pass hedging_settings=HedgingSettings\(hedge_delay=0.3\)",
        ),
        (lambda new: new().hedging_stats("orders"), ValueError, "topic must be a full name"),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_first_mistake_is_answered_with_what_to_write(
    new_publisher: New, mistake: Callable[[New], object], error: type[Exception], answer: str
) -> None:
    """They are those of people who know the official client and have not read about ours."""
    with pytest.raises(error, match=answer):
        mistake(new_publisher)


@both_kinds
def test_an_ordering_key_is_answered_with_what_to_write(make: Make) -> None:
    """Enabling ordering, as the official client says, would be refused in turn."""
    with pytest.raises(ValueError, match=r"leave it out, or use a .*with hedging_settings=None"):
        make().publish(TOPIC, b"data", ordering_key="key")


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("made", [HedgedPublisher, AsyncHedgedPublisher])
@pytest.mark.usefixtures("server")
def test_a_publisher_belongs_to_one_process(
    made: Callable[[], Any], attempt: Callable[[Any], object]
) -> None:
    """Frameworks try to send it to their workers."""

    async def try_it() -> None:
        with pytest.raises(
            TypeError, match="cannot be pickled or copied deeply: make one in each process"
        ):
            attempt(made())

    asyncio.run(try_it())


class Topic(str, enum.Enum):
    """As programs name their topics; printed, a member is the name of its class and its own."""

    ORDERS = TOPIC


@both_kinds
def test_a_topic_may_be_an_enums(
    make: Make, server: PubSubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is its value in the routing header, in log lines and wherever else."""
    caplog.set_level(logging.DEBUG, "hedged_pubsub")
    publisher = make(hedging_settings=HedgingSettings(hedge_delay=0.1, initial_tokens=1))
    server.set_script(stall_originals())
    publisher.publish(Topic.ORDERS, b"data").result(timeout=10)
    first, hedge = server.attempts(TOPIC)
    for attempt in (first, hedge):
        assert ("x-goog-request-params", f"topic={TOPIC}") in attempt.metadata
    assert publisher.hedging_stats(TOPIC).hedges_won == 1
    wait_until(lambda: any(TOPIC in record.getMessage() for record in caplog.records))
    assert "ORDERS" not in caplog.text


@both_kinds
def test_a_topic_that_is_no_text_is_refused_at_once(make: Make) -> None:
    """Nothing of it stays behind, neither in flow control nor to be waited for at the end."""
    flow_control = PublishFlowControl(1, limit_exceeded_behavior=LimitExceededBehavior.ERROR)
    publisher = make(publisher_options=PublisherOptions(flow_control=flow_control))
    with pytest.raises(TypeError, match="topic must be the full name of a topic"):
        publisher.publish(None, b"data")  # type: ignore[arg-type]
    publisher.publish(TOPIC, b"data").result(timeout=10)


def test_a_type_checker_knows_what_a_future_is_of() -> None:
    """The official client's futures have no type of their own to it."""
    assert typing.get_type_hints(HedgedPublisher.publish)["return"] == Future[str]


class Tracer:
    """What tracers do: wrap the class's method, add an attribute, and look at the future."""

    def __init__(self, official: Any) -> None:
        self.ids: list[str] = []
        self.failures: list[Exception] = []

        @functools.wraps(official)
        def publish(client: Any, topic: str, data: bytes, **kwargs: Any) -> Any:
            try:
                future = official(client, topic, data, **kwargs, trace_id="4711")
            except Exception as error:
                self.failures.append(error)
                raise
            future.add_done_callback(lambda done: self.ids.append(done.result()))
            return future

        self.publish = publish


@pytest.mark.parametrize("options", [{}, {"enable_open_telemetry_tracing": True}])
def test_a_patched_class_sees_each_publish(
    make: Make, server: PubSubServer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """And what it adds is sent, hedged when it is slow, under flow control; errors are raised."""
    tracer = Tracer(PublisherClient.publish)
    monkeypatch.setattr(PublisherClient, "publish", tracer.publish)
    flow_control = PublishFlowControl(1, limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
    publisher = make(
        publisher_options=PublisherOptions(flow_control=flow_control, **options),
        tokens=2,
        script=stall_originals(),
    )
    assert publisher.open_telemetry_enabled == bool(options)
    earned = publisher.hedging_stats().batches
    wait_until(lambda: len(tracer.ids) == earned)
    futures = [publisher.publish(TOPIC, b"data", retry=None) for _ in range(2)]
    ids = [future.result(timeout=10) for future in futures]
    wait_until(lambda: tracer.ids[earned:] == ids)
    assert {(one.data, one.attributes) for one in server.messages()} == {
        (b"data", (("trace_id", "4711"),))
    }
    assert publisher.hedging_stats().hedges_won == 2
    with pytest.raises(TypeError, match="bytestring"):
        publisher.publish(TOPIC, "text")  # type: ignore[arg-type]
    assert len(tracer.failures) == 1


def test_our_class_in_the_place_of_the_official_one_is_no_patch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs put it there for libraries that make their own publisher; it costs them nothing."""
    monkeypatch.setattr(pubsub_v1, "PublisherClient", HedgedPublisher)
    assert not is_patched()
    monkeypatch.setattr(PublisherClient, "publish", Tracer(PublisherClient.publish).publish)
    assert is_patched()
