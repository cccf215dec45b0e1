"""Carries out what the attempt engines of one publisher ask for.

Who runs where: the original starts on the thread that commits the batch; answers arrive on
gRPC's completion thread, which tells the engine, cancels losers and resolves the futures; wake-ups
arrive on the scheduler's thread, which only tells the engine. Whatever may run a user's code goes
to the workers: predicates of a failed original, resends and hedges (interceptors on the channel),
done-callbacks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from hedged_pubsub import hedge_log
from hedged_pubsub._sync.scheduler import Scheduler, Wakeup
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub.engine import AttemptEngine
from hedged_pubsub.events import (
    ORIGINAL,
    ORIGINAL_SUCCEEDED,
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
from hedged_pubsub.token_bucket import TokenBucket
from hedged_pubsub.topic_state import Course, TopicState, read

_LOGGER = logging.getLogger(__name__)

_COMMITTED: Final = Committed()
_WOKE: Final = Woke()


class Call(Protocol):
    """An RPC under way, as ``grpc`` returns it from ``future()``."""

    def add_done_callback(self, callback: Callable[[Call], None], /) -> None:
        """Call back when the RPC has ended, at once if it has."""


class Batch(Protocol):
    """What the driver needs of a committed batch. ``send`` may be called from any thread."""

    @property
    def topic(self) -> str:
        """The full name of the topic, which has the token bucket."""

    @property
    def total_timeout(self) -> float:
        """Seconds after which nothing of the batch is sent any more; ``math.inf`` for no limit."""

    def send(self, attempt: int, timeout: float | None) -> Call:
        """Start an RPC, without waiting for it.

        Args:
            attempt: 0 for the original, whose timeout is the caller's; else a hedge.
            timeout: Seconds, for a hedge.
        """

    def cancel(self, call: Call) -> None:
        """Cancel an RPC if it has not ended."""

    def outcome(self, call: Call) -> object:
        """Return the answer of an ended RPC, or raise what the official client would raise."""

    def judge(self, error: BaseException) -> Failed:
        """Ask the retry policy about an error of the original. May run a user's code."""

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures, without running a user's code here."""

    def fail(self, failure: Fail) -> None:
        """Fail the futures, without running a user's code here."""


class _Run(Course):
    """A batch on its way: its engine and, held strongly, its calls; guarded by the driver's lock.

    gRPC cancels a call whose last reference is dropped.
    """

    __slots__ = ("batch", "calls", "engine", "topic", "wakeup", "wakeup_at")

    def __init__(self, batch: Batch, engine: AttemptEngine, topic: TopicState) -> None:
        # As in the base class, whose own is one call more for each batch.
        self.committed_at = 0.0
        self.hedging = None
        self.batch = batch
        self.engine = engine
        self.topic = topic
        self.calls: dict[int, Call] = {}
        self.wakeup: Wakeup | None = None
        self.wakeup_at: float | None = None


def _decided_engine() -> AttemptEngine:
    engine = AttemptEngine(hedge_delay=None, bucket=TokenBucket(1, 1), total_timeout=0)
    engine.handle(Abandoned(RuntimeError()), 0)
    return engine


