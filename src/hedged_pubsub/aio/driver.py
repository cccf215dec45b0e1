"""Carries out what the attempt engines of one publisher ask for, on an event loop.

Everything happens on the loop's thread, so there is no lock: an event is handed to its engine and
the commands are carried out before anything else runs.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, Protocol

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
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats, TopicState, snapshot

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

    async def send(self, attempt: int, timeout: float | None) -> object:
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


class _Run:
    """A batch on its way: its engine and, held strongly, a task for each attempt."""

    __slots__ = ("batch", "engine", "sent", "tasks", "topic", "wakeup", "wakeup_at")

    def __init__(self, batch: Batch, engine: AttemptEngine, topic: TopicState) -> None:
        self.batch = batch
        self.engine = engine
        self.topic = topic
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.sent: set[int] = set()
        self.wakeup: asyncio.TimerHandle | None = None
        self.wakeup_at: float | None = None


class Driver:
    """Drives the batches of one publisher on an event loop.

    Args:
        hedging: When to hedge, and the budget; ``None`` for retries only.
        loop: The event loop.
    """

    def __init__(self, hedging: HedgingSettings | None, loop: asyncio.AbstractEventLoop) -> None:
        self._hedge_delay = None if hedging is None else hedging.hedge_delay
        self._hedging = hedging or HedgingSettings()
        self._loop = loop
        self._topics: dict[str, TopicState] = {}
        self._runs: set[_Run] = set()

    def submit(self, batch: Batch) -> None:
        """Send a batch. ``succeed`` or ``fail`` of the batch follows, once."""
        topic = self._topics.get(batch.topic)
        if topic is None:
            topic = self._topics[batch.topic] = TopicState(self._hedging)
        topic.batches += 1
        engine = AttemptEngine(
            hedge_delay=self._hedge_delay,
            bucket=topic.bucket,
            total_timeout=batch.total_timeout,
        )
        run = _Run(batch, engine, topic)
        self._runs.add(run)
        self._feed(run, _COMMITTED)

    def stats(self, topic: str | None = None) -> HedgingStats:
        """Return a snapshot of one topic, or of all."""
        if topic is None:
            return snapshot(self._topics.values())
        return snapshot([self._topics[topic]] if topic in self._topics else [])

    def abandon(self, error: BaseException) -> None:
        """End every batch under way with ``error``."""
        for run in tuple(self._runs):
            self._feed(run, Abandoned(error))

    def _feed(self, run: _Run, event: Event, answer: object = None) -> None:
        try:
            commands = self._tell(run, event)
        except Exception as error:  # R8: a defect ends the batch, not the loop
            _LOGGER.exception("a batch cannot go on after %r", event)
            commands = self._tell(run, Abandoned(error))
        for command in commands:
            if isinstance(command, Start):
                self._start(run, command)
            elif isinstance(command, Cancel):
                self._cancel(run, command.attempt)
            elif isinstance(command, Resolve):
                run.batch.succeed(answer, command.attempt)
            elif isinstance(command, Fail):
                run.batch.fail(command)

    def _tell(self, run: _Run, event: Event) -> list[Command]:
        """Hand an event to the engine, and keep all that hangs on it in step."""
        engine = run.engine
        commands = engine.handle(event, self._loop.time())
        run.topic.count(commands)
        next_wakeup = engine.next_wakeup
        if next_wakeup != run.wakeup_at:
            if run.wakeup is not None:
                run.wakeup.cancel()
            run.wakeup_at = next_wakeup
            run.wakeup = (
                None
                if next_wakeup is None
                else self._loop.call_at(next_wakeup, self._feed, run, _WOKE)
            )
        if engine.decided:
            self._runs.discard(run)
        return commands

    def _start(self, run: _Run, command: Start) -> None:
        attempt = command.attempt
        task = self._loop.create_task(self._attempt(run, command))
        # With eager tasks it may have come to its end already.
        if not task.done():
            run.tasks[attempt] = task
            task.add_done_callback(partial(self._forget, run, attempt))

    def _forget(self, run: _Run, attempt: int, task: asyncio.Task[None]) -> None:
        if run.tasks.get(attempt) is task:
            del run.tasks[attempt]

    async def _attempt(self, run: _Run, command: Start) -> None:
        attempt = command.attempt
        run.topic.attempts += 1
        run.topic.hedges_sent += attempt != ORIGINAL
        run.sent.add(attempt)
        try:
            answer = await run.batch.send(attempt, command.timeout)
        except asyncio.CancelledError as cancelled:
            # By us, and then the batch is decided and hears nothing (R7); or the event loop is
            # being closed, and nobody will go on with the batch.
            self._feed(run, Abandoned(cancelled))
            raise
        except Exception as error:  # noqa: BLE001 - R8
            self._feed(run, self._failed(run, attempt, error))
        else:
            self._feed(run, Succeeded(attempt), answer)

    def _failed(self, run: _Run, attempt: int, error: Exception) -> Event:
        if attempt != ORIGINAL:
            return Failed(attempt, error)
        if run.engine.decided:
            return Failed(attempt, error)  # which is not heard, so that nobody need judge it
        try:
            return run.batch.judge(error)
        except Exception as defect:  # noqa: BLE001 - R8: the predicate or on_error raised
            return Abandoned(defect)

    def _cancel(self, run: _Run, attempt: int) -> None:
        task = run.tasks.pop(attempt, None)
        if task is not None:
            # A task that has not begun has sent nothing.
            run.topic.attempts_cancelled += attempt in run.sent
            task.cancel()
