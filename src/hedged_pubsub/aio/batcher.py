"""Collects messages into batches and commits them when they are full or have waited enough."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref

from hedged_pubsub._batch import BatchLimits, check_size, message_prefix
from hedged_pubsub._tracing import MessageTracing
from hedged_pubsub.aio.batch import Batch
from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.aio.rpc import AsyncPublishRpc
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import Fail

_LOGGER = logging.getLogger(__name__)


class _Tally:
    """How many messages are undecided; known when there is no batcher any more to ask."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 0

    def tell_of_loss(self) -> None:
        """Log messages that nobody can send any more."""
        if self.messages:
            _LOGGER.warning(
                "%d messages were not stored when their event loop ended: use 'async with "
                "AsyncHedgedPublisher() as publisher', or await flush() or close() before",
                self.messages,
            )


class Batcher:
    """The open batches of one publisher.

    Args:
        limits: When a batch is full, and how long it waits.
        flow_control: Gets back the credit of each message when its batch is decided.
        rpc: How batches are sent.
        driver: Takes over committed batches.
        loop: The event loop.
    """

    def __init__(
        self,
        *,
        limits: BatchLimits,
        flow_control: FlowControl,
        rpc: AsyncPublishRpc,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limits = limits
        self._flow_control = flow_control
        self._rpc = rpc
        self._driver = driver
        self._loop = loop
        self._open: dict[tuple[str, CallPolicy], Batch] = {}
        self._undecided: set[Batch] = set()
        self._waiters: dict[Batch, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Called when the loop, whose timers hold this, is gone, or by the end of the interpreter.
        self._tally = _Tally()
        weakref.finalize(self, self._tally.tell_of_loss)

    def add(
        self,
        topic: str,
        body: bytes,
        policy: CallPolicy,
        publish_start_time: float,
        tracing: MessageTracing | None = None,
    ) -> asyncio.Future[str]:
        """Add a message to a batch, and send the batches that this completes.

        Args:
            topic: The topic's full name.
            body: The serialized message.
            policy: Messages of different policies never share a batch.
            publish_start_time: When ``publish()`` was called, in wall seconds.
            tracing: The message's spans.

        Raises:
            MessageTooLargeError: If the service would not accept the message, not even alone.
        """
        prefix = message_prefix(body)
        size = len(prefix) + len(body)
        key = (topic, policy)
        batch = self._open.get(key)
        if batch is None or self._limits.is_full(batch, size):
            check_size(topic, size)
            if batch is not None:
                self._send(batch)  # without this message, which opens the next one
            batch = Batch(topic, policy, self._rpc, self._loop, self)
            self._open[key] = batch
            self._undecided.add(batch)
        is_full = self._limits.is_full(batch, size)
        future = batch.add(prefix, body, publish_start_time)
        self._tally.messages += 1
        if self._flow_control.counts:
            batch.lend(len(body))
        if tracing is not None:
            batch.trace(tracing)
        if is_full:
            del self._open[key]
            self._send(batch)
        elif self._timer is None and self._limits.max_latency < math.inf:
            self._timer = self._loop.call_later(self._limits.max_latency, self.commit_all)
        return future

    def commit_all(self) -> None:
        """Commit and send what is open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches = list(self._open.values())
        self._open.clear()
        for batch in batches:
            self._send(batch)

    async def wait(self, timeout: float | None) -> tuple[int, int]:
        """Wait until all batches that there are now are decided.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes.

        Returns:
            The number of messages waited for, and of those that are undecided all the same.
        """
        batches = list(self._undecided)
        # Not for their futures: one whose task was cancelled is done, and its message under way.
        waiters = [self._waiters.setdefault(b, self._loop.create_future()) for b in batches]
        if waiters:
            await asyncio.wait(waiters, timeout=timeout)
        undecided = [batch for batch in batches if batch in self._undecided]
        return sum(b.count for b in batches), sum(b.count for b in undecided)

    def _send(self, batch: Batch) -> None:
        try:
            batch.commit()
        except Exception as error:  # noqa: BLE001 - R8: every accepted publish ends
            batch.fail(Fail(error))
        else:
            self._driver.submit(batch)

    def settled(self, batch: Batch) -> None:
        """Give back the credit of a decided batch, and stop counting it among the undecided."""
        self._undecided.discard(batch)
        self._tally.messages -= batch.count
        waiter = self._waiters.pop(batch, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        for size in batch.credit or ():
            self._flow_control.give_back(size)
        batch.credit = None
