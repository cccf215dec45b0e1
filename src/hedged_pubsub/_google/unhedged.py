"""The publisher with hedging off: the official client, whose futures all get an outcome.

The official client sends each batch on a thread of its own, and leaves its futures pending if
anything but an error of Google's API libraries comes up there, or if the thread cannot be started.
`_Batch` gives them that error. Users' done-callbacks run on the batch's thread, as officially, and
never under one of the official client's locks: a batch that fails while such a lock is held, or
whose thread was not started, is *unsettled* until `_settle` is called without locks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher._batch import thread
from google.cloud.pubsub_v1.publisher._batch.base import BatchCancellationReason, BatchStatus
from google.cloud.pubsub_v1.publisher._sequencer.ordered_sequencer import _OrderedSequencerStatus
from opentelemetry import trace

_NO_THREAD: Final = (RuntimeError, MemoryError)  # from a thread that cannot be started


class UnhedgedPublisher(pubsub_v1.PublisherClient):  # type: ignore[misc]
    """The official client, with ``flush`` and ``close``, and without futures that stay pending."""

    _is_stopped: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch_class = _Batch
        # Threads share these without a lock: each use is one call of C's, thus atomic, and safe in
        # a signal handler. A shallow copy shares them, as it shares the official client's batches.
        self._live: dict[_Batch, None] = {}  # have messages without an outcome, as they were made
        self._unsettled: dict[_Batch, None] = {}
        self._flushes: list[None] = []  # one for each flush() that waits

    def publish(self, *args: Any, **kwargs: Any) -> futures.Future:
        """Publish a message, as officially."""
        try:
            return super().publish(*args, **kwargs)
        except BaseException:
            # The thread of a batch or the timer could not be started, or a signal handler raised.
            try:
                with self._batch_lock:
                    for batch in self._undecided():
                        _unlock(batch._futures[-1:])
                        batch.finish_commit()
                    if self._live and not self._is_stopped:
                        self._ensure_commit_timer_runs_no_lock()
                self._settle()
            except _NO_THREAD:
                self._send()
            raise

    def stop(self) -> None:
        """Send what was accepted, and accept no more; officially, but for an interruption."""
        try:
            super().stop()
            self._settle()
        except BaseException:
            self._send()
            raise

    def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted and wait until every message is stored or has failed."""
        accepted = [future for batch in self._undecided() for future in batch._futures[:]]
        self._flushes.append(None)
        try:
            self._send()
            _wait(accepted, timeout)
        except BaseException:
            _unlock(accepted)
            self._send()
            raise
        finally:
            self._flushes.pop()

    def close(self, timeout: float | None = None) -> None:
        """Accept no more, flush, and close the channel. What is undecided then fails."""
        try:
            with self._batch_lock:
                # Not by stop(), which cancels all but the first batch of each ordering key.
                self._accept_no_more()
            self.flush(timeout)
        finally:
            error = RuntimeError("the publisher was closed before the message was stored")
            try:
                for batch in self._undecided():
                    batch.withdraw(functools.partial(batch.abandon, error), *BatchStatus)
                self._settle()
            finally:
                self._close_transport()

    def _close_transport(self) -> None:
        self.transport.close()

    def _accept_no_more(self) -> bool:
        """Let a later ``publish()`` fail; tell whether it did before."""
        was_stopped, self._is_stopped = self._is_stopped, True
        return was_stopped

    def _undecided(self) -> list[_Batch]:
        """Return the live batches that this thread can wait for."""
        # Not one that runs a done-callback on it, nor one that a parent process sent.
        here, processes = threading.get_ident(), (0, os.getpid())
        batches = list(self._live)
        return [one for one in batches if one.decider != here and one.process in processes]

    def _send(self) -> None:
        """Commit the open batches; of each ordering key the first, which the next ones follow."""
        with self._batch_lock:
            for sequencer in list(self._sequencers.values()):
                # It is stopped, or no thread can be started, which `_settle` sees to.
                with contextlib.suppress(*_NO_THREAD):
                    sequencer.commit()
            for batch in self._undecided():
                batch.finish_commit()
        self._settle()

    def _settle(self) -> None:
        """Settle the unsettled batches; the caller holds no lock."""
        raised: list[BaseException] = []
        while batches := list(self._unsettled):
            for batch in batches:
                # Twice does no harm: after an interruption, or in two threads.
                try:
                    batch.settle()
                except BaseException as error:  # noqa: BLE001 - it is raised below
                    raised.append(error)
                    batch.settle()
                self._unsettled.pop(batch, None)
        if raised:
            raise raised[0]

    def _start_commit_thread(self) -> None:
        try:
            super()._start_commit_thread()
        except BaseException:
            # Or it would count as started, and nothing would be sent for its age any more.
            self._commit_thread = None
            raise

    def _wait_and_commit_sequencers(self) -> None:
        try:
            super()._wait_and_commit_sequencers()
        except _NO_THREAD:  # for a batch
            self._commit_thread = None
            self._send()


