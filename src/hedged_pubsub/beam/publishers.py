"""The publisher that the threads of a worker process share."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from apache_beam.utils.shared import Shared
from google.cloud.pubsub_v1 import types
from google.pubsub_v1 import PublisherClient

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.beam.messages import Message

_CLOSE_TIMEOUT: Final = 10.0
"""Seconds that closing waits for what a failed bundle has left under way; nobody needs it."""

FLOW_CONTROL: Final = types.PublishFlowControl(
    message_limit=10_000,
    byte_limit=64 * 1024 * 1024,
    limit_exceeded_behavior=types.LimitExceededBehavior.BLOCK,
)
"""What a worker process has under way at most, if the publisher options say nothing of it. Enough
for a hundred batches that wait for a hedge; few enough for the memory of the smallest worker."""


def changed(options: types.PublisherOptions) -> dict[str, Any]:
    """Return the options that are not the default, whose placeholders cannot be pickled.

    Raises:
        ValueError: If they enable ordering, or flow control that raises errors.
    """
    if options.enable_message_ordering:
        raise ValueError(
            "enable_message_ordering=True: hedging excludes ordering. Use "
            "apache_beam.io.WriteToPubSub with publish_with_ordering_key=True"
        )
    behavior = options.flow_control.limit_exceeded_behavior
    if behavior == types.LimitExceededBehavior.ERROR:
        raise ValueError("limit_exceeded_behavior=ERROR would fail bundles under load: use BLOCK")
    if behavior == types.LimitExceededBehavior.IGNORE:
        options = options._replace(flow_control=FLOW_CONTROL)
    defaults = types.PublisherOptions()._asdict()
    return {name: value for name, value in options._asdict().items() if value != defaults[name]}


def make_publisher(
    factory: Callable[..., object],
    batch_settings: Any,
    options: dict[str, Any],
    hedging_settings: HedgingSettings | None,
) -> object:
    """Make the publisher of a worker process; ``options`` as `changed` returns them."""
    publisher_options = types.PublisherOptions(**options)
    return factory(batch_settings, publisher_options, hedging_settings=hedging_settings)


class Counts(NamedTuple):
    """What a publisher did since this was last asked."""

    hedges_sent: int = 0
    hedges_won: int = 0
    retries: int = 0


class ProcessPublisher:
    """The publisher of one sink in one process: opened by its first user, closed by its last."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._publisher: HedgedPublisher | None = None
        self._told = Counts()

    def open(self) -> HedgedPublisher:
        """Return the publisher, for one more user."""
        with self._lock:
            if self._publisher is None:
                made = self._make()
                if not isinstance(made, HedgedPublisher):
                    raise TypeError(
                        f"publisher_factory must return a HedgedPublisher; got {made!r}"
                    )
                self._publisher, self._told = made, Counts()
            self._users += 1
            return self._publisher

    def close(self) -> None:
        """Have one user less; without any, close the publisher."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                publisher.close(_CLOSE_TIMEOUT)

    def take_counts(self) -> Counts:
        """Return what was counted since the last call, of whichever user."""
        with self._lock:
            if self._publisher is None:
                return Counts()
            stats = self._publisher.hedging_stats()
            retries = stats.attempts - stats.batches - stats.hedges_sent
            # A batch that is not sent yet is counted already.
            now = Counts(stats.hedges_sent, stats.hedges_won, max(retries, self._told.retries))
            new = Counts(*(after - before for after, before in zip(now, self._told, strict=True)))
            self._told = now
            return new


class SharedPublisher:
    """Opens the publisher of the process it is in; goes to the workers in a pickle."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._shared = Shared()

    def acquire(self) -> ProcessPublisher:
        """Return the one of this process."""
        one: ProcessPublisher = self._shared.acquire(lambda: ProcessPublisher(self._make))
        return one


def send_open_batches(publisher: HedgedPublisher) -> None:
    """Send what is in open batches, without waiting for it."""
    with contextlib.suppress(concurrent.futures.TimeoutError):
        publisher.flush(timeout=0)


def publish_alone(publisher: HedgedPublisher, message: Message) -> None:
    """Publish a message in a request of its own, and wait until it is stored."""
    generated: Any = PublisherClient.publish
    content = {"data": message.data, "attributes": message.attributes}
    generated(publisher, topic=message.topic, messages=[content])
