"""The retry strategy on a fake clock: formula, deadline, copies, validation."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import pickle
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from hedged_pubsub.retry import (
    AsyncTruncatedExponentialBackoff,
    TruncatedExponentialBackoff,
    is_transient,
)
from tests.fake_time import FakeTime

UNAVAILABLE = exceptions.ServiceUnavailable("down")
BUSY = exceptions.TooManyRequests("slow down")
DENIED = exceptions.Forbidden("no")


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Let waits take no time."""
    return FakeTime().install(monkeypatch)


@pytest.fixture(params=[TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff])
def either(request: pytest.FixtureRequest) -> Any:
    """Return the class for functions, and that for coroutines."""
    return request.param


def call(function: Callable[[], object], strategy: Any, **options: Any) -> Any:
    """Call a function with a strategy, as a coroutine if the strategy is for those."""
    if isinstance(strategy, TruncatedExponentialBackoff):
        return strategy(function, **options)()

    async def coroutine() -> object:
        return function()

    async def main() -> object:
        return await strategy(coroutine, **options)()

    return asyncio.run(main())


def failing(*errors: BaseException) -> Callable[..., str]:
    """Make a function that raises its errors in turn, then succeeds."""
    left = iter(errors)

    def function(_: object = None) -> str:
        for error in left:
            raise error
        return "done"

    return function


def asking_to_wait(seconds: float) -> Exception:
    """Make an UNAVAILABLE with a RetryInfo."""
    delay = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
    return exceptions.ServiceUnavailable("busy", details=[RetryInfo(retry_delay=delay)])


# --- The formula


@pytest.mark.parametrize("maximum", [0.25, 1.0, 1.5, 5.0, 32.0, 64.0])
def test_the_waits_are_those_of_the_formula(either: Any, maximum: float, time: FakeTime) -> None:
    """Wait n is 2**n and a random fraction, drawn each time, until it is cut at the maximum."""
    random.seed(4711)
    errors = [UNAVAILABLE] * 1100  # neither the formula nor the memory overflows
    assert call(failing(*errors), either(maximum, deadline=None)) == "done"
    random.seed(4711)
    assert time.waits == [min(2 ** min(n, 9) + random.random(), maximum) for n in range(1100)]


def test_waits_of_calls_under_way_at_once_do_not_mix() -> None:
    """One object serves many calls: each has a sequence of its own."""
    strategy = TruncatedExponentialBackoff()
    first, second = strategy.backoffs(), strategy.backoffs()
    assert 1 <= first(UNAVAILABLE) <= 2 <= first(UNAVAILABLE) <= 3
    assert 1 <= second(UNAVAILABLE) <= 2
    assert 4 <= first(UNAVAILABLE) <= 5


# --- The deadline, and what the server asks for


@pytest.mark.parametrize(("deadline", "waits"), [(1.0, [0.5, 0.5]), (0.999, [0.5]), (0.4, [])])
def test_a_wait_may_end_at_the_deadline_and_not_later(
    either: Any, deadline: float, waits: list[float], time: FakeTime
) -> None:
    """Else the call gives up at once, with the last error as the cause, as api-core does."""
    errors = [exceptions.ServiceUnavailable(f"down {number}") for number in range(3)]
    with pytest.raises(exceptions.RetryError, match=f"{deadline:.1f}") as caught:
        call(failing(*errors), either(0.5, deadline))
    assert time.waits == waits
    assert caught.value.cause is caught.value.__cause__ is errors[len(waits)]


def test_what_servers_ask_for_and_attempts_take(either: Any, time: FakeTime) -> None:
    """A wait is no shorter than a RetryInfo says; the time of attempts counts, too."""
    errors = [asking_to_wait(seconds) for seconds in (7.25, 0.5, 3.5, 100.0, 0.0, 0.0)]
    attempt = failing(*errors)

    def function() -> str:
        time.now += 10
        return attempt()

    strategy = either(4.0, deadline=174.0)
    with pytest.raises(exceptions.RetryError) as caught:
        call(function, strategy)
    first, second, *others = time.waits
    assert first == 7.25
    assert 2 <= second <= 3
    assert others == [4.0, 100.0, 4.0]
    assert caught.value.cause is errors[5], "the attempts took a minute"


# --- What is retried


