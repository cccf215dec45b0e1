"""Batching: the same messages make the same batches as in the official client."""

from __future__ import annotations

import functools
import gc
import math
from typing import Any

import grpc
import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher._batch import thread
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from hypothesis import given, settings
from hypothesis import strategies as st

from hedged_pubsub._core.batching import MAX_REQUEST_SIZE, Batch, Limits, Mailbox
from hedged_pubsub._core.flow_control import ADMITTED, RELEASED, FlowControl, Permit
from hedged_pubsub._core.wire import topic_field, varint
from hedged_pubsub._google.messages import check_size, encode_message

from .fakes import message

TOPIC = "projects/test/topics/orders"

Content = tuple[bytes, dict[str, str]]


class Publisher:
    """Puts messages into a mailbox, and moves them into batches when it is to."""

    def __init__(self, batch_settings: BatchSettings) -> None:
        open_batch = functools.partial(Batch, TOPIC, math.inf, has_extras=False)
        self.mailbox = Mailbox(TOPIC, Limits(*batch_settings), open_batch)
        self.full: list[Batch] = []
        self.moves = 0

    def publish(self, *messages: Any) -> None:
        """Put messages into the mailbox, all of them before it is asked to be emptied."""
        mailbox = self.mailbox
        due = False
        for one in messages:
            mailbox.queue.append(one)
            due |= len(mailbox.queue) >= mailbox.wanted or len(one.body) > mailbox.bound
        if due:
            self.moves += 1
            for ready in mailbox.fill():
                self.full += ready
            assert not mailbox.queue
            mailbox.announce()

    def flush(self) -> list[Batch]:
        """Return all batches, the open one too."""
        for ready in self.mailbox.fill():
            self.full += ready
        last = self.mailbox.close()
        self.full += [] if last is None else [last]
        return self.full


def request(batch: Batch) -> Any:
    """Return the request that a batch would send."""
    serialized = batch.serialize()
    assert batch.size == len(serialized), "it was measured right"
    return types.PublishRequest.deserialize(serialized)


def official_batches(batch_settings: BatchSettings, contents: list[Content]) -> list[Any]:
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
    for data, attributes in contents:
        client.publish(TOPIC, data, **attributes)
    client.stop()
    client.transport.close()
    return requests


@settings(max_examples=80, deadline=None)
@given(
    max_messages=st.integers(1, 6),
    max_bytes=st.integers(0, 400),
    contents=st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=200),
            st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=5), max_size=2),
        ),
        max_size=20,
    ),
    bulk=st.integers(1, 20),
)
def test_the_batches_are_the_official_ones(
    max_messages: int, max_bytes: int, contents: list[Content], bulk: int
) -> None:
    """Same messages and settings: the same requests in the same order, one by one or in bulk."""
    batch_settings = BatchSettings(max_bytes=max_bytes, max_messages=max_messages)
    official = official_batches(batch_settings, contents)
    publisher = Publisher(batch_settings)
    made = [message(*content) for content in contents]
    for first in range(0, len(made), bulk):
        publisher.publish(*made[first : first + bulk])
    if bulk == 1:
        # What fills a batch led to a move, however the mailbox was told to count.
        assert len(official) - len(publisher.full) <= 1
    batches = publisher.flush()
    assert [batch.messages for batch in batches] == [
        made[sum(b.count for b in batches[:n]) :][: batch.count] for n, batch in enumerate(batches)
    ]
    assert [request(batch) for batch in batches] == official


def test_what_comes_while_it_is_moved_stays_for_the_next_move() -> None:
    """Callers who never stop keep nobody busy for ever."""
    publisher = Publisher(BatchSettings(max_messages=3))
    mailbox = publisher.mailbox
    mailbox.queue.extend(message(b"x") for _ in range(4))
    for _ in mailbox.fill():
        mailbox.queue.append(message(b"late"))
    assert len(mailbox.queue) == 1


@given(data=st.binary(max_size=20_000), attributes=st.dictionaries(st.text(), st.text()))
def test_a_message_is_what_protobuf_makes_of_it(data: bytes, attributes: dict[str, str]) -> None:
    """Written by hand or not, it is read back as it was, and is the bytes that protobuf writes."""
    prefix, body, size = encode_message(data, dict(attributes))
    (sent,) = types.PublishRequest.deserialize(prefix + body).messages
    assert (sent.data, dict(sent.attributes)) == (data, attributes)
    assert size == types.PubsubMessage.pb(sent).ByteSize()
    if len(attributes) < 2:  # a map has no order on the wire
        assert prefix + body == types.PublishRequest.serialize(
            types.PublishRequest(messages=[{"data": data, "attributes": attributes}])
        )


def test_what_does_not_fit_keeps_its_order() -> None:
    """Four messages come at once, of which one fits beside that which opened the batch."""
    publisher = Publisher(BatchSettings(max_bytes=len(topic_field(TOPIC)) + 250))
    publisher.publish(*(message(b"%d" % number * 100) for number in range(6)))
    batches = [request(batch).messages for batch in publisher.flush()]
    assert [[one.data[:1] for one in messages] for messages in batches] == [
        [b"0", b"1"],
        [b"2", b"3"],
        [b"4", b"5"],
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (0x7F, "7f"),
        (0x80, "80 01"),
        (0x3FFF, "ff 7f"),
        (0x4000, "80 80 01"),
        (0x1FFFFF, "ff ff 7f"),
        (0x200000, "80 80 80 01"),
    ],
)
def test_a_length_is_written_in_as_few_bytes_as_it_needs(value: int, written: str) -> None:
    """Seven bits in each, the lowest first, and the highest bit where another one follows."""
    assert varint(value) == bytes.fromhex(written)


