"""Batching: the same messages make the same batches as in the official client."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core.retry import Retry
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher._batch import thread
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.publisher.flow_controller import FlowController
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublishFlowControl
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from hypothesis import given, settings
from hypothesis import strategies as st

from hedged_pubsub._batch import serialize_message
from hedged_pubsub._official import FlowControl
from hedged_pubsub._sync.batch import Batch
from hedged_pubsub._sync.batcher import Batcher
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import Fail
from hedged_pubsub.settings import HedgingSettings

from .fakes import Inline, VirtualTime

_TOPIC = "projects/test/topics/orders"


def policy(retry: Retry | None = None) -> CallPolicy:
    """Make a policy."""
    return CallPolicy(retry, 60.0, is_transient=lambda _: False)


_POLICY = policy()


class Recorder(Driver):
    """Keeps the batches instead of sending them."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(HedgingSettings(), time, Inline(time, time.clock), time.clock)
        self.sent: list[Batch] = []
        self.batcher: Batcher | None = None

    def submit(self, batch: Any) -> None:
        """Keep the batch."""
        assert self.batcher is not None
        assert not self.batcher._batch_lock.locked(), "sending is I/O"
        self.sent.append(batch)


@pytest.fixture(scope="module")
def rpc() -> Iterator[PublishRpc]:
    """Make an RPC to nowhere."""
    transport = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    time = VirtualTime()
    yield PublishRpc(transport, None, time, Inline(time, time.clock), time.clock)
    transport.close()


def make_batcher(
    rpc: PublishRpc,
    batch_settings: BatchSettings = BatchSettings(),  # noqa: B008 - a named tuple
    flow: PublishFlowControl = PublishFlowControl(),  # noqa: B008 - a named tuple
) -> tuple[Batcher, Recorder, VirtualTime]:
    """Make a batcher on virtual time whose batches are kept."""
    time = VirtualTime()
    recorder = Recorder(time)
    recorder.batcher = Batcher(
        settings=batch_settings,
        flow_control=FlowControl(FlowController(flow)),
        rpc=rpc,
        driver=recorder,
        scheduler=time,
        workers=Inline(time, time.clock),
        clock=time.clock,
    )
    return recorder.batcher, recorder, time


def body(data: bytes, **attributes: str) -> bytes:
    """Serialize a message."""
    message: bytes = types.PubsubMessage.serialize({"data": data, "attributes": attributes})
    return message


def request(batch: Batch) -> Any:
    """Read the request that a batch would send."""
    return types.PublishRequest.deserialize(batch._request)


def official_batches(batch_settings: BatchSettings, bodies: list[bytes]) -> list[Any]:
    """Let the official client make batches of messages; return their requests."""
    requests: list[Any] = []

    class Kept(thread.Batch):  # type: ignore[misc]
        def _start_commit_thread(self) -> None:
            if self._message_wrappers:
                messages = [wrapper.message for wrapper in self._message_wrappers]
                requests.append(types.PublishRequest(topic=self._topic, messages=messages))

    client = pubsub_v1.PublisherClient(
        batch_settings._replace(max_latency=float("inf")),
        transport=PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1")),
    )
    client._batch_class = Kept
    for message in map(types.PubsubMessage.deserialize, bodies):
        client.publish(_TOPIC, message.data, **dict(message.attributes))
    client.stop()
    client.transport.close()
    return requests


@settings(max_examples=60, deadline=None)
@given(
    max_messages=st.integers(1, 6),
    max_bytes=st.integers(0, 400),
    messages=st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=200),
            st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=5), max_size=2),
        ),
        max_size=20,
    ),
)
def test_the_batches_are_the_official_ones(
    rpc: PublishRpc, max_messages: int, max_bytes: int, messages: list[tuple[bytes, dict[str, str]]]
) -> None:
    """Same messages and settings: the same requests, in the same order."""
    batch_settings = BatchSettings(max_bytes=max_bytes, max_messages=max_messages)
    bodies = [body(data, **attributes) for data, attributes in messages]
    batcher, recorder, _ = make_batcher(rpc, batch_settings)
    for serialized in bodies:
        batcher.add(_TOPIC, serialized, _POLICY, 0.0)
    batcher.stop()
    assert [request(batch) for batch in recorder.sent] == official_batches(batch_settings, bodies)
    for batch in recorder.sent:
        assert batch.size == len(batch._request), "it was measured right"


