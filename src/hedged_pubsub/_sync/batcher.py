"""Collects messages into batches and commits them when they are full or have waited enough."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable

from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub._batch import BatchLimits, check_size, message_prefix
from hedged_pubsub._official import FlowControl
from hedged_pubsub._sync.batch import Batch
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.future import PublishFuture
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub._sync.scheduler import Scheduler
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub._tracing import MessageTracing
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import Fail


class Batcher:
    """The open batches of one publisher.

    Args:
        settings: When a batch is full, and how long it waits.
        flow_control: Lends credit for each message, and gets it back when its batch is decided.
        rpc: How batches are sent.
        driver: Takes over committed batches.
        scheduler: Calls when a batch has waited enough.
        workers: Send those batches.
        clock: The scheduler's clock.
    """

    def __init__(
        self,
        *,
        settings: BatchSettings,
        flow_control: FlowControl,
        rpc: PublishRpc,
        driver: Driver,
        scheduler: Scheduler,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        self._limits = BatchLimits(settings)
        self._flow_control = flow_control
        self._rpc = rpc
        self._driver = driver
        self._scheduler = scheduler
        self._workers = workers
        self._clock = clock
        # Guards all below. Nothing is called while it is held but the scheduler.
        self._batch_lock = threading.Lock()
        self._open: dict[tuple[str, CallPolicy], Batch] = {}
        self._undecided: set[Batch] = set()
        self._timer_runs = False
        self._stopped = False
        self._refusal: str | None = None

    def add(
        self,
        topic: str,
        body: bytes,
        policy: CallPolicy,
        publish_start_time: float,
        tracing: MessageTracing | None = None,
    ) -> PublishFuture:
        """Add a message to a batch, and send the batches that this completes.

        Args:
            topic: The topic's full name.
            body: The serialized message.
            policy: Messages of different policies never share a batch.
            publish_start_time: When ``publish()`` was called, in wall seconds.
            tracing: The message's spans.

        Raises:
            RuntimeError: If the publisher was stopped.
            MessageTooLargeError: If the service would not accept the message, not even alone.
        """
        prefix = message_prefix(body)
        size = len(prefix) + len(body)
        completed: list[Batch] = []
        with self._batch_lock:
            if self._refusal is not None:
                raise RuntimeError(self._refusal)
            key = (topic, policy)
            batch = self._open.get(key)
            if batch is None or self._limits.is_full(batch, size):
                check_size(topic, size)
                if batch is not None:
                    completed.append(batch)  # without this message, which opens the next one
                batch = Batch(topic, policy, self._rpc, self._workers, self)
                self._open[key] = batch
                self._undecided.add(batch)
            is_full = self._limits.is_full(batch, size)
            future = batch.add(prefix, body, publish_start_time)
            if self._flow_control.counts:
                batch.lend(len(body))
            if tracing is not None:
                batch.trace(tracing)
            if is_full:
                completed.append(batch)
                del self._open[key]
            elif not self._timer_runs and self._limits.max_latency < math.inf:
                due = self._clock() + self._limits.max_latency
                self._scheduler.call_at(due, self._latency_is_over)
                self._timer_runs = True
        if completed:
            self._send(completed)
        return future

    def _latency_is_over(self) -> None:
        """Commit what is open. On the scheduler's thread, which must not send."""
        with self._batch_lock:
            self._timer_runs = False
            batches = self._take_open()
        if batches:
            self._workers.submit(self._send, batches)

    def commit_all(self) -> None:
        """Commit and send what is open."""
        with self._batch_lock:
            batches = self._take_open()
        self._send(batches)

    def stop(self) -> None:
        """Commit and send what is open, and take no more.

        Raises:
            RuntimeError: If it was stopped before.
        """
        with self._batch_lock:
            if self._stopped:
                raise RuntimeError("Cannot stop a publisher already stopped.")
            self._stopped = True
            self._refusal = "Cannot publish on a stopped publisher."
            batches = self._take_open()
        self._send(batches)

    def send_last(self, *, on_this_thread: bool, deadline: float) -> int:
        """Send what is open and take no more: the interpreter ends.

        Args:
            on_this_thread: Whether to send, and wait for the answer, without any other thread,
                because none can be started any more.
            deadline: When to give up on that; monotonic seconds.

        Returns:
            How many messages were given up for lack of time.
        """
        with self._batch_lock:
            self._refusal = "Cannot publish while the interpreter shuts down."
            batches = self._take_open()
        if on_this_thread:
            return sum(
                batch.count for batch in batches if not batch.send_and_wait(deadline, self._clock)
            )
        self._send(batches)
        return 0

    def start_anew(self) -> None:
        """Start empty in a forked child: what is under way is the parent's to send."""
        orphans = self._undecided
        self._batch_lock = threading.Lock()
        self._open = {}
        self._undecided = set()
        self._timer_runs = False
        self._flow_control.start_anew()
        self._driver.start_anew()
        self._rpc.start_anew()
        for batch in orphans:
            batch.orphan()

    def undecided(self) -> list[PublishFuture]:
        """Return the futures of all messages that were accepted and have no outcome yet."""
        with self._batch_lock:
            return [future for batch in self._undecided.copy() for future in batch.futures]

    def _take_open(self) -> list[Batch]:
        batches = list(self._open.values())
        self._open.clear()
        return batches

    def _send(self, batches: list[Batch]) -> None:
        for number, batch in enumerate(batches, 1):
            if batch.runs_users_code:
                # It may block. So neither ``publish()`` nor another batch waits for it, as in the
                # official client, where each batch has a thread.
                self._workers.submit(self._send_one, batch)
                continue
            try:
                self._send_one(batch)
            except BaseException:
                self._workers.submit(self._send, batches[number:])
                raise

    def _send_one(self, batch: Batch) -> None:
        try:
            batch.commit()
            self._driver.submit(batch)
        except BaseException as error:
            # R8: every accepted publish ends. A second outcome, after one of the driver's,
            # finds nothing left to resolve.
            batch.fail(Fail(error))
            if not isinstance(error, Exception):
                raise

    # --- What a batch tells its owner.

    def return_credit(self, batch: Batch) -> None:
        """Give back what flow control lent for the messages of a decided batch."""
        while batch.credit:
            # One by one off the list, so that each goes back once even if two outcomes race.
            with contextlib.suppress(IndexError):
                self._flow_control.give_back(batch.credit.pop())

    def forget(self, batch: Batch) -> None:
        """Stop counting a batch among the undecided."""
        self._undecided.discard(batch)  # atomic
