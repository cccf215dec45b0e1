"""Carries out, on an event loop, what is to be done about the batches of one publisher.

Everything happens on the loop's thread, so there is no lock: an event is taken in and the orders
are carried out before anything else runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from google.api_core import exceptions

from hedged_pubsub._core import hedge_log
from hedged_pubsub._core.connections import Connection
from hedged_pubsub._core.events import ORIGINAL, Abandoned, Call, Event, Fail, Succeeded
from hedged_pubsub._core.runs import Runs, carry_out
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.metrics import METRICS
from hedged_pubsub._google.rpc import in_flight_on, no_answer
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.aio.rpc import AsyncPublishRpc


class Driver:
    """The hands of one publisher on an event loop; without hedging, of retries only.

    ``on_settled`` is told of each batch that is decided, before its futures are.

    Attributes:
        rpc: Sends requests.
        undecided: The batches that have messages without an outcome; the sender's.
    """

    def __init__(
        self,
        hedging: HedgingSettings | None,
        rpc: AsyncPublishRpc,
        loop: asyncio.AbstractEventLoop,
        on_settled: Callable[[PublishBatch], object],
        flow_control: FlowControl | None = None,
    ) -> None:
        self.undecided: set[PublishBatch] = set()
        self._flow_control = flow_control
        self.rpc = rpc
        self._loop = loop
        self._on_settled = on_settled
        self._runs: Runs[PublishBatch] = Runs(
            hedging or HedgingSettings(), hedged=hedging is not None
        )
        self._runs.durations = METRICS.watch(self, self._runs.topics, self)
        self.stats = self._runs.stats
        rpc.on_dead = self._give_up_on
        self.record = self._runs.record
        # Held until they end, those of cancelled attempts too: the loop holds no task strongly.
        self._tasks: set[asyncio.Task[list[str]]] = set()
        self._when_decided: Callable[[], object] | None = None

    @property
    def blocked(self) -> int:
        """How many calls of ``publish()`` wait for flow control."""
        return 0 if self._flow_control is None else self._flow_control.waiting

    def submit(self, batch: PublishBatch) -> None:
        """Send a batch. Its messages get their outcome, once."""
        try:
            self.rpc.commit(batch)
            carry_out(self._runs.commit(batch, self._loop.time()), batch, self)
        except BaseException as error:  # R8: every accepted publish ends
            carry_out(self._runs.end(batch, error, self._loop.time()), batch, self)
            if not isinstance(error, Exception):
                raise

    def abandon(self, error: BaseException) -> None:
        """End every batch under way with ``error``."""
        # One by one: what the first one's spans raise must leave the others as they were.
        for batch in list(self._runs.batches.values()):
            self._feed(batch, Abandoned(error))

    def when_decided(self, function: Callable[[], object]) -> None:
        """Call something, at least once, when no message is undecided; no more are to come."""
        self._when_decided = function
        if not self.undecided:
            function()

    async def wait_for_tasks(self, timeout: float) -> None:
        """Wait so many seconds at most for attempts that were cancelled to end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    def _feed(self, batch: PublishBatch, event: Event, answer: object = None) -> None:
        carry_out(self._runs.handle(batch, event, self._loop.time()), batch, self, answer)

    # --- Orders.

    def start(self, batch: PublishBatch, attempt: int, timeout: float | None) -> None:
        """Send an attempt."""
        is_logged = attempt != ORIGINAL and hedge_log.is_wanted()
        if not self._runs.is_wanted(batch, attempt, self._loop.time(), is_logged=is_logged):
            return
        sending = self.rpc.call(batch, attempt, timeout)
        # In an empty context: who happens to publish the last message of a batch, within a span
        # perhaps, has no part in the request.
        try:
            task: asyncio.Task[list[str]]
            task = contextvars.Context().run(self._loop.create_task, sending)
        except BaseException as error:  # of a user's task factory
            sending.close()
            self._feed(batch, Abandoned(error))
            if not isinstance(error, Exception):
                raise
            return
        batch.keep_call(attempt, task)
        self._tasks.add(task)
        # Called by the loop, never from in here, though an eager task may have ended already.
        task.add_done_callback(partial(self._ended, batch, attempt), context=contextvars.Context())

    def cancel(self, batch: PublishBatch, attempt: int) -> None:
        """Cancel the request of an attempt."""
        # One that has ended is gone, or there is nothing left to cancel, in the same turn.
        task = batch.take_call(attempt)
        if task is not None:
            batch.run.topic.attempts_cancelled += task.cancel()

    def wake_at(self, batch: PublishBatch, when: float) -> None:
        """Set the batch's timer."""
        if batch.timer is not None:
            batch.timer.cancel()
        batch.timer = self._loop.call_at(
            when, self._wake, batch, when, context=contextvars.Context()
        )

    def resend(self, number: int) -> None:
        """Send the original of another batch soon."""
        self._loop.call_soon(self._send_again, number, context=contextvars.Context())

    def resolve(self, batch: PublishBatch, answer: Any, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        try:
            self.rpc.stored(batch, attempt)
            batch.end_spans(answer, None, attempt)
        finally:
            for future, message_id in zip(self._settle(batch), answer, strict=False):
                # A future is cancelled with the task that waits for it; its message is stored.
                if not future.done():
                    future.set_result(message_id)

    def fail(self, batch: PublishBatch, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        error = batch.error_of(failure)
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            # Of a user's predicate, or of a signal handler. No future takes a StopIteration, and
            # others would end whoever awaits the message as if it had happened there.
            cause, error = error, RuntimeError(f"publishing ended with {type(error).__name__}")
            error.__cause__ = cause
        try:
            if batch.messages:
                batch.end_spans(None, error)
        finally:
            undecided = [future for future in self._settle(batch) if not future.done()]
            for future in undecided:
                future.set_exception(error)
            # asyncio reports an error that nobody asked for. Once a batch is enough: whoever has
            # seen the error of its first message need not ask for the same of the others.
            for future in undecided[1:]:
                future.exception()

    def call(self, order: Call) -> None:
        """Call something here."""
        order.function()

    def _settle(self, batch: PublishBatch) -> list[asyncio.Future[str]]:
        """Take out the futures of a batch; none if this was called before."""
        if batch.timer is not None:
            batch.timer.cancel()
        # Or an error's traceback, which leads here, would keep them alive.
        futures, batch.messages = batch.messages, []
        if futures:
            self._on_settled(batch)
            if self._when_decided is not None and not self.undecided:
                self._loop.call_soon(self._when_decided)
        return futures

    # --- Events.

    def _wake(self, batch: PublishBatch, when: float) -> None:
        # A loop may call early, by the resolution of its clock: uvloop's counts milliseconds.
        now = max(when, self._loop.time())
        carry_out(
            self._runs.handle(batch, self.rpc.woke(batch, self._runs.batches), now), batch, self
        )

    def _send_again(self, number: int) -> None:
        if (batch := self._runs.batches.get(number)) is not None:
            carry_out(self._runs.resend(batch), batch, self)

    def _give_up_on(self, dead: Connection[Any]) -> None:
        # One by one: what the spans of one raise must not keep the others.
        for batch in in_flight_on(dead, self._runs.batches):
            self._loop.call_soon(self._give_up, batch)

    def _give_up(self, batch: PublishBatch) -> None:
        task = batch.take_call(ORIGINAL)
        if task is not None:
            task.cancel()
            self._feed(batch, self.rpc.judge(batch, no_answer()))

    def _ended(self, batch: PublishBatch, attempt: int, task: asyncio.Task[list[str]]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if batch.run.decided or not batch.is_under_way(attempt, task):
            return  # R7: most likely cancelled by us; no predicate shall see it
        batch.take_call(attempt)
        event: Event
        if task.cancelled():
            # Not by us. To the user it is an error: a ``CancelledError`` would tell a task that
            # awaits the message that itself was cancelled.
            event = Abandoned(_cancelled_by_others())
        elif error is None:
            self._feed(batch, Succeeded(attempt), task.result())
            return
        elif attempt == ORIGINAL:
            event = self.rpc.judge(batch, error)
        else:
            event = batch.hedge_failed(attempt, error)
        self._feed(batch, event)
        if isinstance(event, Abandoned) and not isinstance(event.error, Exception):
            raise event.error  # a predicate's SystemExit, say


def _cancelled_by_others() -> Exception:
    error: Exception = exceptions.Cancelled(
        "the publish request was cancelled in this process: its channel was closed, or all tasks "
        "of the event loop were cancelled"
    )
    return error