@pytest.mark.parametrize("errors", [[DENIED], [UNAVAILABLE, DENIED], [BUSY]])
def test_an_error_that_is_not_transient_is_raised_as_it_is(
    either: Any, errors: list[Exception], time: FakeTime
) -> None:
    """The very object, at once, whether it is the first error or a later one."""
    with pytest.raises(type(errors[-1])) as caught:
        call(failing(*errors), either())
    assert caught.value is errors[-1]
    assert len(time.waits) == len(errors) - 1


def test_a_predicate_of_the_users(either: Any, time: FakeTime) -> None:
    """It decides alone, with ``is_transient`` if it likes; what is no ``Exception`` ends all."""

    def is_timeout(error: Exception) -> bool:
        return isinstance(error, TimeoutError)

    both = either().with_predicate(lambda error: is_transient(error) or is_timeout(error))
    assert call(failing(UNAVAILABLE, TimeoutError()), both) == "done"
    assert len(time.waits) == 2
    for error, predicate in ((UNAVAILABLE, is_timeout), (KeyboardInterrupt(), lambda _: True)):
        with pytest.raises(type(error)):
            call(failing(error), either().with_predicate(predicate))
    assert len(time.waits) == 2


def test_a_wait_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for its next attempt ends when it is cancelled."""
    monkeypatch.undo()  # the wait is a real one

    async def main() -> None:
        failed = asyncio.Event()

        @AsyncTruncatedExponentialBackoff(on_error=lambda _: failed.set())
        async def fail() -> None:
            raise UNAVAILABLE

        task = asyncio.ensure_future(fail())
        await failed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_on_error_is_told_of_what_is_retried(either: Any) -> None:
    """Of each transient error, also of the one that is given up on; what it raises is raised.

    One that is passed with the function stands in where the strategy has none.
    """
    told: list[Exception] = []
    with pytest.raises(exceptions.Forbidden):
        call(failing(UNAVAILABLE, DENIED), either(on_error=told.append), on_error=print)
    with pytest.raises(exceptions.RetryError):
        call(failing(UNAVAILABLE), either(deadline=0.5), on_error=told.append)
    assert told == [UNAVAILABLE] * 2
    with pytest.raises(LookupError):
        call(failing(UNAVAILABLE), either(on_error=failing(LookupError())), on_error=told.append)
    assert len(told) == 2


# --- A Retry among others


def test_it_is_a_retry_of_api_core(either: Any) -> None:
    """The one is a ``Retry``, the other an ``AsyncRetry``, and both are made alike."""
    is_sync = either is TruncatedExponentialBackoff
    assert [issubclass(either, kind) for kind in (Retry, AsyncRetry)] == [is_sync, not is_sync]
    parameters = inspect.signature(either).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "maximum_backoff": 32.0,
        "deadline": 300.0,
        "retry_too_many_requests": False,
        "on_error": None,
    }


@pytest.mark.parametrize(
    ("method", "arguments", "maximum", "deadline"),
    [
        ("timeout", {"timeout": 50}, 4, 50),
        ("timeout", {"timeout": None}, 4, None),
        ("deadline", {"deadline": timedelta(minutes=1)}, 4, 60),
        ("predicate", {"predicate": lambda _: True}, 4, 100),
        ("delay", {"initial": 1, "maximum": 2, "multiplier": 2}, 2, 100),
        ("delay", {}, 4, 100),
    ],
)
def test_copies_keep_the_strategy(
    either: Any, method: str, arguments: Any, maximum: float, deadline: float, time: FakeTime
) -> None:
    """Each ``with_`` changes its one thing in a copy of the same class; the rest stays."""
    told: list[Exception] = []
    original = either(4, 100, True, told.append)
    before = vars(original).copy()
    changed = getattr(original, f"with_{method}")(**arguments)
    assert vars(original) == before
    assert type(changed) is either
    assert changed is not original
    assert changed.timeout == changed.deadline == changed._deadline == deadline
    assert changed.maximum_backoff == maximum
    assert call(failing(*[BUSY] * 4), changed) == "done"
    assert len(told) == 4
    assert 1 <= time.waits[0] <= 2 <= time.waits[1]
    assert time.waits[3] == maximum


def test_it_can_be_copied_and_pickled(either: Any) -> None:
    """So it can be handed to another process; ``repr`` says what it is made of.

    Copies of a subclass are of the subclass, whatever its constructor takes.
    """
    strategy = either(64, None, retry_too_many_requests=True, on_error=print)
    for twin in (strategy, copy.deepcopy(strategy), pickle.loads(pickle.dumps(strategy))):  # noqa: S301
        assert repr(twin).startswith(f"<{either.__name__} maximum_backoff=64, deadline=None, ")
        assert "is_transient" in repr(twin)
        assert "print" in str(twin)
        assert twin.backoffs()(UNAVAILABLE) >= 1
    subclass: Any = type("Own", (either,), {"__init__": lambda self: either.__init__(self, 8.0)})
    own = subclass().with_timeout(5).with_predicate(bool).with_delay(maximum=2)
    assert type(own) is subclass
    assert (own.maximum_backoff, own.deadline) == (2, 5)


# --- A decorator


def test_decorating_a_function(either: Any, time: FakeTime) -> None:
    """It keeps its name and kind, takes its arguments, and is retried with the same ones."""
    seen: list[tuple[int, str]] = []

    def fetch(number: int, *, text: str) -> str:
        """Fetch something."""
        seen.append((number, text))
        if len(seen) < 3:
            raise ConnectionResetError
        return text * number

    async def fetch_async(number: int, *, text: str) -> str:
        """Fetch something."""
        return fetch(number, text=text)

    is_sync = either is TruncatedExponentialBackoff
    decorated = either(maximum_backoff=64.0)(fetch if is_sync else fetch_async)
    assert inspect.iscoroutinefunction(decorated) is not is_sync
    called = decorated(2, text="ab")
    assert (called if is_sync else asyncio.run(called)) == "abab"
    assert seen == [(2, "ab")] * 3
    assert decorated.__name__ == ("fetch" if is_sync else "fetch_async")
    assert decorated.__doc__ == "Fetch something."
    assert len(time.waits) == 2


def test_a_coroutine_function_is_refused_where_it_would_not_be_retried() -> None:
    """And one is warned of an asynchronous client's method, which just returns an awaitable."""

    async def fetch() -> str:
        return "done"

    with pytest.raises(TypeError, match="use AsyncTruncatedExponentialBackoff"):
        TruncatedExponentialBackoff()(fetch)
    with pytest.warns(UserWarning, match="use AsyncTruncatedExponentialBackoff"):
        awaitable = TruncatedExponentialBackoff()(lambda: fetch())()
    assert asyncio.run(awaitable) == "done"


