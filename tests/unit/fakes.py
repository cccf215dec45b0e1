"""A virtual clock for the driver, and requests that a test answers by hand."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from google.api_core.exceptions import RetryError
from google.cloud.pubsub_v1.types import PublishFlowControl

from hedged_pubsub._core import log
from hedged_pubsub._core.events import ORIGINAL, Failed
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import HedgingStats
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.messages import encode_message
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.flow_control import FlowControl
from hedged_pubsub._sync.future import PublishFuture
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub._sync.workers import Workers

from .story import Scenario, Transient, line


class VirtualTime(LibraryThread):
    """The library's thread without a thread: time passes when a test says so."""

    def __init__(self) -> None:
        super().__init__(self.clock)
        self.now = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.put = self._take

    def _take(self, item: Any) -> None:
        if isinstance(item, tuple):
            function, args = item
            function(*args)
        else:
            item.take()

    def clock(self) -> float:
        return self.now

    def start(self) -> bool:
        return True

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def call_at(self, when: float, function: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), function, args))

    def advance(self, until: float) -> None:
        """Let time pass, and call back on the way."""
        while self._due and self._due[0][0] <= until:
            when, _, function, args = heapq.heappop(self._due)
            self.now = max(self.now, when)
            function(*args)
        self.now = max(self.now, until)

    def advance_to_next(self) -> None:
        """Let time pass until the next timer is due, and a very little more."""
        self.advance(math.nextafter(self._due[0][0], math.inf))

    @property
    def pending(self) -> int:
        return len(self._due)


class Inline(Workers):
    """Workers without threads: a job runs where it is submitted."""

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)

    submit_urgent = submit


class FakePolicy:
    """A call policy, and its state, that calls ``Transient`` transient."""

    every_timeout = None
    has_constant_timeout = True
    asks_user = True

    def __init__(self, total_timeout: float, backoffs: tuple[float, ...]) -> None:
        self.total_timeout = total_timeout
        self.judged: list[BaseException] = []
        self._backoffs = iter(backoffs)

    def start_call(self) -> FakePolicy:
        return self

    def judge(self, error: BaseException) -> Failed:
        self.judged.append(error)
        is_transient = isinstance(error, Transient)
        backoff = next(self._backoffs, None) if is_transient else None
        return Failed(ORIGINAL, error, transient=is_transient, backoff=backoff)