@given(data=st.binary(max_size=20_000), attributes=st.dictionaries(st.text(), st.text()))
def test_a_message_is_what_protobuf_makes_of_it(data: bytes, attributes: dict[str, str]) -> None:
    """Written by hand or not, it is read back as it was, and is the bytes that protobuf writes."""
    written = serialize_message(data, dict(attributes))
    read = types.PubsubMessage.deserialize(written)
    assert (read.data, dict(read.attributes)) == (data, attributes)
    if len(attributes) < 2:  # a map has no order on the wire
        assert written == types.PubsubMessage.serialize(
            types.PubsubMessage(data=data, attributes=attributes)
        )


def test_a_batch_that_waited_enough_is_sent(rpc: PublishRpc) -> None:
    """The first message of a batch starts the clock; all topics go when it has run out."""
    batcher, recorder, time = make_batcher(rpc, BatchSettings(max_latency=0.5))
    batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    time.advance(0.3)
    batcher.add("projects/test/topics/other", body(b"2"), _POLICY, 0.0)
    assert recorder.sent == []
    time.advance(0.5)
    assert [batch.topic for batch in recorder.sent] == [_TOPIC, "projects/test/topics/other"]
    time.advance(5.0)
    assert len(recorder.sent) == 2
    batcher.add(_TOPIC, body(b"3"), _POLICY, 0.0)
    time.advance(5.5)
    assert len(recorder.sent) == 3


def test_without_a_latency_only_full_batches_go(rpc: PublishRpc) -> None:
    """An infinite latency starts no clock."""
    batcher, recorder, time = make_batcher(rpc, BatchSettings(max_latency=float("inf")))
    batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    assert time.pending == 0
    batcher.commit_all()
    assert len(recorder.sent) == 1


def test_a_full_batch_starts_no_clock(rpc: PublishRpc) -> None:
    """One-message batches never signal the scheduler."""
    batcher, recorder, time = make_batcher(rpc, BatchSettings(max_messages=1))
    batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    assert time.pending == 0
    assert len(recorder.sent) == 1


def test_policies_never_share_a_batch(rpc: PublishRpc) -> None:
    """Two messages with different retries or timeouts are different requests."""
    batcher, recorder, _ = make_batcher(rpc)
    other = policy(Retry())
    for number, given_policy in enumerate((_POLICY, other, _POLICY, other)):
        batcher.add(_TOPIC, body(b"%d" % number), given_policy, 0.0)
    batcher.commit_all()
    assert [[message.data for message in request(batch).messages] for batch in recorder.sent] == [
        [b"0", b"2"],
        [b"1", b"3"],
    ]


def test_an_oversize_message_harms_nothing(rpc: PublishRpc) -> None:
    """It is refused whether a batch is open or not, and what is open stays so."""
    batcher, recorder, _ = make_batcher(rpc)
    for _ in range(2):
        with pytest.raises(MessageTooLargeError, match="10000000 bytes"):
            batcher.add(_TOPIC, body(b"x" * 10_000_000), _POLICY, 0.0)
        batcher.add(_TOPIC, body(b"fits"), _POLICY, 0.0)
    assert recorder.sent == []
    batcher.commit_all()
    assert len(recorder.sent[0].futures) == 2
    assert len(batcher.undecided()) == 2


