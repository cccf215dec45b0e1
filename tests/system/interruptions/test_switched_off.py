"""With hedging off: an exception at each place where CPython checks for signals breaks nothing."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher

from ..conftest import on_threads
from .places import interrupt

_TOPIC = "projects/test/topics/orders"
_OTHER_TOPIC = "projects/test/topics/bills"

# Makes the message, before anything is accepted: to the publisher that is one call.
_MESSAGES = re.compile(r"/proto/|/copy\.py|<frozen _collections_abc>|<frozen abc>")


def press_ctrl_c(_place: str) -> None:
    """Stand for the signal handler."""
    raise KeyboardInterrupt


class Publisher(HedgedPublisher):
    """A publisher whose requests are answered here."""

    def _gapic_publish(self, *args: Any, **kwargs: Any) -> Any:
        return types.PublishResponse(message_ids=["id"] * len(kwargs["messages"]))

    def _close_transport(self) -> None:
        pass  # all publishers share it


@pytest.fixture
def transport() -> Iterator[PublisherGrpcTransport]:
    """Make a transport whose requests are never sent."""
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        yield PublisherGrpcTransport(channel=channel)
    # A thread whose ``start()`` was interrupted too early counts as starting for ever; one that has
    # been started is about to run, and would fail if it found that it does not count as starting.
    time.sleep(0.5)
    threading._limbo.clear()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordered"])
@pytest.mark.parametrize("method", ["publish", "flush", "stop", "close"])
def test_an_exception_at_each_place(
    transport: PublisherGrpcTransport, key: str, method: str
) -> None:
    """All that was accepted ends, without another call; a later publish works; close ends.

    It is stored, unless ``close()`` had to give it up, or ``stop()`` cancelled it as officially.
    """
    latency = 0.001 if method == "publish" else 0.005  # seldom before what is interrupted
    settings = BatchSettings(max_messages=3, max_latency=latency)  # two messages a batch
    options = PublisherOptions(enable_message_ordering=bool(key))
    for number in itertools.count(1):
        publisher = Publisher(settings, options, hedging_settings=None, transport=transport)
        futures = [publisher.publish(_TOPIC, b"data", key)]

        def publish(publisher: Publisher = publisher, futures: list[Any] = futures) -> None:
            topics = (_OTHER_TOPIC, _TOPIC, _TOPIC)
            futures.extend(publisher.publish(topic, b"data", key) for topic in topics)

        if method != "publish":
            publish()
        call = publish if method == "publish" else getattr(publisher, method)
        place = interrupt(call, number, press_ctrl_c, but_in=_MESSAGES).place
        # On threads that do not own what the interruption leaves locked in this one.
        outcomes = on_threads(*(partial(future.exception, timeout=2) for future in futures))
        errors = [outcome.result() for outcome in outcomes]
        if method in {"publish", "flush"}:
            assert not any(errors), place
            assert publisher.publish(_TOPIC, b"later", key).result(timeout=5), place
        elif method == "stop" and not key:
            assert not any(errors), place
        publisher.close(timeout=5)
        if place is None:
            assert number > 20
            break