class FakeBatch(PublishBatch):
    """A batch of one message, which knows its requests; ``on_send`` is called with each."""

    def __init__(
        self,
        *,
        topic: str = "topic",
        total_timeout: float = math.inf,
        backoffs: tuple[float, ...] = (0.1,),
        policy: Any = None,
        future: Any = None,
        on_send: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self.policy: Any = policy or FakePolicy(total_timeout, backoffs)
        super().__init__(topic, cast("Any", self.policy), has_extras=False)
        self.future = PublishFuture() if future is None else future
        self.messages = [self.future]
        self.count = 1
        self.calls: list[Any] = []
        self.on_send = on_send

    def serialize(self) -> Any:
        """Return the batch itself: the fake method that is called with it tells it of the call."""
        return self

    def sent(self, call: Any) -> None:
        self.calls.append(call)
        self.on_send(call)

    @property
    def attempts(self) -> list[int]:
        return [call.attempt for call in self.calls]

    @property
    def error(self) -> BaseException | None:
        error: BaseException | None = self.future.exception() if self.future.done() else None
        return error

    @property
    def outcome(self) -> str:
        """The outcome in the words of a story; empty before there is one."""
        if not self.future.done():
            return ""
        error = self.error
        if error is None:
            return f"resolve {self.future.result()}"
        if isinstance(error, RetryError):
            assert error.__cause__ is error.cause
            return f"fail {type(error.cause).__name__} retry timed out"
        return f"fail {type(error).__name__}"


class FakeCall:
    """A request under way; the test succeeds or fails it."""

    def __init__(self, attempt: int, timeout: float | None) -> None:
        self.attempt = attempt
        self.timeout = timeout
        self.cancelled = False
        self.result: Callable[[], Any]
        self._callback: Callable[[FakeCall], object] | None = None

    def add_done_callback(self, callback: Callable[[FakeCall], object]) -> None:
        self._callback = callback

    def cancel(self) -> None:
        """Note it, and report it as gRPC does."""
        self.cancelled = True
        self.fail(RuntimeError("cancelled locally"))

    def succeed(self, *ids: str) -> None:
        """Answer the request: with the number of the attempt for an id, unless told."""
        response = SimpleNamespace(message_ids=list(ids) or [str(self.attempt)])
        self._report(lambda: response)

    def fail(self, error: BaseException) -> None:
        self._report(refuse(error))

    def _report(self, result: Callable[[], Any]) -> None:
        self.result = result
        if self._callback is not None:
            callback, self._callback = self._callback, None
            callback(self)


class FakeMethod:
    """Stands in for the publish method of a channel."""

    is_plain = True

    def __init__(self, _transport: object, channel: Any, **_: object) -> None:
        self.channel = channel

    def prepare(self, request: object) -> object:
        return request

    def arguments(self, topic: str, attempt: int, publish_start_time: float) -> dict[str, int]:
        """Return the attempt, for the request to have."""
        return {"attempt": attempt}

    def start(self, batch: FakeBatch, timeout: float | None, *, attempt: int) -> FakeCall:
        call = FakeCall(attempt, timeout)
        batch.sent(call)
        return call


class FakeChannel:
    """A channel that a test connects."""

    def __init__(self, *, is_ready: bool = False) -> None:
        self.is_ready = is_ready
        self.connects: list[float] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeRpc(PublishRpc):
    """The requests of a publisher whose channels are fake ones."""

    method_class = cast("Any", FakeMethod)

    def __init__(
        self, time: VirtualTime, make_channel: Callable[[], FakeChannel] | None = None
    ) -> None:
        super().__init__(
            cast("Any", None), make_channel, time, Inline(time, time.clock), time.clock
        )

    def _connect(self, channel: FakeChannel | None) -> bool:
        if channel is None:  # the client's
            return True
        channel.connects.append(self._clock())
        return channel.is_ready


def message(
    data: bytes, attributes: dict[str, str] | None = None, *, start: float = 0.0, future: Any = None
) -> Any:
    """Make a message, which is its future, as it stands in a mailbox."""
    made = PublishFuture() if future is None else future
    made.prefix, made.body, _ = encode_message(data, dict(attributes or {}))
    made.start_time, made.permit, made.tracing = start, None, None
    return made


class Bench:
    """A driver, and batches that it is to send."""

    driver: Any
    stats: Callable[..., HedgingStats]
    batch: Callable[..., FakeBatch]
    advance: Callable[..., object]
    clock: Callable[[], float]
    call_at: Callable[..., object]

    def play(self, scenario: Scenario) -> tuple[FakeBatch, list[str]]:
        """Send a batch whose requests are answered as a scenario has it; return its story, too.

        The story grows by a line for each request, and has none for what is only counted.
        """
        story: list[str] = []
        begun, replies = self.clock(), scenario.replies

        def on_send(call: Any) -> None:
            limit = "" if call.timeout is None else f" for {call.timeout:g} s"
            story.append(line(self.clock() - begun, f"start {call.attempt}{limit}"))
            reply = next(replies)
            if reply.after < math.inf:
                answer = call.succeed if reply.error is None else partial(call.fail, reply.error())
                self.call_at(self.clock() + reply.after, answer)

        times = {"total_timeout": scenario.total_timeout, "backoffs": scenario.backoffs}
        return self.send(on_send=on_send, **times), story

    def send(self, **arguments: Any) -> FakeBatch:
        batch = self.batch(**arguments)
        self.driver.submit(batch)
        return batch

    def hedged(self) -> FakeBatch:
        """Send a batch and wait for its hedge."""
        batch = self.send()
        self.advance(1.0)
        return batch


class Threads(Bench):
    """A driver on virtual time that has some tokens."""

    driver_class = Driver

    def __init__(
        self,
        settings: HedgingSettings | None = None,
        tokens: int = 1,
        flow: PublishFlowControl = PublishFlowControl(),  # noqa: B008 - a named tuple
    ) -> None:
        self.time = time = VirtualTime()
        self.clock, self.call_at = time.clock, time.call_at
        self.rpc: Any = FakeRpc(time)
        self.flow_control, self.workers = FlowControl(flow), Inline(time, time.clock)
        settings = settings or HedgingSettings()
        self.driver = self.driver_class(
            settings, self.rpc, self.flow_control, time, self.workers, time.clock
        )
        self.batch, self.stats = FakeBatch, self.driver.stats
        for _ in range(tokens * 10):
            self.send().calls[0].succeed()

    def advance(self, seconds: float = 0.0) -> None:
        self.time.advance(self.time.now + seconds)

    def end(self, batch: FakeBatch) -> str:
        """Let time pass until there is an outcome."""
        while not batch.outcome:
            self.time.advance_to_next()
        return batch.outcome


def refuse(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@contextmanager
def handled(do: Callable[[logging.LogRecord], object]) -> Iterator[None]:
    """Call a function with each record that the package logs, of any level."""
    handler, level = logging.Handler(), log.LOGGER.level
    handler.emit = do  # type: ignore[method-assign, assignment]
    log.LOGGER.addHandler(handler)
    log.LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.LOGGER.setLevel(level)
        log.LOGGER.removeHandler(handler)


def fail_to_log(record: logging.LogRecord) -> None:
    """Raise, as a user's handler may."""
    raise ZeroDivisionError(record.getMessage())
