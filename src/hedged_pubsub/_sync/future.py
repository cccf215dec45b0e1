"""The future of one message: the official one, made cheap.

An ordinary future costs a condition, a lock and two lists, all of them walked by the cyclic
garbage collector for as long as the message is under way. Here all that is made when somebody
asks: waits, adds a callback, or reaches for the condition as ``concurrent.futures.wait`` does.

Each future has a condition of its own. ``wait`` and ``as_completed`` lock those of all the futures
that they are given, in an order that only works for locks that are not shared.

Whether an outcome or somebody who asks comes first is settled without a lock: each change here is
one stretch of assignments, or one call of C code, behind its test, and CPython neither switches
threads nor runs signal handlers within such a stretch; ``flow_control`` says more about that. What
a stretch needs is made before: in an allocation the garbage collector may run, and whatever code it
calls. A lock would be one that a signal handler finds held by the very thread that it interrupts.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures._base import FINISHED, PENDING
from typing import Any

from google.cloud.pubsub_v1.publisher import futures

from hedged_pubsub._core import log
from hedged_pubsub._sync import threads


class _Asked:
    """Who has asked for the outcome of one future.

    Attributes:
        wakes: Locks that threads in ``result()`` wait for.
        callbacks: Those of ``add_done_callback``.
        condition: What the standard library locks before it looks at the future. Not a
            ``threading.Condition``: nobody waits on it, and an exception from a signal handler in
            the Python code of that one would leave it locked for good.
        waiters: What the standard library leaves there.
    """

    __slots__ = ("callbacks", "condition", "waiters", "wakes")

    def __init__(self) -> None:
        self.wakes: list[_thread.LockType] = []
        self.callbacks: list[Callable[[Any], object]] = []
        self.condition: Any = None
        self.waiters: list[Any] = []


class _Unasked:
    """Messages of one batch that have failed. Once they are gone, somebody should have asked.

    Attributes:
        is_asked: Whether somebody has asked for the outcome of one of them.
    """

    __slots__ = ("_count", "_error", "is_asked")

    def __init__(self, count: int, error: BaseException) -> None:
        self._count = count
        self._error = error
        self.is_asked = False

    def __del__(self) -> None:
        """Report the messages unless somebody has asked. May run on any thread."""
        if not self.is_asked:
            with contextlib.suppress(Exception):  # at the end of the interpreter
                threads.UNASKED.report(self._count, self._error)


class PublishFuture(futures.Future):  # type: ignore[misc]
    """A future of a message id.

    It is a ``concurrent.futures.Future`` for everyone who looks: the attributes that the standard
    library's ``wait``, ``as_completed`` and ``asyncio.wrap_future`` reach into are all there.

    Attributes:
        prefix, body, start_time, permit, tracing: Its message; see ``batching.Message``.
    """

    __slots__ = (
        "_asked",
        "_exception",
        "_result",
        "_state",
        "_unasked",
        "body",
        "permit",
        "prefix",
        "start_time",
        "tracing",
    )

    def __init__(self) -> None:
        # Not the base class's: it makes what this class is there to spare.
        self._state = PENDING
        self._asked: _Asked | None = None

    def done(self) -> bool:
        """Return whether the message is stored or has failed."""
        return self._state is FINISHED

    def result(self, timeout: float | None = None) -> str:
        """Return the message id, once the message is stored.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes.

        Raises:
            concurrent.futures.TimeoutError: If the message is undecided after ``timeout``.
            Exception: What the publish failed with.
        """
        if self._state is not FINISHED and not self.wait(timeout):
            raise concurrent.futures.TimeoutError
        if self._exception is None:
            return self._result  # type: ignore[return-value]
        self._was_asked()
        try:
            raise self._exception
        finally:
            # Break the cycle of the traceback, this frame and the exception.
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the publish failed with, or ``None`` once the message is stored.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes.

        Raises:
            concurrent.futures.TimeoutError: If the message is undecided after ``timeout``.
        """
        if self._state is not FINISHED and not self.wait(timeout):
            raise concurrent.futures.TimeoutError
        self._was_asked()
        return self._exception

    def wait(self, timeout: float | None) -> bool:
        """Wait ``timeout`` seconds at most for the outcome; return whether there is one."""
        asked = self._ask()
        wake = _thread.allocate_lock()
        wake.acquire()
        asked.wakes.append(wake)
        # Whoever sets the outcome after this releases the lock.
        if self._state is not FINISHED:
            threads.wait_for(wake, timeout)
        return self._state is FINISHED

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` when the message is stored or has failed, at once if it has.

        Callbacks run on threads of the library's, so that one that blocks holds up nothing; an
        error of one is logged.
        """
        asked = self._ask()
        if self._state is not FINISHED:
            asked.callbacks.append(callback)
            return
        self._was_asked()
        _invoke(callback, self)

    def set_result(self, result: str) -> None:
        """Resolve this future alone. For tests of the user's."""
        self._set_alone(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail this future alone. For tests of the user's."""
        self._set_alone(None, exception)

    def _set_alone(self, result: str | None, exception: BaseException | None) -> None:
        if not self._finish(result, exception):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")
        for callback in self._done_callbacks:
            _invoke(callback, self)

    # --- What the standard library reaches into.

    @property
    def _condition(self) -> Any:
        asked = self._ask()
        fresh = threading.RLock()
        if asked.condition is None:
            asked.condition = fresh
        return asked.condition

    @property
    def _waiters(self) -> list[Any]:
        return self._ask().waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        return self._ask().callbacks

    # --- The outcome.

    def _was_asked(self) -> None:
        """Take note that somebody knows of the outcome."""
        with contextlib.suppress(AttributeError):  # it is set where a batch fails
            self._unasked.is_asked = True

    def _ask(self) -> _Asked:
        fresh = self._asked or _Asked()
        if self._asked is None:
            self._asked = fresh
        return self._asked

    def _finish(self, result: str | None, exception: BaseException | None) -> bool:
        """Set the outcome unless there is one, and tell who waits; return whether it was set.

        This locks the condition, which a thread of the user's may hold.
        """
        with self._condition:
            if self._state is FINISHED:
                return False
            self._result, self._exception, self._state = result, exception, FINISHED
            for waiter in self._waiters:
                if exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
        self._wake()
        return True

    def _wake(self) -> None:
        for wake in self._ask().wakes:
            wake.release()


def settle(
    batch: Sequence[PublishFuture],
    message_ids: Iterable[str | None],
    exception: BaseException | None,
) -> None:
    """Give the futures of a batch their outcome, all at once. Waits for no lock of the user's."""
    set_now: list[PublishFuture] = []
    locked: list[tuple[PublishFuture, str | None]] = []
    if exception is not None:
        unasked = _Unasked(len(batch), exception)
        for future in batch:
            asked = future._asked
            unasked.is_asked |= asked is not None and bool(asked.callbacks or asked.condition)
            future._unasked = unasked
    for future, message_id in zip(batch, message_ids, strict=False):
        if future._asked is None:
            # Nobody has asked, so nobody waits and there are no callbacks.
            future._result, future._exception, future._state = message_id, exception, FINISHED
            continue
        asked = future._asked
        if asked.condition is None:
            if future._state is not FINISHED:  # unless a test of the user's has set it
                future._result, future._exception, future._state = message_id, exception, FINISHED
                set_now.append(future)
            continue
        locked.append((future, message_id))
    for future in set_now:
        future._wake()
        _run_callbacks_later(future)
    for future, message_id in locked:
        threads.WORKERS.submit_urgent(_finish_later, future, message_id, exception)


def _finish_later(
    future: PublishFuture, message_id: str | None, exception: BaseException | None
) -> None:
    if future._finish(message_id, exception):
        _run_callbacks_later(future)


def _run_callbacks_later(future: PublishFuture) -> None:
    if future._done_callbacks:
        # A job a future: one that blocks holds up no other message, not even of its batch. In a
        # context of its own, so that what it sets there does not leak into other callbacks.
        threads.WORKERS.submit(contextvars.Context().run, _run_callbacks, future)


def _run_callbacks(future: PublishFuture) -> None:
    for callback in future._done_callbacks:
        try:
            _invoke(callback, future)
        except BaseException as error:  # noqa: BLE001 - a SystemExit must not skip the next one
            with contextlib.suppress(BaseException):  # nor one of a log handler's
                _report(callback, error)


def _invoke(callback: Callable[[Any], object], future: PublishFuture) -> None:
    try:
        callback(future)
    except Exception as error:  # noqa: BLE001 - it is the user's
        _report(callback, error)


def _report(callback: Callable[[Any], object], error: BaseException) -> None:
    log.write(logging.ERROR, "a done-callback of a publish failed: %r", callback, error=error)


def fail_after_fork(batch: Iterable[PublishFuture], error: BaseException) -> None:
    """Fail futures in a forked child, where nobody will resolve them.

    What was asked for is forgotten: conditions may be held by threads that the child does not
    have, and callbacks are called once, in the parent.
    """
    for future in batch:
        if future._state is not FINISHED:
            future._asked = None
            future._result, future._exception, future._state = None, error, FINISHED
