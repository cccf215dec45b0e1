"""The batches of one publisher that are under way, and what is to be done about each.

Pure: it is told what happened, and when, and answers with orders; the drivers, on threads and on an
event loop, are the hands that carry them out. Whoever owns it sees to it that one thread at a time
is in here, and holds no lock while orders are carried out.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from hedged_pubsub._core import log
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.engine import AttemptEngine
from hedged_pubsub._core.events import (
    ORIGINAL,
    START_ORIGINAL,
    Abandoned,
    Call,
    Cancel,
    Committed,
    Event,
    Fail,
    Failed,
    HeldBack,
    Order,
    Resend,
    Resolve,
    Start,
    Suppressed,
    WakeAt,
    Woke,
)
from hedged_pubsub._core.recent_topics import RecentTopics
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.states import State
from hedged_pubsub._core.stats import HedgingStats
from hedged_pubsub._core.topic_state import Durations, Recording, TopicState, snapshot

_COMMITTED: Final = Committed()
WOKE: Final = Woke()
_NOTHING_SENT: Final[Mapping[int, float]] = {}

B = TypeVar("B", bound=Batch)
_B = TypeVar("_B", bound=Batch, contravariant=True)


class Run(AttemptEngine):
    """The engine of one batch, and what the numbers need to know beside it.

    Attributes:
        topic: The batch's topic.
        number: The batch's own.
        wake_at: When it was last asked for to be woken.
        hedges_sent: How many hedges were sent.
        sent_at: When each hedge that has not ended was sent.
        uncertain: Attempts that failed and may have stored the batch all the same.
        is_logged: Whether a log line is wanted about each hedge; set when one is sent.
    """

    __slots__ = ("hedges_sent", "is_logged", "number", "sent_at", "topic", "uncertain", "wake_at")

    is_logged: bool

    def __init__(
        self, topic: TopicState, number: int, hedge_delay: float | None, total_timeout: float
    ) -> None:
        super().__init__(
            hedge_delay=hedge_delay,
            budget=topic.budget,
            waiting=topic.waiting,
            total_timeout=total_timeout,
        )
        self.topic = topic
        self.number = number
        self.wake_at = math.inf
        self.hedges_sent = 0
        self.sent_at: dict[int, float] = _NOTHING_SENT  # type: ignore[assignment]
        self.uncertain = 0


class Runs(Generic[B]):
    """The runs of one publisher, whose batches are hedged or, if not ``hedged``, only retried.

    Attributes:
        topics: What is known of each topic by its full name.
        batches: The batches under way, by number.
        durations: Takes what batches took; ``None`` where nobody wants to know.
    """

    def __init__(self, settings: HedgingSettings, *, hedged: bool = True) -> None:
        self._settings = settings
        self._hedged = hedged
        self._numbers = itertools.count()
        self.topics: dict[str, TopicState] = {}
        self._recent = RecentTopics()
        self._calls: list[Callable[[], object]] = []
        self.batches: dict[int, B] = {}
        self.durations: Durations | None = None
        self._recording: Recording | None = None

    def commit(self, batch: B, now: float) -> Sequence[Order]:
        """Begin a batch at t0, ``now``, and return what to do. Its outcome follows, once."""
        topic = self.topics.get(batch.topic)
        if topic is None or topic.latencies is self._recent.others:
            topic = self.use(batch.topic)
        topic.batches += 1
        number = next(self._numbers)
        delay = topic.hedge_delay if self._hedged else None
        batch.run = Run(topic, number, delay, batch.total_timeout)
        self.batches[number] = batch
        return self.handle(batch, _COMMITTED, now)

    def use(self, name: str) -> TopicState:
        """Return what is known of a topic that is new, or was not used for long."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicState(
                name,
                self._settings,
                hedged=self._hedged,
                durations=self.durations,
                latencies=self._recent.others,
                calls=self._calls,
            )
            topic.recording = self._recording  # after it is listed: see ``record``
        self._recent.add(topic)
        return topic

    def record(self, recording: Recording | None) -> None:
        """Note there what attempts take from now on; None ends that. It needs no lock."""
        self._recording = recording
        for topic in self.topics.copy().values():
            topic.recording = recording

    def handle(self, batch: B, event: Event, now: float) -> Sequence[Order]:
        """Take in what happened to a batch, at a monotonic second, and return what to do.

        Nothing is to be done about a batch that is decided.
        """
        run = batch.run
        if run.decided:
            return ()
        topic = run.topic
        try:
            orders: list[Any] = run.handle(event, now)
            if type(event) is Failed:
                topic.attempt_failed(run, event, now)
            for order in orders:
                if isinstance(order, Resolve):
                    topic.batch_stored(run, now)
                elif isinstance(order, Fail):
                    topic.batch_failed(run, order, now)
                elif isinstance(order, Suppressed):
                    topic.hedge_suppressed(now)
                elif isinstance(order, HeldBack) or (isinstance(order, Start) and order.attempt):
                    topic.hedges_due += 1
        except Exception as error:  # noqa: BLE001 - R8: a defect ends the batch, not the thread
            return self._give_up(batch, event, error, now)
        due = run.next_wakeup
        if due is None:
            if run.state is State.DECIDED:
                self.batches.pop(run.number, None)
        elif due != run.wake_at:
            run.wake_at = due
            orders.insert(0, WakeAt(due))  # first: sending may take its time
        if self._calls:
            orders += map(Call, self._calls)
            self._calls.clear()
        return orders

    def _give_up(self, batch: B, event: Event, error: Exception, now: float) -> Sequence[Order]:
        run = batch.run
        self.batches.pop(run.number, None)
        with contextlib.suppress(Exception):  # it may be this that does not work
            run.handle(Abandoned(error), now)
        what = f"a batch cannot go on after {event!r}"
        line = functools.partial(log.write, logging.ERROR, what, error=error)
        return [
            *(Cancel(attempt) for attempt in range(run.hedges + 1)),
            Fail(error),
            Call(line),
        ]

    def resend(self, batch: B) -> Sequence[Order]:
        """Return what to do about a batch whose original was let go."""
        run = batch.run
        due = run.next_wakeup
        if due is None or due == run.wake_at:
            return [START_ORIGINAL]
        run.wake_at = due
        return [WakeAt(due), START_ORIGINAL]

    def is_wanted(self, batch: B, attempt: int, now: float, *, is_logged: bool) -> bool:
        """Tell, right before an attempt is sent, whether it still is to be; count it then."""
        run = batch.run
        if attempt not in run.in_flight:
            if attempt != ORIGINAL:
                run.topic.budget.bucket.put_back()  # R9: the token of a hedge that is not sent
            return False
        run.topic.attempts += 1
        if attempt != ORIGINAL:
            run.topic.hedge_sent()
            run.hedges_sent += 1
            run.sent_at = {**run.sent_at, attempt: now}
            run.is_logged = is_logged
        return True

    def end(self, batch: B, error: BaseException, now: float) -> Sequence[Order]:
        """Return what ends a batch with an error, whether it was committed or not."""
        committed = hasattr(batch, "run")
        orders = self.handle(batch, Abandoned(error), now) if committed else ()
        return [*orders, Fail(error)]  # a second outcome finds nothing left to fail

    def reset_after_fork(self) -> None:
        """Start empty in a forked child.

        gRPC cancels the copies of the parent's calls there, which looks like an error that may be
        retried. No batch may take that in, or the child sends the parent's batches again.
        """
        for batch in self.batches.values():
            with contextlib.suppress(Exception):  # it was forked in the middle of a change
                batch.run.handle(Abandoned(RuntimeError()), 0.0)
        self.batches = {}
        self.topics.clear()
        self._recent.clear()
        self._calls.clear()

    def stats(self, topic: str | None = None) -> HedgingStats:
        """Return the numbers of one topic, or of all. It needs no lock."""
        return snapshot(self.topics.copy(), self._recent.others, topic)


