"""The future of one message: the official one, made cheap.

An ordinary future costs a condition, a lock and two lists, all of them walked by the cyclic
garbage collector for as long as the message is under way. Here the messages of a batch share one
condition, since they are decided together, and it and the lists are only made when somebody asks.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures._base import FINISHED, PENDING
from typing import Any, cast

from google.cloud.pubsub_v1.publisher import futures

_LOGGER = logging.getLogger(__name__)

# Guards whether a batch has a condition. It is held while the futures of a batch that has none get
# their outcome: nobody waits for those, nor is anybody to be called.
_asking_lock = threading.Lock()


def start_anew() -> None:
    """Forget, in a forked child, a thread that held the lock in the parent."""
    global _asking_lock
    _asking_lock = threading.Lock()


class SharedCondition:
    """The condition of a batch's futures, which most batches never need.

    Attributes:
        made: The condition, once somebody has asked for it. It is reentrant, because
            ``concurrent.futures.wait`` acquires the condition of each future that it is given.
    """

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: threading.Condition | None = None

    def get(self) -> threading.Condition:
        """Return the condition."""
        if self.made is None:
            with _asking_lock:
                if self.made is None:
                    self.made = threading.Condition()
        return self.made


class PublishFuture(futures.Future):  # type: ignore[misc]
    """A future of a message id.

    It is a ``concurrent.futures.Future`` for everyone who looks: the attributes that the standard
    library's ``wait``, ``as_completed`` and ``asyncio.wrap_future`` reach into are all there.

    Args:
        condition: That of the batch.
    """

    __slots__ = (
        "_exception",
        "_lazy_callbacks",
        "_lazy_waiters",
        "_result",
        "_shared",
        "_state",
    )

    def __init__(self, condition: SharedCondition) -> None:
        # Not the base class's: it makes what this class is there to spare.
        self._shared = condition
        self._state = PENDING
        self._result: str | None = None
        self._exception: BaseException | None = None
        self._lazy_waiters: list[Any] | None = None
        self._lazy_callbacks: list[Callable[[Any], object]] | None = None

    @property
    def _condition(self) -> threading.Condition:
        return self._shared.get()

    @property
    def _waiters(self) -> list[Any]:
        if self._lazy_waiters is None:
            self._lazy_waiters = []
        return self._lazy_waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        if self._lazy_callbacks is None:
            self._lazy_callbacks = []
        return self._lazy_callbacks

    def done(self) -> bool:
        """Return whether the message is stored or has failed."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> str:
        """Return the message id, once the message is stored.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes.

        Raises:
            concurrent.futures.TimeoutError: If the message is undecided after ``timeout``.
            Exception: What the publish failed with.
        """
        exception = self.exception(timeout)
        if exception is not None:
            try:
                raise exception
            finally:
                # Break the cycle of the traceback, this frame and the exception.
                del exception, self
        return cast("str", self._result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the publish failed with, or ``None`` once the message is stored.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes.

        Raises:
            concurrent.futures.TimeoutError: If the message is undecided after ``timeout``.
        """
        if self._state != FINISHED:
            # In a loop, unlike the base class: the condition is shared, so a wake-up can be
            # another future's.
            condition = self._condition
            with condition:
                if not condition.wait_for(self.done, timeout):
                    raise concurrent.futures.TimeoutError
        return self._exception

    def set_result(self, result: str) -> None:
        """Resolve this future alone. For the library and for tests of the user's."""
        self._set_alone(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail this future alone. For the library and for tests of the user's."""
        self._set_alone(None, exception)

    def _set_alone(self, result: str | None, exception: BaseException | None) -> None:
        condition = self._condition
        with condition:
            if self._state == FINISHED:
                raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")
            self._set(result, exception)
            condition.notify_all()
        self._invoke_callbacks()

    def _set(self, result: str | None, exception: BaseException | None) -> None:
        """Set the outcome; the condition is held, and notified afterwards."""
        self._result = result
        self._exception = exception
        self._state = FINISHED  # last: it is read without the condition
        for waiter in self._lazy_waiters or ():
            if exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)


def settle(
    batch: Sequence[PublishFuture],
    shared: SharedCondition,
    message_ids: Iterable[str | None],
    exception: BaseException | None,
    run_callbacks: Callable[[PublishFuture], object],
) -> None:
    """Give the futures of a batch their outcome, all at once.

    Args:
        batch: The futures.
        shared: Their condition.
        message_ids: What each is resolved with; ``None`` for each of a batch that failed.
        exception: What all fail with, or ``None``.
        run_callbacks: Called with each future that has callbacks, when all have their outcome.
    """
    with _asking_lock:
        condition = shared.made
        if condition is None:
            # Nobody has asked, so nobody waits and there are no callbacks.
            for future, message_id in zip(batch, message_ids, strict=False):
                future._set(message_id, exception)
            return
    called = []
    with condition:
        for future, message_id in zip(batch, message_ids, strict=False):
            if future._state == PENDING:  # else a test of the user's has set it
                future._set(message_id, exception)
                if future._lazy_callbacks:
                    called.append(future)
        condition.notify_all()
    for future in called:
        run_callbacks(future)


def orphan(batch: Sequence[PublishFuture], error: BaseException) -> None:
    """Fail futures in a forked child, where nobody will resolve them.

    Their condition may be held by a thread that the child does not have. Their callbacks are not
    called: each is called once, in the parent.
    """
    condition = SharedCondition()
    for future in batch:
        future._shared = condition
        future._lazy_waiters = future._lazy_callbacks = None
        if future._state == PENDING:
            future._set(None, error)


def invoke_callbacks(future: PublishFuture) -> None:
    """Run a future's callbacks, each once, whatever they raise."""
    for callback in future._done_callbacks:
        try:
            callback(future)
        except BaseException:  # a SystemExit must not keep the next one from being called
            _LOGGER.exception("a done-callback of a publish failed: %r", callback)
