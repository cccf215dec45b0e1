"""Messages go out in the batches that the settings ask for, at either server."""

from __future__ import annotations

import pytest
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher
from tests.contract.conftest import MakePublisher
from tests.contract.receiving import receive
from tests.contract.sent import SentRequests, observed_transport


@pytest.fixture
def sent() -> SentRequests:
    """The requests that were sent. Too few to earn a token, so no hedge is among them."""
    return SentRequests()


@pytest.fixture
def make_observed(make_publisher: MakePublisher, peer: str, sent: SentRequests) -> MakePublisher:
    """Makes publishers whose requests are noted."""

    def make(settings: BatchSettings) -> HedgedPublisher:
        return make_publisher(settings, transport=observed_transport(peer, sent))

    return make


@pytest.mark.parametrize(
    ("max_messages", "full", "rest"),
    [(1, [1] * 9, []), (2, [1] * 8, [1]), (5, [4, 4], [1]), (10, [], [9])],
)
def test_batching_by_count(
    make_observed: MakePublisher,
    sent: SentRequests,
    subscriber: SubscriberClient,
    topic: str,
    subscription: str,
    max_messages: int,
    full: list[int],
    rest: list[int],
) -> None:
    """The message that makes the count full goes into the next batch, as officially."""
    publisher = make_observed(BatchSettings(max_messages=max_messages, max_latency=600))
    futures = [publisher.publish(topic, b"data %d" % number) for number in range(9)]
    for future in futures[: sum(full)]:
        future.result(timeout=60)
    assert sent.sizes == full
    assert not any(future.done() for future in futures[sum(full) :])
    publisher.flush(timeout=60)
    assert sent.sizes == full + rest
    assert receive(subscriber, subscription, 9).keys() == {future.result() for future in futures}


def test_batching_by_bytes(
    make_observed: MakePublisher,
    sent: SentRequests,
    subscriber: SubscriberClient,
    topic: str,
    subscription: str,
) -> None:
    """A message that would make the request too large goes into the next batch."""
    publisher = make_observed(BatchSettings(max_bytes=10_000, max_latency=600))
    futures = [publisher.publish(topic, b"x" * 3_000) for _ in range(7)]
    for future in futures[:6]:
        future.result(timeout=60)
    assert sent.sizes == [3, 3]
    assert not futures[6].done()
    publisher.flush(timeout=60)
    assert sent.sizes == [3, 3, 1]
    assert receive(subscriber, subscription, 7).keys() == {future.result() for future in futures}


def test_batching_by_bytes_of_a_large_message(
    make_observed: MakePublisher, sent: SentRequests, topic: str
) -> None:
    """A message above the limit on its own goes out on its own."""
    publisher = make_observed(BatchSettings(max_bytes=1_000, max_latency=600))
    futures = [publisher.publish(topic, b"x" * size) for size in (10, 5_000, 10)]
    publisher.flush(timeout=60)
    assert len({future.result() for future in futures}) == 3
    assert sent.sizes == [1, 1, 1]


def test_batching_by_latency(
    make_observed: MakePublisher,
    sent: SentRequests,
    subscriber: SubscriberClient,
    topic: str,
    subscription: str,
) -> None:
    """A batch that does not get full goes out when its first message has waited long enough."""
    publisher = make_observed(BatchSettings(max_latency=0.3))
    ids: set[str] = set()
    for _ in range(2):
        futures = [publisher.publish(topic, b"data") for _ in range(3)]
        assert not any(future.done() for future in futures)
        ids |= {future.result(timeout=60) for future in futures}
    assert sent.sizes == [3, 3]
    assert receive(subscriber, subscription, 6).keys() == ids