class Driver:
    """Drives the batches of one publisher on threads.

    Args:
        hedging: When to hedge, and the budget.
        scheduler: Calls back when an engine wants to be woken.
        workers: Run what may be a user's code.
        clock: Monotonic seconds, the scheduler's.
    """

    def __init__(
        self,
        hedging: HedgingSettings,
        scheduler: Scheduler,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        self._hedging = hedging
        self._scheduler = scheduler
        self._workers = workers
        self._clock = clock
        # Bound once: for each batch the scheduler and gRPC hold one of each.
        self._on_wake = self._wake
        self._on_end = self._ended
        # Guards every engine, bucket and counter, and which runs there are. Nothing is called
        # while it is held but engines and the scheduler.
        self._engine_lock = threading.Lock()
        self._topics: dict[str, TopicState] = {}
        self._runs: set[_Run] = set()
        self._durations = METRICS.watch(self, self._topics)

    def submit(self, batch: Batch) -> None:
        """Send a batch. Returns at once; ``succeed`` or ``fail`` of the batch follows, once."""
        with self._engine_lock:
            topic = self._topics.get(batch.topic)
            if topic is None:
                topic = self._topics[batch.topic] = TopicState(
                    batch.topic, self._hedging, durations=self._durations
                )
            topic.batches += 1
            engine = AttemptEngine(
                hedge_delay=topic.hedge_delay,
                bucket=topic.bucket,
                total_timeout=batch.total_timeout,
            )
            run = _Run(batch, engine, topic)
            commands = self._handle(run, _COMMITTED)
            self._runs.add(run)
        self._execute(run, commands)

    def stats(self, topic: str | None = None) -> HedgingStats:
        """Return a snapshot of one topic, or of all."""
        with self._engine_lock:
            readings = read(self._topics, topic)
        return snapshot(readings, topic)

    def abandon(self, error: BaseException) -> int:
        """End every batch under way with ``error``, and return how many those were."""
        with self._engine_lock:
            runs = tuple(self._runs)
        for run in runs:
            self._feed(run, Abandoned(error))
        return len(runs)

    def start_anew(self) -> None:
        """Start empty in a forked child.

        gRPC cancels the copies of the parent's calls there, which looks like an error that may be
        retried: their runs must not hear of it, or the child sends the parent's batches again.
        """
        self._engine_lock = threading.Lock()
        for run in self._runs:
            run.engine = _decided_engine()
            run.calls = {}
        self._runs = set()
        self._topics.clear()

    def _feed(self, run: _Run, event: Event, answer: object = None) -> None:
        try:
            commands = self._tell(run, event)
        except Exception as error:  # R8: a defect ends the batch, not the thread
            _LOGGER.exception("a batch cannot go on after %r", event)
            commands = self._tell(run, Abandoned(error))
        self._execute(run, commands, answer)

    def _tell(self, run: _Run, event: Event) -> list[Command]:
        with self._engine_lock:
            return self._handle(run, event)

    def _handle(self, run: _Run, event: Event) -> list[Command]:
        """Hand an event to the engine, and keep all that hangs on it in step.

        The engine lock is held.
        """
        engine = run.engine
        now = self._clock()
        commands = engine.handle(event, now)
        if event is _COMMITTED:
            run.committed_at = now
        else:
            run.topic.count(run, event, commands, engine.original_latency, now)
        next_wakeup = engine.next_wakeup
        if next_wakeup != run.wakeup_at:
            self._rearm(run, next_wakeup)
        if engine.decided:
            self._runs.discard(run)
        return commands

    def _rearm(self, run: _Run, when: float | None) -> None:
        if run.wakeup is not None:
            run.wakeup.cancel()
        run.wakeup_at = when
        run.wakeup = None if when is None else self._scheduler.call_at(when, self._on_wake, run)

    def _wake(self, run: _Run) -> None:
        commands = self._tell(run, _WOKE)
        if any(isinstance(command, Start) for command in commands):
            self._workers.submit(self._execute, run, commands)
        elif run.topic.due:
            self._workers.submit(self._call_due, run.topic)

    def _execute(self, run: _Run, commands: list[Command], answer: object = None) -> None:
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
            self._workers.submit(self._call_due, run.topic)

    def _call_due(self, topic: TopicState) -> None:
        with self._engine_lock:
            due, topic.due = topic.due, []
        for call in due:
            call()

    def _start(self, run: _Run, command: Start) -> None:
        attempt = command.attempt
        logged = attempt != ORIGINAL and hedge_log.is_wanted()
        with self._engine_lock:
            if attempt not in run.engine.in_flight:
                return
            run.topic.attempts += 1
            if attempt != ORIGINAL:
                run.topic.hedge_sent(run, attempt, self._clock(), logged=logged)
        try:
            call = run.batch.send(attempt, command.timeout)
        except BaseException as error:
            self._failed(run, attempt, error)
            if isinstance(error, Exception):
                return
            raise  # a KeyboardInterrupt on the thread that publishes is the user's
        with self._engine_lock:
            wanted = attempt in run.engine.in_flight
            if wanted:
                run.calls[attempt] = call
            else:
                # Decided while it was being sent, so that nobody could cancel it yet.
                run.topic.attempts_cancelled += 1
        if wanted:
            call.add_done_callback(partial(self._on_end, run, attempt))
        else:
            run.batch.cancel(call)

    def _cancel(self, run: _Run, attempt: int) -> None:
        with self._engine_lock:
            call = run.calls.pop(attempt, None)
            run.topic.attempts_cancelled += call is not None
        if call is not None:
            run.batch.cancel(call)

    def _ended(self, run: _Run, attempt: int, call: Call) -> None:
        """Take in the end of an RPC, on gRPC's thread."""
        if run.engine.decided:
            # R7: a loser, most likely cancelled by us; no predicate shall see it. We cancel only
            # what was decided before, so this look needs no lock.
            return
        with self._engine_lock:
            run.calls.pop(attempt, None)
        try:
            answer = run.batch.outcome(call)
        except BaseException as error:  # noqa: BLE001 - R8
            self._failed(run, attempt, error)
        else:
            self._feed(run, Succeeded(attempt) if attempt else ORIGINAL_SUCCEEDED, answer)

    def _failed(self, run: _Run, attempt: int, error: BaseException) -> None:
        if attempt == ORIGINAL:
            self._workers.submit(self._judge, run, error)
        else:
            self._feed(run, Failed(attempt, error))

    def _judge(self, run: _Run, error: BaseException) -> None:
        try:
            event: Event = run.batch.judge(error)
        except BaseException as defect:  # noqa: BLE001 - R8: the predicate or on_error raised
            event = Abandoned(defect)
        self._feed(run, event)