class Hands(Protocol[_B]):
    """Does what is to be done about a batch: on threads, or on an event loop."""

    def start(self, batch: _B, attempt: int, timeout: float | None) -> None:
        """Send an attempt; the timeout, in seconds, is a hedge's."""

    def cancel(self, batch: _B, attempt: int) -> None:
        """Cancel the request of an attempt, if it is under way."""

    def resend(self, number: int) -> None:
        """Send the original of the batch of that number soon: it was let go."""

    def wake_at(self, batch: _B, when: float) -> None:
        """Tell the batch that it ``Woke``, at that monotonic second."""

    def resolve(self, batch: _B, answer: Any, attempt: int) -> None:
        """Resolve the futures with what an attempt was answered with."""

    def fail(self, batch: _B, failure: Fail) -> None:
        """Fail the futures that have no outcome."""

    def call(self, order: Call) -> None:
        """Call what may run a user's code."""


def carry_out(orders: Sequence[Order], batch: B, hands: Hands[B], answer: object = None) -> None:
    """Let hands do what is to be done about a batch; ``answer`` is what an attempt was told."""
    for order in orders:
        if isinstance(order, Start):
            hands.start(batch, order.attempt, order.timeout)
        elif isinstance(order, WakeAt):
            hands.wake_at(batch, order.when)
        elif isinstance(order, Resolve):
            hands.resolve(batch, answer, order.attempt)
        elif isinstance(order, Cancel):
            hands.cancel(batch, order.attempt)
        elif isinstance(order, Resend):
            hands.resend(order.run.number)
        elif isinstance(order, Fail):
            hands.fail(batch, order)
        elif isinstance(order, Call):
            hands.call(order)
