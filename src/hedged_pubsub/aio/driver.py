"""Carries out what the attempt engines of one publisher ask for, on an event loop.

Everything happens on the loop's thread, so there is no lock: an event is handed to its engine and
the commands are carried out before anything else runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, Protocol

from google.api_core import exceptions

from hedged_pubsub import hedge_log
from hedged_pubsub.engine import AttemptEngine
from hedged_pubsub.events import (
    ORIGINAL,
    Abandoned,
    Cancel,
    Command,
    Committed,
    Event,
    Fail,
    Failed,
    Resolve,
    Start,
    Succeeded,
    Woke,
)
from hedged_pubsub.observability import METRICS
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats, snapshot
from hedged_pubsub.topic_state import Course, TopicState, read

_LOGGER = logging.getLogger(__name__)

_COMMITTED: Final = Committed()
_WOKE: Final = Woke()


class Batch(Protocol):
    """What the driver needs of a committed batch."""

    @property
    def topic(self) -> str:
        """The full name of the topic, which has the token bucket."""

    @property
    def total_timeout(self) -> float:
        """Seconds after which nothing of the batch is sent any more; ``math.inf`` for no limit."""

    def send(self, attempt: int, timeout: float | None) -> Coroutine[Any, Any, object]:
        """Send the batch and return the answer, or raise what the official client would raise.

        A cancellation cancels the RPC.

        Args:
            attempt: 0 for the original, whose timeout is the caller's; else a hedge.
            timeout: Seconds, for a hedge.
        """

    def judge(self, error: BaseException) -> Failed:
        """Ask the retry policy about an error of the original. May run a user's code."""

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures."""

    def fail(self, failure: Fail) -> None:
        """Fail the futures."""


class _Run(Course):
    """A batch on its way: its engine, and a task for each attempt in flight."""

    __slots__ = ("batch", "engine", "tasks", "topic", "wakeup", "wakeup_at")

    def __init__(self, batch: Batch, engine: AttemptEngine, topic: TopicState) -> None:
        super().__init__()
        self.batch = batch
        self.engine = engine
        self.topic = topic
        self.tasks: dict[int, asyncio.Task[object]] = {}
        self.wakeup: asyncio.TimerHandle | None = None
        self.wakeup_at: float | None = None


class Driver:
    """Drives the batches of one publisher on an event loop.

    Args:
        hedging: When to hedge, and the budget; ``None`` for retries only.
        loop: The event loop.
    """

    def __init__(self, hedging: HedgingSettings | None, loop: asyncio.AbstractEventLoop) -> None:
        self._hedged = hedging is not None
        self._hedging = hedging or HedgingSettings()
        self._loop = loop
        self._topics: dict[str, TopicState] = {}
        self._durations = METRICS.watch(self, self._topics)
        self._runs: set[_Run] = set()
        # Held until they end, those of cancelled attempts too: the loop holds no task strongly.
        self._tasks: set[asyncio.Task[object]] = set()

    def submit(self, batch: Batch) -> None:
        """Send a batch. ``succeed`` or ``fail`` of the batch follows, once."""
        topic = self._topics.get(batch.topic)
        if topic is None:
            topic = self._topics[batch.topic] = TopicState(
                batch.topic, self._hedging, hedged=self._hedged, durations=self._durations
            )
        topic.batches += 1
        engine = AttemptEngine(
            hedge_delay=topic.hedge_delay if self._hedged else None,
            bucket=topic.bucket,
            total_timeout=batch.total_timeout,
        )
        run = _Run(batch, engine, topic)
        self._runs.add(run)
        self._feed(run, _COMMITTED)

    def stats(self, topic: str | None = None) -> HedgingStats:
        """Return a snapshot of one topic, or of all."""
        return snapshot(read(self._topics, topic), topic)

    def abandon(self, error: BaseException) -> int:
        """End every batch under way with ``error``, and return how many those were."""
        runs = tuple(self._runs)
        for run in runs:
            self._feed(run, Abandoned(error))
        return len(runs)

    async def wait_for_tasks(self, timeout: float) -> None:
        """Wait for attempts that were cancelled to end.

        Args:
            timeout: Seconds to wait at most.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    def _wake(self, run: _Run, when: float) -> None:
        # A loop may call early, by the resolution of its clock: uvloop's counts milliseconds.
        self._feed(run, _WOKE, now=max(when, self._loop.time()))

    def _feed(
        self, run: _Run, event: Event, answer: object = None, *, now: float | None = None
    ) -> None:
        if now is None:
            now = self._loop.time()
        try:
            commands = self._tell(run, event, now)
        except Exception as error:  # R8: a defect ends the batch, not the loop
            _LOGGER.exception("a batch cannot go on after %r", event)
            commands = self._tell(run, Abandoned(error), now)
        for command in commands:
            if isinstance(command, Start):
                self._start(run, command)
            elif isinstance(command, Cancel):
                self._cancel(run, command.attempt)
            elif isinstance(command, Resolve):
                run.batch.succeed(answer, command.attempt)
            elif isinstance(command, Fail):
                run.batch.fail(command)
        if run.topic.due:
            due, run.topic.due = run.topic.due, []
            for call in due:
                call()

    def _tell(self, run: _Run, event: Event, now: float) -> list[Command]:
        """Hand an event to the engine, and keep all that hangs on it in step."""
        engine = run.engine
        commands = engine.handle(event, now)
        if event is _COMMITTED:
            run.committed_at = now
        else:
            run.topic.count(run, event, commands, engine.original_latency, now)
        next_wakeup = engine.next_wakeup
        if next_wakeup != run.wakeup_at:
            if run.wakeup is not None:
                run.wakeup.cancel()
            run.wakeup_at = next_wakeup
            run.wakeup = (
                None
                if next_wakeup is None
                else self._loop.call_at(
                    next_wakeup, self._wake, run, next_wakeup, context=contextvars.Context()
                )
            )
        if engine.decided:
            self._runs.discard(run)
        return commands

    def _start(self, run: _Run, command: Start) -> None:
        attempt = command.attempt
        run.topic.attempts += 1
        if attempt != ORIGINAL:
            run.topic.hedge_sent(run, attempt, self._loop.time(), logged=hedge_log.is_wanted())
        # In an empty context: who happens to publish the last message of a batch, within a span
        # perhaps, has no part in the request.
        task: asyncio.Task[object] = contextvars.Context().run(
            self._loop.create_task, run.batch.send(attempt, command.timeout)
        )
        run.tasks[attempt] = task
        self._tasks.add(task)
        # Called by the loop, never from in here, though an eager task may have ended already.
        task.add_done_callback(partial(self._ended, run, attempt), context=contextvars.Context())

    def _cancel(self, run: _Run, attempt: int) -> None:
        # One that has ended is gone, or there is nothing left to cancel, in the same turn.
        task = run.tasks.pop(attempt, None)
        if task is not None:
            run.topic.attempts_cancelled += task.cancel()

    def _ended(self, run: _Run, attempt: int, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if run.engine.decided:
            return  # R7: a loser, most likely cancelled by us; no predicate shall see it
        del run.tasks[attempt]
        if task.cancelled():
            # Not by us. To the user it is an error: a ``CancelledError`` would tell a task that
            # awaits the message that itself was cancelled.
            self._feed(run, Abandoned(_cancelled_by_others()))
        elif error is not None:
            self._feed(run, self._failed(run, attempt, error))
        else:
            self._feed(run, Succeeded(attempt), task.result())

    def _failed(self, run: _Run, attempt: int, error: BaseException) -> Event:
        if attempt != ORIGINAL:
            return Failed(attempt, error)
        try:
            return run.batch.judge(error)
        except Exception as defect:  # noqa: BLE001 - R8: the predicate or on_error raised
            return Abandoned(defect)


def _cancelled_by_others() -> Exception:
    error: Exception = exceptions.Cancelled(
        "the publish request was cancelled in this process: its channel was closed, or all tasks "
        "of the event loop were cancelled"
    )
    return error
