"""Carries out, on threads, what is to be done about the batches of one publisher.

Who runs where: the library's thread commits batches, starts requests and wakes batches; gRPC's
thread takes in answers, decides, cancels losers and resolves the futures. Whatever may run a user's
code goes to the workers: predicates of a failed original, interceptors, log lines.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from hedged_pubsub._core import hedge_log
from hedged_pubsub._core.connections import Connection
from hedged_pubsub._core.events import (
    ORIGINAL,
    ORIGINAL_SUCCEEDED,
    Abandoned,
    Call,
    Event,
    Fail,
    Failed,
    Order,
    Start,
    Succeeded,
)
from hedged_pubsub._core.runs import Runs, carry_out
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.call_policy import CallPolicy
from hedged_pubsub._google.metrics import METRICS
from hedged_pubsub._google.rpc import in_flight_on, no_answer
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.flow_control import FlowControl
from hedged_pubsub._sync.future import PublishFuture, fail_after_fork, settle
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub._sync.workers import Workers

_NO_IDS: Final = itertools.repeat(None)


class Driver:
    """The hands of one publisher on threads.

    Attributes:
        rpc: Sends requests.
        undecided: The batches that have messages without an outcome. The library thread's; others
            read copies.
    """

    def __init__(
        self,
        hedging: HedgingSettings,
        rpc: PublishRpc,
        flow_control: FlowControl,
        library: LibraryThread,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        self.rpc = rpc
        self.undecided: set[PublishBatch] = set()
        self._flow_control = flow_control
        self._library = library
        self._workers = workers
        self._clock = clock
        # Guards the runs, and which requests there are. No caller takes it, and nothing else is
        # called while it is held.
        self._engine_lock = self._library.guard()
        self._runs: Runs[PublishBatch] = Runs(hedging)
        self._runs.durations = METRICS.watch(self, self._runs.topics, self)
        self.stats = self._runs.stats
        rpc.on_dead = self._give_up_on
        self.record = self._runs.record
        # Bound once: gRPC and the library's thread hold one for each batch.
        self._on_end = self._ended
        self._on_wake = self._wake
        self._when_decided: Callable[[], object] | None = None

    @property
    def blocked(self) -> int:
        """About how many calls of ``publish()`` wait for flow control."""
        return self._flow_control.waiting

    def open(self, topic: str, policy: CallPolicy, *, has_extras: bool) -> PublishBatch:
        """Make a batch, whose messages are undecided from now on."""
        batch = PublishBatch(topic, policy, has_extras=has_extras)
        self.undecided.add(batch)
        return batch

    def runs_users_code(self, batch: PublishBatch) -> bool:
        """Tell whether sending runs a user's code: an interceptor, or a span processor."""
        return batch.tracing is not None or not self.rpc.is_plain

    def submit(self, batch: PublishBatch) -> None:
        """Send a batch. Returns at once; its messages get their outcome, once."""
        try:
            self.rpc.commit(batch)
            with self._engine_lock:
                orders = self._runs.commit(batch, self._clock())
            carry_out(orders, batch, self)
        except BaseException as error:  # noqa: BLE001 - R8: every accepted publish ends
            with self._engine_lock:
                orders = self._runs.end(batch, error, self._clock())
            carry_out(orders, batch, self)

    def abandon(self, error: BaseException) -> None:
        """End every batch under way with ``error``."""
        for batch in list(self._runs.batches.values()):
            self._feed(batch, Abandoned(error))

    def when_decided(self, function: Callable[[], object]) -> None:
        """Call something, at least once, when no message is undecided; no more are to come."""
        self._when_decided = function
        self._check_decided()

    def _check_decided(self) -> None:
        if self._when_decided is not None and not self.undecided:
            self._library.post(self._when_decided)

    def reset_after_fork(self, error: BaseException) -> None:
        """Start empty in a forked child, where the messages under way have this error."""
        self._engine_lock = self._library.guard()
        self._runs.reset_after_fork()
        self.rpc.reset_after_fork()
        undecided, self.undecided = self.undecided, set()
        for batch in undecided:
            batch.drop_calls()
            futures, batch.messages = batch.messages, []
            fail_after_fork(futures, error)

    def _feed(
        self, batch: PublishBatch, event: Event, answer: object = None, ended: int | None = None
    ) -> None:
        """Tell of an event, such as the end of attempt ``ended``, and do what is to be done."""
        with self._engine_lock:
            if ended is not None:
                batch.take_call(ended)
            orders = self._runs.handle(batch, event, self._clock())
        carry_out(orders, batch, self, answer)

    # --- Orders.

    def start(self, batch: PublishBatch, attempt: int, timeout: float | None) -> None:
        """Send an attempt, unless the batch was decided meanwhile."""
        is_logged = attempt != ORIGINAL and hedge_log.is_wanted()
        with self._engine_lock:
            if not self._runs.is_wanted(batch, attempt, self._clock(), is_logged=is_logged):
                return
        try:
            call = self.rpc.start(batch, attempt, timeout)
        except BaseException as error:
            self._failed(batch, attempt, error)
            if isinstance(error, Exception):
                return
            raise  # not of a request's, but of a signal handler's or of a thread that is to end
        with self._engine_lock:
            # If not, it was decided while it was being sent, and nobody could cancel it yet.
            is_wanted = attempt in batch.run.in_flight
            batch.run.topic.attempts_cancelled += not is_wanted
            if is_wanted:
                batch.keep_call(attempt, call)
        if is_wanted:
            self.rpc.when_ended(call, self._on_end, batch, attempt)
        else:
            self.rpc.cancel(call)

    def cancel(self, batch: PublishBatch, attempt: int) -> None:
        """Cancel the request of an attempt."""
        with self._engine_lock:
            call = batch.take_call(attempt)
            batch.run.topic.attempts_cancelled += call is not None
        if call is not None:
            self.rpc.cancel(call)
        elif batch.intercepted is not None:
            batch.cancel_intercepted(attempt)

    def wake_at(self, batch: PublishBatch, when: float) -> None:
        """Set the batch's timer. Nothing of a decided batch stays until it is due."""
        self._library.call_at(when, self._on_wake, batch.run.number)

    def resend(self, number: int) -> None:
        """Send the original of another batch: on this thread, which is gRPC's, if it may.

        Waking the library's thread for each would take longer than sending it.
        """
        if self.rpc.is_plain and not threads.FORK_GATE.is_closed:
            self._send_again(number)
        else:
            self._library.post(self._send_again, number)

    def resolve(self, batch: PublishBatch, answer: Any, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        self.rpc.stored(batch, attempt)
        self._end(batch, answer, None, attempt)

    def fail(self, batch: PublishBatch, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        self._end(batch, None, batch.error_of(failure))

    def call(self, order: Call) -> None:
        """Call something on a worker."""
        self._workers.submit(order.function)

    # --- Events.

    def _wake(self, number: int) -> None:
        batch = self._runs.batches.get(number)
        if batch is None:
            return
        woke = self.rpc.woke(batch, self._runs.batches)
        with self._engine_lock:
            orders = self._runs.handle(batch, woke, self._clock())
        self._carry_out(orders, batch)

    def _send_again(self, number: int) -> None:
        batch = self._runs.batches.get(number)
        if batch is None:
            return
        with self._engine_lock:
            orders = self._runs.resend(batch)
        self._carry_out(orders, batch)

    def _carry_out(self, orders: Sequence[Order], batch: PublishBatch) -> None:
        """Do what is to be done: here, or on a worker if sending runs a user's code."""
        if self.runs_users_code(batch) and any(isinstance(order, Start) for order in orders):
            self._workers.submit_urgent(carry_out, orders, batch, self)
        else:
            carry_out(orders, batch, self)

    def _give_up_on(self, dead: Connection[Any]) -> None:
        for batch in in_flight_on(dead, self._runs.batches):
            with self._engine_lock:
                call = batch.take_call(ORIGINAL)
            if call is not None:
                self.rpc.cancel(call)
                self._failed(batch, ORIGINAL, no_answer())

    def _ended(self, batch: PublishBatch, attempt: int, call: Any) -> None:
        """Take in the end of a request, on gRPC's thread."""
        if batch.run.decided or not batch.is_under_way(attempt, call):
            # R7: a loser, most likely cancelled by us, or one on a dead connection; no predicate
            # shall see it. What we cancel was decided, or taken out, before: this needs no lock.
            return
        # A finalizer that the garbage collector runs in here must not wait for this very thread.
        must_not_wait, ident = self._library.must_not_wait, threading.get_ident()
        must_not_wait.add(ident)
        try:
            answer = self.rpc.outcome(batch, call)
        except BaseException as error:  # noqa: BLE001 - R8
            self._failed(batch, attempt, error)
        else:
            event = Succeeded(attempt) if attempt else ORIGINAL_SUCCEEDED
            self._feed(batch, event, answer, attempt)
        finally:
            must_not_wait.discard(ident)

    def _failed(self, batch: PublishBatch, attempt: int, error: BaseException) -> None:
        if attempt != ORIGINAL:
            self._feed(batch, batch.hedge_failed(attempt, error), None, attempt)
        elif batch.asks_user:
            self._workers.submit_urgent(self._judge, batch, error)
        else:
            self._feed(batch, self.rpc.judge(batch, error), None, ORIGINAL)

    def _judge(self, batch: PublishBatch, error: BaseException) -> None:
        # Cancelling is for the library's thread: a fork waits for that one, and for no worker.
        self._library.post(self._feed, batch, self.rpc.judge(batch, error), None, ORIGINAL)

    # --- Outcomes.

    def _end(
        self,
        batch: PublishBatch,
        ids: list[str] | None,
        error: BaseException | None,
        attempt: int = ORIGINAL,
    ) -> None:
        if batch.tracing is None:
            self._settle(batch, ids, error)
        else:  # what exports the spans is a user's code
            self._workers.submit_urgent(self._end_spans_and_settle, batch, ids, error, attempt)

    def _end_spans_and_settle(
        self,
        batch: PublishBatch,
        ids: list[str] | None,
        error: BaseException | None,
        attempt: int = ORIGINAL,
    ) -> None:
        try:
            batch.end_spans(ids, error, attempt)  # first, as officially
        finally:  # R8: not even a SystemExit in there keeps the publish from ending
            self._settle(batch, ids, error)

    def _settle(
        self, batch: PublishBatch, ids: list[str] | None, error: BaseException | None
    ) -> None:
        if batch.permit is not None:
            self._flow_control.release(batch.permit)
        nothing: list[PublishFuture] = []  # made before: see ``future``
        futures, batch.messages = batch.messages, nothing
        settle(futures, _NO_IDS if ids is None else ids, error)
        batch.request = None
        self.undecided.discard(batch)  # atomic
        if self._when_decided is not None:
            self._check_decided()

    # --- Without other threads: at the end of the interpreter, or where none can be started.

    def send_and_wait(self, batch: PublishBatch, deadline: float) -> bool:
        """Commit, send and decide a batch on this thread, without a hedge; return if in time."""
        try:
            self.rpc.commit(batch)
            ids = self._call_until(batch, deadline)
        except BaseException as error:
            self._end_spans_and_settle(batch, None, error)
            if not isinstance(error, Exception):
                raise  # a signal handler's is for whoever waits here
            verdict = batch.judge(error)
            return not (isinstance(verdict, Failed) and verdict.transient)
        self._end_spans_and_settle(batch, ids, None)
        return True

    def _call_until(self, batch: PublishBatch, deadline: float) -> list[str]:
        while True:
            try:
                return self.rpc.call(batch, deadline - self._clock())
            except Exception as error:
                verdict = batch.judge(error)
                backoff = verdict.backoff if isinstance(verdict, Failed) else None
                if backoff is None or self._clock() + backoff >= deadline:
                    raise
                time.sleep(backoff)