class _Batch(thread.Batch):  # type: ignore[misc]
    """A batch whose futures all get an outcome."""

    _status: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sequencer = getattr(self._batch_done_callback, "__self__", None)
        self._futures = _Futures()
        self._unclaimed = [None]
        self._fail_later: Callable[[], None] | None = None
        self.decider: int | None = None  # the thread that sets its outcome
        self.process = 0  # where its thread was started

    def publish(self, wrapper: Any) -> futures.Future | None:
        """Add a message, as officially; the first one makes the batch live."""
        if not self._message_wrappers:
            self._client._live[self] = None  # before it can be sent
        try:
            return super().publish(wrapper)
        finally:
            if len(self._message_wrappers) > len(self._futures):
                # Interrupted in between. The answer will have an id for it, and would not fit.
                self._futures.append(futures.Future())
            if not self._message_wrappers:
                self._client._live.pop(self, None)

    def cancel(self, cancellation_reason: BatchCancellationReason) -> None:
        """Fail its messages once no lock is held."""
        fail = functools.partial(self.abandon, RuntimeError(cancellation_reason.value))
        self.withdraw(fail, BatchStatus.ACCEPTING_MESSAGES)

    def withdraw(self, fail: Callable[[], None], *statuses: Any) -> None:
        """Call ``fail`` when it is settled, if its status is one of these."""
        with self._state_lock:
            if self._status in statuses:
                self._fail_later = fail
                self._client._unsettled[self] = None
                if self._status in (BatchStatus.ACCEPTING_MESSAGES, BatchStatus.STARTING):
                    # Nobody else sends it now. With ERROR a publish() that finds it would fail.
                    self._status = BatchStatus.IN_PROGRESS

    def finish_commit(self) -> None:
        """Do what an interruption has kept undone; under the client's lock."""
        sequencer = self._sequencer if self._client._is_stopped else None
        if self._fail_later or (self._status == BatchStatus.STARTING and not self.process):
            self._client._unsettled[self] = None
        elif sequencer is not None and (
            sequencer._state == _OrderedSequencerStatus.STOPPED
            or self not in sequencer._ordered_batches
        ):
            # If it is open, an interrupted stop() left it where nobody would send it.
            self.cancel(BatchCancellationReason.CLIENT_STOPPED)

    def settle(self) -> None:
        """Start its thread, or fail its messages."""
        if self._status == BatchStatus.STARTING:
            try:
                self._start_commit_thread()
            except _NO_THREAD as error:
                self.withdraw(functools.partial(self._fail, error), BatchStatus.STARTING)
        if self._fail_later is not None:
            self._fail_later()

    def _start_commit_thread(self) -> None:
        try:
            super()._start_commit_thread()
        except BaseException:
            # After an interruption the thread may run or not; a second one does no harm.
            self._client._unsettled[self] = None
            raise
        self.process = os.getpid()

    def _commit(self) -> None:
        try:
            self._unclaimed.pop()
        except IndexError:  # a second thread was started
            return
        self.decider = threading.get_ident()
        client, sequencer = self._client, self._sequencer
        try:
            super()._commit()
            if not self._message_wrappers:  # which officially blocks its ordering key
                self._tell_sequencer(success=True)
        except BaseException as error:
            if self._status == BatchStatus.SUCCESS:  # it came too late for any future
                raise
            self._fail(error)
        finally:
            client._live.pop(self, None)
            if sequencer is not None and (client._flushes or client._is_stopped):
                # The next one of its key would wait for its age. The sequencer may be stopped.
                with contextlib.suppress(*_NO_THREAD):
                    sequencer.commit()
            client._settle()
        self._futures.raise_again()

    def _fail(self, error: BaseException) -> None:
        """Fail its messages as the official client does after an error that it knows."""
        try:
            self._tell_sequencer(success=False)
            if self._client.open_telemetry_enabled:
                self._end_spans(error)
        finally:
            self.abandon(error)

    def abandon(self, error: BaseException) -> None:
        """Fail its messages, and ignore what comes of a request that is under way."""
        for outcome in self._futures:
            outcome.set_exception(error)
        self._client._live.pop(self, None)
        self._futures.raise_again()

    def _end_spans(self, error: BaseException) -> None:
        if self._rpc_span is not None and self._rpc_span.is_recording():
            self._rpc_span.record_exception(error)
            self._rpc_span.set_status(trace.Status(trace.StatusCode.ERROR))
            self._rpc_span.end()
        for wrapper in self._message_wrappers:
            if wrapper.create_span.is_recording():
                wrapper.end_create_span(exc=error)

    def _tell_sequencer(self, *, success: bool) -> None:
        """Let its ordering key go on, or pause, unless that was done."""
        if self._sequencer is not None and [*self._sequencer._ordered_batches][:1] == [self]:
            self._sequencer._batch_done_callback(success)