def test_a_stopped_batcher_takes_nothing(rpc: PublishRpc) -> None:
    """Stopping sends what is open, once."""
    batcher, recorder, _ = make_batcher(rpc)
    batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    batcher.stop()
    assert len(recorder.sent) == 1
    with pytest.raises(RuntimeError, match="Cannot publish on a stopped publisher"):
        batcher.add(_TOPIC, body(b"2"), _POLICY, 0.0)
    with pytest.raises(RuntimeError, match="already stopped"):
        batcher.stop()
    batcher.commit_all()
    assert len(recorder.sent) == 1


def test_the_start_time_is_the_oldest(rpc: PublishRpc) -> None:
    """A thread that was late to the batch may have come first to ``publish()``."""
    batcher, recorder, _ = make_batcher(rpc)
    for start_time in (5.0, 3.0, 4.0):
        batcher.add(_TOPIC, body(b"1"), _POLICY, start_time)
    batcher.commit_all()
    assert recorder.sent[0].publish_start_time == 3.0


@pytest.mark.parametrize("fails", [False, True])
def test_credit_comes_back_before_the_futures_are_done(rpc: PublishRpc, fails: bool) -> None:
    """Whoever hears of the outcome can publish again at once; each credit comes back once."""
    flow = PublishFlowControl(message_limit=2, limit_exceeded_behavior=LimitExceededBehavior.ERROR)
    batcher, recorder, _ = make_batcher(rpc, flow=flow)
    control = batcher._flow_control
    made = []
    for number in range(2):
        serialized = body(b"%d" % number)
        control.borrow(len(serialized))
        made.append(batcher.add(_TOPIC, serialized, _POLICY, 0.0))
    free: list[int] = []
    made[0].add_done_callback(lambda _: free.append(control._controller._message_count))
    batcher.commit_all()
    (batch,) = recorder.sent
    if fails:
        batch.fail(Fail(ValueError()))
    else:
        batch.succeed(["1", "2"], 0)
    batch.fail(Fail(ValueError("a second outcome finds nothing left")))
    assert free == [0]
    assert control._controller._total_bytes == 0
    assert batcher.undecided() == []
    assert isinstance(made[0].exception(), ValueError) is fails


def test_an_error_on_the_way_out_ends_the_batch(
    rpc: PublishRpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: what cannot be sent fails, and the next batch is sent all the same."""
    batcher, recorder, _ = make_batcher(rpc)
    error = ZeroDivisionError()

    def prepare(serialized: bytes) -> bytes:
        if b"broken" in serialized:
            raise error
        return serialized

    monkeypatch.setattr(rpc, "prepare", prepare)
    first = batcher.add(_TOPIC, body(b"broken"), _POLICY, 0.0)
    batcher.add(_TOPIC, body(b"fine"), policy(Retry()), 0.0)
    batcher.commit_all()
    assert first.exception(timeout=0) is error
    assert len(recorder.sent) == 1
    assert len(batcher.undecided()) == 1


def test_few_objects_a_message(rpc: PublishRpc) -> None:
    """Under way, a message costs the cyclic collector one object; officially it is over ten."""

    def tracked(publish: Any) -> float:
        gc.collect()
        before = len(gc.get_objects())
        made = [publish() for _ in range(1000)]
        gc.collect()
        count = len(gc.get_objects()) - before
        del made
        return count / 1000

    batcher, _, _ = make_batcher(rpc, BatchSettings(max_messages=5000))
    serialized = body(b"x" * 100)
    ours = tracked(lambda: batcher.add(_TOPIC, serialized, _POLICY, 0.0))
    theirs = tracked(futures.Future)  # and that is only the future
    assert ours <= 1.1
    assert theirs >= 4


def test_one_lock_a_message(rpc: PublishRpc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding a message to an open batch acquires the batch lock once, and no other."""
    acquired: list[str] = []

    class Counting:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            acquired.append("batch lock")
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    batcher, _, time = make_batcher(rpc)
    batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    batcher._batch_lock = Counting()  # type: ignore[assignment]
    monkeypatch.setattr(time, "call_at", None)  # the scheduler is left alone
    for _ in range(10):
        batcher.add(_TOPIC, body(b"1"), _POLICY, 0.0)
    assert len(acquired) == 10
