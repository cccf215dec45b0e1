"""A virtual clock for the driver, and requests that a test answers by hand."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from hedged_pubsub._sync.driver import Call, Driver
from hedged_pubsub._sync.scheduler import Scheduler, Wakeup
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub.events import ORIGINAL, Fail, Failed
from hedged_pubsub.settings import HedgingSettings

from .story import Transient


class VirtualTime(Scheduler):
    """A scheduler without a thread: time passes when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Wakeup]] = []

    def clock(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Wakeup:
        """Call back once the time has come."""
        wakeup = Wakeup(callback, args)
        heapq.heappush(self._due, (when, next(self._numbers), wakeup))
        return wakeup

    def advance(self, until: float) -> None:
        """Let time pass, and call back on the way."""
        while self._due and self._due[0][0] <= until:
            when, _, wakeup = heapq.heappop(self._due)
            if wakeup.callback is not None:
                self.now = max(self.now, when)
                wakeup.callback(*wakeup.args)
        self.now = max(self.now, until)

    @property
    def pending(self) -> int:
        """How many wake-ups are alive."""
        return sum(wakeup.callback is not None for _, _, wakeup in self._due)


class Inline(Workers):
    """Workers without threads: a job runs where it is submitted."""

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Run the job now."""
        function(*args)


class FakeCall:
    """A request under way; the test succeeds or fails it."""

    def __init__(self, attempt: int, timeout: float | None) -> None:
        self.attempt = attempt
        self.timeout = timeout
        self.cancelled = False
        self.error: BaseException | None = None
        self.answer: object = None
        self._callback: Callable[[Call], None] | None = None

    def add_done_callback(self, callback: Callable[[Call], None]) -> None:
        """Keep the callback."""
        self._callback = callback

    def cancel(self) -> None:
        """Note it, and report it as gRPC does."""
        self.cancelled = True
        if self._callback is not None:
            self.fail(RuntimeError("cancelled locally"))

    def succeed(self, answer: object = "answer") -> None:
        """Answer the request."""
        self.answer = answer
        self._report()

    def fail(self, error: BaseException) -> None:
        """Fail the request."""
        self.error = error
        self._report()

    def _report(self) -> None:
        if self._callback is not None:
            callback, self._callback = self._callback, None
            callback(self)


class FakeBatch:
    """A batch whose requests are answered by hand, and which notes its outcome."""

    def __init__(
        self, *, total_timeout: float = math.inf, backoffs: tuple[float, ...] | None = (0.1,)
    ) -> None:
        self.topic = "topic"
        self.total_timeout = total_timeout
        self.calls: list[FakeCall] = []
        self.outcomes: list[object] = []
        self.judged: list[BaseException] = []
        self.on_send: Callable[[FakeCall], None] = lambda _: None
        self._backoffs = iter(backoffs or ())

    def send(self, attempt: int, timeout: float | None) -> Call:
        """Start a request."""
        call = FakeCall(attempt, timeout)
        self.calls.append(call)
        self.on_send(call)
        return call

    def cancel(self, call: Call) -> None:
        """Cancel a request."""
        assert isinstance(call, FakeCall)
        call.cancel()

    def outcome(self, call: Call) -> object:
        """Return the answer or raise the error."""
        assert isinstance(call, FakeCall)
        if call.error is not None:
            raise call.error
        return call.answer

    def judge(self, error: BaseException) -> Failed:
        """Call ``Transient`` transient."""
        self.judged.append(error)
        transient = isinstance(error, Transient)
        backoff = next(self._backoffs, None) if transient else None
        return Failed(ORIGINAL, error, transient=transient, backoff=backoff)

    def succeed(self, answer: object, attempt: int) -> None:
        """Note the success."""
        self.outcomes.append((answer, attempt))

    def fail(self, failure: Fail) -> None:
        """Note the failure."""
        self.outcomes.append(failure)


def virtual_driver(settings: HedgingSettings | None = None) -> tuple[Driver, VirtualTime]:
    """Make a driver on virtual time."""
    time = VirtualTime()
    workers = Inline(time, time.clock)
    return Driver(settings or HedgingSettings(), time, workers, time.clock), time