@pytest.mark.parametrize("topic", [TOPIC, "", "projects/test/topics/" + "x" * 200])
def test_the_largest_message_that_the_service_takes(topic: str) -> None:
    """One byte more and it is refused, as officially, however large a batch may be."""
    prefix, body, _ = encode_message(b"x" * (MAX_REQUEST_SIZE - 300), {})
    spare = MAX_REQUEST_SIZE - len(prefix + body)
    size = len(prefix + body) + spare - len(types.PublishRequest.serialize({"topic": topic}))
    check_size(topic, size)
    with pytest.raises(MessageTooLargeError):
        check_size(topic, size + 1)
    assert Limits(2 * MAX_REQUEST_SIZE, 0.01, 100).max_size == MAX_REQUEST_SIZE
    limits = Limits(100, 0.01, 50)
    assert (limits.max_size, limits.max_latency, limits.max_messages) == (100, 0.01, 50)


def test_a_topic_that_is_no_text() -> None:
    """It is named at the first message, and not when a batch is sent."""
    with pytest.raises(TypeError, match="full name of a topic"):
        Batch(7, 1.0, has_extras=False)  # type: ignore[arg-type]


def test_a_batch_lets_go_of_what_the_messages_say() -> None:
    """The user may keep the futures; the request is made once, and then needed by nobody else."""
    made = [message(b"1", start=5.0), message(b"22", start=3.0), message(b"3", start=4.0)]
    batch = Batch(TOPIC, 60.0, has_extras=False)
    assert batch.add(made) == 3
    assert {(one.prefix, one.body) for one in made} == {(None, None)}
    assert (batch.count, batch.largest, batch.publish_start_time) == (3, 2, 3.0)
    assert [one.data for one in request(batch).messages] == [b"1", b"22", b"3"]
    with pytest.raises(AttributeError):
        batch.serialize()


def test_the_permits_of_a_batch_are_one() -> None:
    """They are released at once, and some messages have none: it was released, or never counted."""
    limits = FlowControl(10, 1000)
    made = [message(b"x") for _ in range(4)]
    for one in made[1:]:
        one.permit = Permit(5)
        assert limits.admit(one.permit)
    batch = Batch(TOPIC, 60.0, has_extras=True)
    batch.add(made)
    assert batch.permit is made[1].permit
    assert [one.permit.state for one in made[1:]] == [ADMITTED, RELEASED, RELEASED]
    assert (batch.permit.messages, batch.permit.size) == (3, 15)
    limits.release(batch.permit)
    assert (limits.messages, limits.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("batch_settings", "batches", "moves"),
    [
        (BatchSettings(max_messages=100), 9, 12),
        (BatchSettings(max_messages=10_000, max_bytes=10_000), 10, 22),
    ],
    ids=["by number", "by size"],
)
def test_messages_are_moved_in_bulk(
    batch_settings: BatchSettings, batches: int, moves: int
) -> None:
    """Of one size: with the first one, and with each that fills a batch or may do so."""
    publisher = Publisher(batch_settings)
    for _ in range(980):
        publisher.publish(message(b"x" * 100))
    assert len(publisher.full) == batches
    assert publisher.moves <= moves


def test_a_mailbox_that_is_cleared_is_as_new() -> None:
    """In a forked child: there is no message, no batch, and the first message is to be moved."""
    publisher = Publisher(BatchSettings())
    publisher.publish(message(b"x"))
    publisher.mailbox.queue.append(message(b"y"))
    publisher.mailbox.clear()
    assert (len(publisher.mailbox.queue), publisher.mailbox.close()) == (0, None)
    assert (publisher.mailbox.wanted, publisher.mailbox.bound) == (1, 0)
    publisher.publish(message(b""))
    assert publisher.moves == 2
    assert publisher.mailbox.bound == 0
    assert [one.data for one in request(publisher.flush()[0]).messages] == [b""]


HEAD = len(topic_field(TOPIC))


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "full"),
    [(1, 1000, 1), (2, 1000, 0), (9, HEAD + 14, 0), (9, HEAD + 13, 1)],
)
def test_a_message_may_fill_a_batch_by_itself(max_messages: int, max_bytes: int, full: int) -> None:
    """It is sent at once then, and does not wait for another one: here of 14 bytes on the wire."""
    publisher = Publisher(BatchSettings(max_messages=max_messages, max_bytes=max_bytes))
    publisher.publish(message(b"x" * 10))
    assert len(publisher.full) == full


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "wanted"),
    [(5, 10_000, 5), (100, HEAD + 36, 4), (100, HEAD + 35, 3), (0, 10_000, 1), (100, 0, 1)],
)
def test_without_a_batch_as_many_are_wanted_as_may_fill_one(
    max_messages: int, max_bytes: int, wanted: int
) -> None:
    """While a timer runs that sends what there is: the first few need not be moved at once."""
    mailbox = Publisher(BatchSettings(max_messages=max_messages, max_bytes=max_bytes)).mailbox
    mailbox.announce()
    assert mailbox.wanted == wanted


def test_few_objects_a_message() -> None:
    """Under way, a message costs the cyclic collector one object; officially it is over ten."""

    def tracked(publish: Any) -> float:
        gc.collect()
        before = len(gc.get_objects())
        made = [publish() for _ in range(1000)]
        gc.collect()
        count = len(gc.get_objects()) - before
        del made
        return count / 1000

    publisher = Publisher(BatchSettings(max_messages=5000))
    assert tracked(lambda: publisher.publish(message(b"x" * 100))) <= 1.1
    assert tracked(futures.Future) >= 4  # and that is only the future
