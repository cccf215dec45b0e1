"""From ``publish()`` to the driver, on an event loop: mailboxes, batches, and what is under way."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import logging
import math
import weakref
from typing import Any

from hedged_pubsub._core import log
from hedged_pubsub._core.batching import Limits, Mailbox
from hedged_pubsub._core.events import Fail
from hedged_pubsub._core.flow_control import Permit
from hedged_pubsub._core.recent_topics import MAX_TOPICS
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.call_policy import CallPolicy
from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.aio.rpc import AsyncPublishRpc


class PublishFuture(asyncio.Future[str]):
    """A future of a message id, and the message; see ``batching.Message``."""

    __slots__ = ("body", "permit", "prefix", "start_time", "tracing")

    prefix: bytes
    body: bytes
    start_time: float
    permit: Permit | None
    tracing: Any


class _Tally:
    """How many messages are undecided; known when there is no sender any more to ask."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 0

    def tell_of_loss(self) -> None:
        """Log messages that nobody can send any more."""
        if self.messages:
            log.write(
                logging.WARNING,
                "%d messages were not stored when their event loop ended: use 'async with "
                "AsyncHedgedPublisher() as publisher', or await flush() or close() before",
                self.messages,
            )


class Sender:
    """What one publisher has accepted and not stored yet."""

    def __init__(
        self,
        *,
        hedging: HedgingSettings | None,
        limits: Limits,
        flow_control: FlowControl,
        is_traced: bool,
        usual_policy: CallPolicy,
        rpc: AsyncPublishRpc,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limits = limits
        self._flow_control = flow_control
        self._has_extras = flow_control.counts or is_traced
        self._usual_policy = usual_policy
        self._loop = loop
        self.driver = Driver(hedging, rpc, loop, self._settled, flow_control)
        self._mailboxes: dict[tuple[str, CallPolicy], Mailbox[PublishBatch]] = {}
        # Those that the timer or a flush has to send.
        self._watched: dict[tuple[str, CallPolicy], Mailbox[PublishBatch]] = {}
        self._undecided = self.driver.undecided
        self._waiters: dict[PublishBatch, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Called when the loop, whose timers hold this, is gone, or by the end of the interpreter.
        self._tally = _Tally()
        weakref.finalize(self, self._tally.tell_of_loss)

    def add(self, topic: str, message: PublishFuture, policy: CallPolicy) -> None:
        """Accept a message, and send the batches that this completes."""
        key = topic, policy
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            open_batch = functools.partial(self._open, topic, policy)
            mailbox = self._mailboxes[key] = Mailbox(topic, self._limits, open_batch)
        mailbox.queue.append(message)
        self._tally.messages += 1
        if len(mailbox.queue) < mailbox.wanted and len(message.body) <= mailbox.bound:
            return
        full = collections.deque(itertools.chain.from_iterable(mailbox.fill()))
        if (
            mailbox.batch is not None
            and self._timer is None
            and self._limits.max_latency < math.inf
        ):
            self._timer = self._loop.call_later(self._limits.max_latency, self.send_all)
        if mailbox.batch is not None or self._timer is not None:
            self._watched[key] = mailbox
            mailbox.announce()
        else:
            self._put_away(key, mailbox)
        self._send(full)

    def send_all(self) -> None:
        """Send what is open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send(self._take_all())

    def end(self) -> None:
        """Send what is open, and let go of the connections once all is decided. Returns at once.

        For a publisher that was dropped, on whatever thread that happens: it may be in a garbage
        collection.
        """
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed, and nothing more is sent
            self.driver.rpc.release()

    def _end(self) -> None:
        self.send_all()
        self._mailboxes.clear()
        self.driver.when_decided(self.driver.rpc.release)

    def _take_all(self) -> collections.deque[PublishBatch]:
        batches: collections.deque[PublishBatch] = collections.deque()
        watched, self._watched = self._watched, {}
        for key, mailbox in watched.items():
            batches.extend(itertools.chain.from_iterable(mailbox.fill()))
            if (batch := mailbox.close()) is not None:
                batches.append(batch)
            self._put_away(key, mailbox)
        return batches

    async def wait(self, timeout: float | None) -> tuple[int, int]:
        """Wait ``timeout`` seconds at most until all batches that there are now are decided.

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

    def abandon(self, error: BaseException) -> None:
        """End all that is undecided with an error."""
        self._take_all()
        self.driver.abandon(error)
        # What else there is never got as far as the driver.
        for batch in tuple(self._undecided):
            self.driver.fail(batch, Fail(error))

    def _open(self, topic: str, policy: CallPolicy) -> PublishBatch:
        batch = PublishBatch(topic, policy, has_extras=self._has_extras)
        self._undecided.add(batch)
        return batch

    def _put_away(self, key: tuple[str, CallPolicy], mailbox: Mailbox[PublishBatch]) -> None:
        """Wait for the next message; forget a mailbox that may be the only one of its policy.

        Nor does a new topic for each message make this grow.
        """
        mailbox.wanted = 1
        if key[1] is not self._usual_policy:
            self._mailboxes.pop(key, None)
        elif len(self._mailboxes) > MAX_TOPICS:
            for other in list(self._mailboxes)[: MAX_TOPICS // 2]:
                oldest = self._mailboxes.pop(other)
                if not oldest.is_empty:
                    self._mailboxes[other] = oldest  # as the newest

    def _send(self, batches: collections.deque[PublishBatch]) -> None:
        # This may run a user's code, which may publish: all is in order before each step.
        try:
            while batches:
                self.driver.submit(batches.popleft())
        finally:
            if batches:  # a signal handler's exception
                self._loop.call_soon(self._send, batches)

    def _settled(self, batch: PublishBatch) -> None:
        """Release the messages of a decided batch, and stop counting it among the undecided."""
        self._undecided.discard(batch)
        self._tally.messages -= batch.count
        waiter = self._waiters.pop(batch, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if batch.permit is not None:
            self._flow_control.release(batch.permit)