# --- Its values


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(timedelta(hours=1), 3600.0), (5, 5.0), (None, None), (math.inf, None)],
    ids=str,
)
def test_the_deadline_is_kept_in_seconds(either: Any, given: Any, seconds: float | None) -> None:
    """``None`` and infinity are no deadline; to api-core it is always ``None``."""
    strategy = either(timedelta(minutes=1), given)
    assert strategy.maximum_backoff == 60.0
    assert strategy.deadline == strategy.timeout == strategy._deadline == seconds
    if seconds is None:
        assert call(failing(*[UNAVAILABLE] * 100), strategy) == "done"


@pytest.mark.parametrize(
    ("copier", "name", "error", "values"),
    [
        ("", "maximum_backoff", ValueError, [0, -1.5, math.nan, math.inf, 10**400, timedelta(0)]),
        ("", "maximum_backoff", TypeError, ["32", True, None, print]),
        ("", "deadline", ValueError, [0, -300.0, math.nan, -math.inf]),
        ("", "deadline", TypeError, ["300", False]),
        ("", "retry_too_many_requests", TypeError, [1, "no"]),
        ("", "on_error", TypeError, ["log", ()]),
        ("timeout", "timeout", ValueError, [0]),
        ("deadline", "deadline", TypeError, ["5"]),
        ("predicate", "predicate", TypeError, [503]),
        ("delay", "maximum", ValueError, [math.inf]),
        ("delay", "initial", ValueError, [0.5]),
        ("delay", "multiplier", ValueError, [3]),
    ],
)
def test_what_is_refused(
    either: Any, copier: str, name: str, error: type[Exception], values: list[Any]
) -> None:
    """The error names the argument and its value; a copy is checked as the constructor checks."""
    make = getattr(either(), f"with_{copier}") if copier else either
    for value in values:
        with pytest.raises(error, match=name) as caught:
            make(**{name: value})
        assert repr(value) in str(caught.value)
