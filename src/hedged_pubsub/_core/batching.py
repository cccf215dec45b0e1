"""Batches and how they fill.

The same messages make the same batches as in the official client. A message is serialized, and
measured, once. It waits in a mailbox, whose owner moves messages into batches by the hundred: that
costs a message less than a lock would.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from hedged_pubsub._core.flow_control import Permit, merge
from hedged_pubsub._core.wire import topic_field

if TYPE_CHECKING:
    from hedged_pubsub._core.runs import Run

MAX_REQUEST_SIZE: Final = 10_000_000
"""Bytes that the service accepts in one request, as the official client has it."""

_MAX_PREFIX: Final = 12
"""Bytes at most that stand before a message's data in a request."""


class Message(Protocol):
    """A message, which is its future as well.

    Attributes:
        prefix: What stands before the message in a request; ``None`` once it is in a batch.
        body: The message, serialized, or its data where that is all; likewise.
        start_time: When ``publish()`` was called, in wall seconds.
        permit: Its place in flow control; set only in publishers that count or trace.
        tracing: Its spans; likewise.
    """

    prefix: Any
    body: Any
    start_time: float
    permit: Permit | None
    tracing: Any


class Limits:
    """When a batch is full: in bytes, seconds, and messages, of which one less fills it."""

    __slots__ = ("max_latency", "max_messages", "max_size")

    def __init__(self, max_bytes: int, max_latency: float, max_messages: int) -> None:
        self.max_size = min(max_bytes, MAX_REQUEST_SIZE)
        self.max_latency = max_latency
        self.max_messages = max_messages


class Batch:
    """Messages of one topic and one call policy.

    Attributes:
        topic: The topic's full name.
        total_timeout: Seconds from the commit after which nothing of the batch is sent any more.
        messages: The messages that have no outcome yet.
        count: How many there are, or were.
        size: What the request takes on the wire, in bytes.
        largest: Bytes of its largest message.
        publish_start_time: When ``publish()`` was called for the oldest message, in wall seconds.
        permit: That of all its messages; ``None`` where flow control does not count.
        run: Where it stands; set when it is committed.
    """

    __slots__ = (
        "_has_extras",
        "_parts",
        "count",
        "largest",
        "messages",
        "permit",
        "publish_start_time",
        "run",
        "size",
        "topic",
        "total_timeout",
    )

    run: Run

    def __init__(self, topic: str, total_timeout: float, *, has_extras: bool) -> None:
        self.topic = topic
        self.total_timeout = total_timeout
        self._has_extras = has_extras
        # The request on the wire, piece by piece. Joined, it is what protobuf would make of it.
        self._parts: list[bytes] = [topic_field(topic)]
        self.messages: list[Any] = []
        self.count = 0
        self.size = len(self._parts[0])
        self.largest = 0
        self.publish_start_time = math.inf
        self.permit: Permit | None = None

    def add(self, messages: list[Any], max_size: float = math.inf) -> int:
        """Take in one or more messages, as far as the request stays within ``max_size`` bytes.

        Returns:
            How many are taken in; those behind them do not fit.
        """
        # By the hundred, in few steps: this is what a message costs beside ``publish()``.
        prefixes = [message.prefix for message in messages]
        bodies = [message.body for message in messages]
        lengths = list(map(len, bodies))
        size = sum(lengths) + sum(map(len, prefixes))
        if self.size + size > max_size:
            sizes = map(operator.add, map(len, prefixes), lengths)
            taken = bisect.bisect(list(itertools.accumulate(sizes)), max_size - self.size)
            return self.add(messages[:taken]) if taken else 0
        self.size += size
        self.count += len(messages)
        self.largest = max(self.largest, max(lengths))
        oldest = min([message.start_time for message in messages])
        self.publish_start_time = min(self.publish_start_time, oldest)
        self._parts += itertools.chain.from_iterable(zip(prefixes, bodies, strict=True))
        self.messages += messages
        for message in messages:
            # The user may keep the future; nobody needs the message in it any more.
            message.prefix = message.body = None
        if self._has_extras:
            for message in messages:
                self.add_extras(message)
        return len(messages)

    def add_extras(self, message: Message) -> None:
        """Take over what a message has beside its content."""
        if self.permit is None:
            self.permit = message.permit
        elif message.permit is not None:
            merge(message.permit, self.permit)

    def serialize(self) -> bytes:
        """Return the request, and let go of what the messages say. Once."""
        request = b"".join(self._parts)
        del self._parts
        return request


B = TypeVar("B", bound=Batch)


class Mailbox(Generic[B]):
    """The messages of one topic and one call policy that are in no batch yet, and the open batch.

    Attributes:
        queue: The messages.
        batch: The open batch.
        wanted: How many messages there are to be before they are to be moved.
        bound: Bytes of data; with a message of more, they are to be moved whatever ``wanted`` is.
    """

    __slots__ = ("_limits", "_open_batch", "_topic", "batch", "bound", "queue", "wanted")

    def __init__(self, topic: str, limits: Limits, open_batch: Callable[[], B]) -> None:
        self._topic = topic
        self._limits = limits
        self._open_batch = open_batch
        self.queue: collections.deque[Any] = collections.deque()
        self.clear()

    def clear(self) -> None:
        """Have no message and no batch."""
        self.queue.clear()
        self.batch: B | None = None
        self.wanted = 1
        self.bound = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a message nor a batch."""
        return self.batch is None and not self.queue

    def fill(self) -> Iterator[list[B]]:
        """Move what is in the queue now into batches, and yield those that are full.

        Not what comes meanwhile, which may be without end. Whoever calls this may stop after each
        step, and go on with another call.
        """
        queue = self.queue
        max_size, max_messages = self._limits.max_size, self._limits.max_messages
        left = len(queue)
        while left:
            batch = self.batch
            if batch is not None:
                room = max_messages - 1 - batch.count
                messages = [queue.popleft() for _ in range(min(room, left))]
                taken = batch.add(messages, max_size) if messages else 0
                queue.extendleft(reversed(messages[taken:]))
                left -= taken
                if not left:
                    return
            # The next one opens a batch. It may fill that by itself, as officially.
            full, batch = batch, self._open_batch()
            batch.add([queue.popleft()])
            left -= 1
            is_full = batch.size > max_size or max_messages <= 1
            self.batch = None if is_full else batch
            ready = [] if full is None else [full]
            if is_full:
                ready.append(batch)
            if ready:
                yield ready

    def announce(self) -> None:
        """Work out when messages are to be moved again: those that may fill the batch."""
        batch = self.batch
        if batch is None:
            count, size = 0, len(topic_field(self._topic))
        else:
            count, size, self.bound = batch.count, batch.size, batch.largest
        # All as large as the largest so far: exact where all are of a size, else a bit early.
        by_size = (self._limits.max_size - size) // (self.bound + _MAX_PREFIX) + 1
        self.wanted = max(1, min(self._limits.max_messages - count, by_size))

    def close(self) -> B | None:
        """Take out the open batch, to be sent as it is."""
        batch, self.batch = self.batch, None
        return batch