class _Futures(list[futures.Future]):
    """The futures of a batch; going through them yields what sets the outcome of each.

    Each keeps its first outcome, and the next ones get theirs whatever a done-callback raises.
    """

    def __init__(self) -> None:
        super().__init__()
        # By thread: an exception of a signal handler is for the thread that it came to.
        self._raised: dict[int, BaseException] = {}

    def __iter__(self) -> Iterator[Any]:
        for future in super().__iter__():
            result = functools.partial(self._set, future, future.set_result)
            exception = functools.partial(self._set, future, future.set_exception)
            yield types.SimpleNamespace(set_result=result, set_exception=exception)

    def _set(self, future: Any, set_outcome: Callable[[Any], None], outcome: Any) -> None:
        try:
            set_outcome(outcome)
        except concurrent.futures.InvalidStateError:
            pass
        except BaseException as error:  # noqa: BLE001 - of a done-callback; it is raised later
            self._raised.setdefault(threading.get_ident(), error)
            _unlock([future])
            self._set(future, set_outcome, outcome)  # or of a signal handler, before it was set

    def raise_again(self) -> None:
        """Raise the first exception of a done-callback on this thread, once."""
        raised = self._raised.pop(threading.get_ident(), None)
        if raised is not None:
            raise raised


def _wait(accepted: list[futures.Future], timeout: float | None) -> None:
    """Wait for one future after the other."""
    # ``concurrent.futures.wait`` locks all at once: two threads with the same ones, in different
    # orders, would wait for each other.
    end = math.inf if timeout is None else time.monotonic() + timeout
    for future in accepted:
        left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            future.exception(max(0.0, left))
        except concurrent.futures.TimeoutError:
            if time.monotonic() < end - 0.01:  # more than clocks differ: a signal handler's
                raise
            break
    undecided = sum(not future.done() for future in accepted)
    if undecided:
        raise concurrent.futures.TimeoutError(
            f"{undecided} of {len(accepted)} messages are not decided after {timeout:g} s"
        )


def _unlock(interrupted: list[futures.Future]) -> None:
    """Release what an exception in ``threading.Condition`` has left locked on this thread."""
    for future in interrupted:
        while future._condition._is_owned():
            future._condition.release()
