"""Contracts: what this package touches of the official client's private parts is as it expects.

These run at the lowest and the newest supported releases.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher._batch import base, thread
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._official import (
    InterceptedBatch,
    InterceptingClient,
    call_arguments,
    publish_defaults,
    retry_parts,
)

_TOPIC = "projects/test/topics/a topic"


@pytest.fixture
def transport() -> Iterator[PublisherGrpcTransport]:
    """Make a transport to nowhere."""
    made = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    yield made
    made.close()


def test_retry_parts() -> None:
    """A retry has the parts that are interpreted."""
    heard: list[Exception] = []
    parts = retry_parts(
        Retry(lambda error: error is None, initial=1, maximum=4, timeout=9, on_error=heard.append)
    )
    assert parts.predicate(None) is True  # type: ignore[arg-type]
    assert parts.timeout == 9
    assert parts.on_error == heard.append
    waits = parts.backoffs()
    for limit in (1, 2, 4, 4):
        assert 0 <= next(waits) <= limit
    assert retry_parts(Retry(timeout=None)).timeout is None


def test_publish_defaults(transport: PublisherGrpcTransport) -> None:
    """The generated method's defaults are found, and are what the documentation says."""
    retry, timeout = publish_defaults(transport)
    assert retry is not None
    parts = retry_parts(retry)
    assert timeout == 60
    assert parts.timeout == 600
    assert parts.predicate(exceptions.ServiceUnavailable("down"))
    assert parts.predicate(exceptions.Cancelled("by the server"))
    assert not parts.predicate(exceptions.PermissionDenied("no"))


def test_call_arguments(transport: PublisherGrpcTransport) -> None:
    """The metadata is that of the official client, with the topic percent-encoded."""
    arguments = dict(call_arguments(transport, _TOPIC))
    metadata = dict(arguments.pop("metadata"))
    assert arguments == {}
    assert metadata.pop("x-goog-request-params") == "topic=projects/test/topics/a+topic"
    assert metadata.pop("x-goog-api-client").startswith("gl-python/")
    assert metadata == {}


def test_asking_for_the_arguments_sends_nothing(transport: PublisherGrpcTransport) -> None:
    """The client's own method is untouched by the look at its arguments."""
    method = transport._wrapped_methods[transport.publish]
    before = dict(vars(method))
    call_arguments(transport, _TOPIC)
    assert vars(method) == before
    with pytest.raises(exceptions.ServiceUnavailable):
        method({"topic": _TOPIC}, retry=None, timeout=1.0)


class Recorder(InterceptingClient):
    """Keeps the batches it is handed."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(
            transport=PublisherGrpcTransport(
                channel=grpc.insecure_channel("127.0.0.1:1"), credentials=AnonymousCredentials()
            ),
            **arguments,
        )
        self.sent: list[InterceptedBatch] = []
        self.lock_was_held = False
        self.intercept_batches()

    def send_batch(self, batch: InterceptedBatch) -> None:
        """Keep the batch."""
        self.lock_was_held |= self._batch_lock.locked()
        self.sent.append(batch)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Make a client that hands out batches of two."""
    client = Recorder(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=3, max_latency=float("inf"))
    )
    yield client
    client.transport.close()


def test_a_full_batch_is_handed_out_without_the_lock(recorder: Recorder) -> None:
    """A batch that is full is handed out by the publish that finds it so."""
    futures = [recorder.publish(_TOPIC, b"%d" % n) for n in range(3)]
    (batch,) = recorder.sent
    assert not recorder.lock_was_held
    assert isinstance(batch, thread.Batch)
    assert batch.topic == _TOPIC
    assert len(batch) == 2
    request = batch.build_request()
    assert request.topic == _TOPIC
    assert [message.data for message in request.messages] == [b"0", b"1"]
    assert batch.status == base.BatchStatus.IN_PROGRESS
    batch.set_result(["id 0", "id 1"])
    assert [future.result(timeout=0) for future in futures[:2]] == ["id 0", "id 1"]
    assert not futures[2].done()


def test_commit_all_and_stop_hand_out_open_batches(recorder: Recorder) -> None:
    """Flushing and stopping commit every open batch, of every topic, once."""
    recorder.publish(_TOPIC, b"0")
    recorder.publish("projects/test/topics/other", b"0")
    recorder.commit_all()
    assert [batch.topic for batch in recorder.sent] == [_TOPIC, "projects/test/topics/other"]
    recorder.commit_all()
    recorder.publish(_TOPIC, b"1")
    recorder.stop()
    assert len(recorder.sent) == 3
    assert recorder.is_stopped
    recorder.commit_all()
    assert len(recorder.sent) == 3
    assert not recorder.lock_was_held


def test_a_refused_message_leaves_no_trace(recorder: Recorder) -> None:
    """An oversize message fails its own publish; the batch and its start time are as before."""
    recorder.publish(_TOPIC, b"0")
    with pytest.raises(ValueError, match="too large"):
        recorder.publish(_TOPIC, b"x" * 10_000_001)
    recorder.publish(_TOPIC, b"1")
    recorder.commit_all()
    (batch,) = recorder.sent
    assert len(batch) == len(batch._published_at) == 2


def test_a_failed_batch_takes_no_more_messages(recorder: Recorder) -> None:
    """A publish after a failed batch goes into a new one, where the official client asserts."""
    first = recorder.publish(_TOPIC, b"0")
    batch = recorder._sequencers[(_TOPIC, "")]._current_batch
    batch.set_exception(exceptions.NotFound("gone"))
    assert isinstance(first.exception(timeout=0), exceptions.NotFound)
    second = recorder.publish(_TOPIC, b"1")
    assert not second.done()
    assert batch is not recorder._sequencers[(_TOPIC, "")]._current_batch


def test_the_timer_hands_out_batches() -> None:
    """A batch that is not full goes out once its latency has passed."""
    client = Recorder(batch_settings=pubsub_v1.types.BatchSettings(max_latency=0))
    client.publish(_TOPIC, b"0")
    timer = client._commit_thread
    if timer is not None:
        timer.join(5)
    assert len(client.sent) == 1
    client.transport.close()


def test_the_publish_signature_is_the_official_one() -> None:
    """Positional arguments mean the same."""
    from hedged_pubsub import HedgedPublisher

    official = inspect.signature(pubsub_v1.PublisherClient.publish).parameters
    ours = inspect.signature(HedgedPublisher.publish).parameters
    assert list(ours) == list(official)
    for name in official:
        assert ours[name].kind == official[name].kind
        assert ours[name].default == official[name].default


def test_the_universe_can_be_checked(recorder: Recorder) -> None:
    """The check of the generated methods is there."""
    recorder.validate_universe()
