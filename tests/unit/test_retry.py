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
from typing import Any, Protocol

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import retry
from hedged_pubsub.retry import (
    AsyncTruncatedExponentialBackoff,
    TruncatedExponentialBackoff,
    is_transient,
)
from tests.fake_time import FakeTime

Strategy = TruncatedExponentialBackoff | AsyncTruncatedExponentialBackoff

BOTH = pytest.mark.parametrize(
    "strategy_class", [TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff]
)
UNAVAILABLE = exceptions.ServiceUnavailable("down")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Let waits take no time."""
    return FakeTime().install(monkeypatch)


class Call(Protocol):
    """Calls a function with a strategy."""

    def __call__(self, function: Callable[[], object], strategy: Strategy, **options: Any) -> Any:
        """Return what the function returns in the end."""


def call(function: Callable[[], object], strategy: Strategy, **options: Any) -> Any:
    """Call a function with a strategy, as a coroutine if the strategy is for those."""
    if isinstance(strategy, TruncatedExponentialBackoff):
        return strategy(function, **options)()

    async def coroutine() -> object:
        return function()

    async def main() -> object:
        return await strategy(coroutine, **options)()

    return asyncio.run(main())


class Failing:
    """A function that raises its errors in turn, then the last one for ever or succeeds."""

    def __init__(self, *errors: Exception, for_ever: bool = False) -> None:
        self.calls = 0
        self._errors = errors
        self._for_ever = for_ever

    def __call__(self) -> str:
        """Raise the next error, or return a text."""
        self.calls += 1
        if self.calls <= len(self._errors):
            raise self._errors[self.calls - 1]
        if self._for_ever:
            raise self._errors[-1]
        return "done"


def asking_to_wait(seconds: float) -> Exception:
    """Make an UNAVAILABLE with a RetryInfo."""
    delay = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
    return exceptions.ServiceUnavailable("busy", details=[RetryInfo(retry_delay=delay)])


# --- The formula


@BOTH
def test_the_waits_are_those_of_the_formula(strategy_class: Any, time: FakeTime) -> None:
    """Wait n is 2**n and a random fraction, drawn anew, until it is cut at the maximum."""
    random.seed(4711)
    assert call(Failing(*[UNAVAILABLE] * 8), strategy_class(deadline=None)) == "done"
    random.seed(4711)
    assert time.waits == [min(2**n + random.random(), 32.0) for n in range(8)]
    assert time.waits[5:] == [32.0] * 3


@BOTH
@pytest.mark.parametrize("maximum", [0.25, 1.0, 1.5, 5.0, 64.0])
def test_no_wait_is_longer_than_the_maximum(
    strategy_class: Any, maximum: float, time: FakeTime
) -> None:
    """Every maximum cuts the waits, one below the first wait too."""
    call(Failing(*[UNAVAILABLE] * 9), strategy_class(maximum, None))
    assert max(time.waits) == time.waits[-1] == maximum


def test_a_call_may_fail_for_days(time: FakeTime) -> None:
    """Neither the formula nor the memory overflows in thousands of failures."""
    failing = Failing(*[UNAVAILABLE] * 3000)
    assert call(failing, TruncatedExponentialBackoff(deadline=None)) == "done"
    assert set(time.waits[5:]) == {32.0}


def test_two_clients_do_not_wait_alike(time: FakeTime) -> None:
    """The random fraction differs from client to client and from wait to wait."""
    for _ in range(2):
        call(Failing(*[UNAVAILABLE] * 5), TruncatedExponentialBackoff())
    fractions = [wait % 1 for wait in time.waits]
    assert len(set(fractions)) == 10


def test_waits_of_calls_under_way_at_once_do_not_mix() -> None:
    """One object serves many calls: each has a sequence of its own."""
    strategy = TruncatedExponentialBackoff()
    first, second = strategy.backoffs(), strategy.backoffs()
    assert 1 <= first(UNAVAILABLE) <= 2 <= first(UNAVAILABLE) <= 3
    assert 1 <= second(UNAVAILABLE) <= 2
    assert 4 <= first(UNAVAILABLE) <= 5


@given(
    maximum=st.floats(min_value=1e-3, max_value=1e4),
    waits_in_deadline=st.floats(min_value=0.01, max_value=40),
    attempts=st.lists(st.floats(min_value=0, max_value=100), min_size=1),
    asked=st.lists(st.sampled_from([0.0, 0.0, 0.5, 7.25, 100.0]), min_size=1),
    seed=st.integers(),
    asynchronous=st.booleans(),
)
def test_every_wait_and_their_sum_are_in_bounds(
    maximum: float,
    waits_in_deadline: float,
    attempts: list[float],
    asked: list[float],
    seed: int,
    asynchronous: bool,
) -> None:
    """Whatever attempts take and servers ask for, no wait is out of bounds or past the deadline."""
    random.seed(seed)
    deadline = maximum * waits_in_deadline
    with pytest.MonkeyPatch.context() as monkeypatch:
        time = FakeTime().install(monkeypatch)
        start, calls = time.now, 0

        def function() -> None:
            nonlocal calls
            assert time.now <= start + deadline
            time.now += attempts[calls % len(attempts)]
            calls += 1
            raise asking_to_wait(asked[(calls - 1) % len(asked)])

        strategy = AsyncTruncatedExponentialBackoff if asynchronous else TruncatedExponentialBackoff
        with pytest.raises(exceptions.RetryError):
            call(function, strategy(maximum, deadline))

    assert calls == len(time.waits) + 1
    assert sum(time.waits) <= deadline + 1e-9  # the sum is rounded otherwise than the clock
    for n, wait in enumerate(time.waits):
        floor = asked[n % len(asked)]
        assert max(floor, min(2**n, maximum)) <= wait <= max(floor, min(2**n + 1, maximum))


# --- The deadline


@BOTH
def test_a_call_that_goes_on_failing_ends_at_the_deadline(
    strategy_class: Any, time: FakeTime
) -> None:
    """It raises ``RetryError`` with the last error as the cause, as api-core does."""
    start = time.now
    failing = Failing(UNAVAILABLE, exceptions.BadGateway("proxy"), for_ever=True)
    with pytest.raises(exceptions.RetryError, match=r"Timeout of 300\.0s exceeded") as caught:
        call(failing, strategy_class())
    assert isinstance(caught.value.__cause__, exceptions.BadGateway)
    assert caught.value.cause is caught.value.__cause__
    assert 300 - 33 < time.now - start <= 300
    assert failing.calls == len(time.waits) + 1


def test_no_wait_is_begun_that_would_pass_the_deadline(time: FakeTime) -> None:
    """The call gives up at once: sleeping first would not change the outcome."""
    failing = Failing(UNAVAILABLE, for_ever=True)
    with pytest.raises(exceptions.RetryError):
        call(failing, TruncatedExponentialBackoff(deadline=0.999))
    assert (failing.calls, time.waits) == (1, [])


def test_a_wait_may_end_at_the_deadline(time: FakeTime) -> None:
    """The last attempt may start just then."""
    failing = Failing(UNAVAILABLE, for_ever=True)
    with pytest.raises(exceptions.RetryError):
        call(failing, TruncatedExponentialBackoff(0.5, 1.0))
    assert time.waits == [0.5, 0.5]


def test_attempts_count_towards_the_deadline(time: FakeTime) -> None:
    """It is counted from the start of the first attempt, however long attempts take."""

    def slow() -> None:
        time.now += 9.5
        raise UNAVAILABLE

    with pytest.raises(exceptions.RetryError):
        call(slow, TruncatedExponentialBackoff(0.25, 10.0))
    assert time.waits == [0.25]


@pytest.mark.parametrize("deadline", [None, math.inf])
def test_without_a_deadline_a_call_goes_on(deadline: float | None, time: FakeTime) -> None:
    """``None`` and infinity are no deadline; to api-core it is always ``None``."""
    strategy = TruncatedExponentialBackoff(deadline=deadline)
    assert strategy.deadline is None
    assert strategy.timeout is None
    assert call(Failing(*[UNAVAILABLE] * 100), strategy) == "done"
    assert sum(time.waits) > 3000


# --- What the server asks for


@BOTH
def test_what_the_server_asks_for_is_the_least(strategy_class: Any, time: FakeTime) -> None:
    """It lengthens a wait, past the maximum too, and shortens none."""
    errors = [asking_to_wait(7.5), asking_to_wait(0.1), asking_to_wait(50), UNAVAILABLE]
    assert call(Failing(*errors), strategy_class(maximum_backoff=5)) == "done"
    asked, formula, asked_more, cut = time.waits
    assert (asked, asked_more, cut) == (7.5, 50, 5)
    assert 2 <= formula <= 3


def test_a_server_that_asks_for_more_than_there_is(time: FakeTime) -> None:
    """Nothing is slept for a time that would be cut short by the deadline."""
    with pytest.raises(exceptions.RetryError):
        call(Failing(asking_to_wait(11)), TruncatedExponentialBackoff(deadline=10))
    assert time.waits == []


# --- What is retried


@BOTH
def test_an_error_that_is_not_transient_is_raised_as_it_is(
    strategy_class: Any, time: FakeTime
) -> None:
    """The very object, at once, whether it is the first error or a later one."""
    denied = exceptions.Forbidden("no")
    for errors in ([denied], [UNAVAILABLE, denied]):
        failing = Failing(*errors)
        with pytest.raises(exceptions.Forbidden) as caught:
            call(failing, strategy_class())
        assert caught.value is denied
        assert failing.calls == len(errors)
    assert len(time.waits) == 1


@BOTH
def test_too_many_requests_only_when_asked_for(strategy_class: Any, time: FakeTime) -> None:
    """429 is raised at once by default, and retried if the user says so."""
    busy = exceptions.TooManyRequests("slow down")
    with pytest.raises(exceptions.TooManyRequests):
        call(Failing(busy), strategy_class())
    assert time.waits == []
    assert call(Failing(busy), strategy_class(retry_too_many_requests=True)) == "done"
    assert len(time.waits) == 1


def test_what_is_no_exception_is_let_through(time: FakeTime) -> None:
    """An interrupted program ends, whatever the predicate would say."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(interrupted, TruncatedExponentialBackoff().with_predicate(lambda _: True))
    assert time.waits == []


def test_a_wait_can_be_cancelled() -> None:
    """A task that waits for its next attempt ends when it is cancelled."""

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


# --- on_error


@BOTH
def test_on_error_hears_of_what_is_retried(strategy_class: Any, time: FakeTime) -> None:
    """It is called with each transient error, the one that is given up on included."""
    heard: list[Exception] = []
    denied = exceptions.Forbidden("no")
    with pytest.raises(exceptions.Forbidden):
        call(Failing(UNAVAILABLE, denied), strategy_class(on_error=heard.append))
    assert heard == [UNAVAILABLE]
    with pytest.raises(exceptions.RetryError):
        call(Failing(UNAVAILABLE), strategy_class(deadline=0.5, on_error=heard.append))
    assert heard == [UNAVAILABLE] * 2


@BOTH
@pytest.mark.usefixtures("time")
def test_on_error_of_the_call_stands_in(strategy_class: Any) -> None:
    """As in api-core, the strategy's own comes first."""
    own: list[Exception] = []
    other: list[Exception] = []
    call(Failing(UNAVAILABLE), strategy_class(), on_error=other.append)
    call(Failing(UNAVAILABLE), strategy_class(on_error=own.append), on_error=other.append)
    assert (len(own), len(other)) == (1, 1)


def test_what_on_error_raises_is_raised(time: FakeTime) -> None:
    """So a user can stop a call early."""

    def stop(_: Exception) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        call(Failing(UNAVAILABLE), TruncatedExponentialBackoff(on_error=stop))
    assert time.waits == []


# --- A Retry among others


def test_it_is_a_retry_of_api_core() -> None:
    """The one is a ``Retry``, the other an ``AsyncRetry``, and neither is both."""
    assert isinstance(TruncatedExponentialBackoff(), Retry)
    assert not isinstance(TruncatedExponentialBackoff(), AsyncRetry)
    assert isinstance(AsyncTruncatedExponentialBackoff(), AsyncRetry)
    assert not isinstance(AsyncTruncatedExponentialBackoff(), Retry)


@BOTH
def test_the_signature_and_its_defaults(strategy_class: Any) -> None:
    """Both are made alike."""
    parameters = inspect.signature(strategy_class).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "maximum_backoff": 32.0,
        "deadline": 300.0,
        "retry_too_many_requests": False,
        "on_error": None,
    }


@BOTH
def test_copies_keep_the_strategy(strategy_class: Any, time: FakeTime) -> None:
    """Each ``with_`` changes its one thing in a copy of the same class; the rest stays."""
    heard: list[Exception] = []
    original = strategy_class(4, 100, True, heard.append)
    before = vars(original).copy()
    copies = {
        "timeout": original.with_timeout(50),
        "deadline": original.with_deadline(timedelta(minutes=1)),
        "predicate": original.with_predicate(lambda _: True),
        "delay": original.with_delay(initial=1, maximum=2, multiplier=2),
        "nothing": original.with_delay(),
    }
    assert vars(original) == before
    for changed in copies.values():
        assert type(changed) is strategy_class
        assert changed is not original
        heard.clear()
        time.waits.clear()
        assert call(Failing(*[exceptions.TooManyRequests("slow down")] * 4), changed) == "done"
        assert len(heard) == 4
        assert 1 <= time.waits[0] <= 2 <= time.waits[1]
        assert time.waits[3] == changed.maximum_backoff
    assert {name: changed.deadline for name, changed in copies.items()} == {
        "timeout": 50,
        "deadline": 60,
        "predicate": 100,
        "delay": 100,
        "nothing": 100,
    }
    assert all(changed.timeout == changed.deadline for changed in copies.values())
    assert copies["delay"].maximum_backoff == 2
    assert original.with_timeout(None).deadline is None


@BOTH
def test_a_predicate_of_the_users(strategy_class: Any, time: FakeTime) -> None:
    """It decides alone; ``is_transient`` lets it add to what is retried anyway."""
    either = strategy_class().with_predicate(
        lambda error: is_transient(error) or isinstance(error, TimeoutError)
    )
    assert call(Failing(UNAVAILABLE, TimeoutError()), either) == "done"
    only = strategy_class().with_predicate(lambda error: isinstance(error, TimeoutError))
    with pytest.raises(exceptions.ServiceUnavailable):
        call(Failing(UNAVAILABLE), only)


@BOTH
def test_a_subclass_stays_itself(strategy_class: Any) -> None:
    """Copies of a subclass are of the subclass, whatever its constructor takes."""

    class Own(strategy_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(8.0)

    own = Own().with_timeout(5).with_predicate(bool).with_delay(maximum=2)
    assert type(own) is Own
    assert (own.maximum_backoff, own.deadline) == (2, 5)


@BOTH
def test_it_can_be_copied_and_pickled(strategy_class: Any) -> None:
    """So it can be part of a configuration that is handed to another process."""
    strategy = strategy_class(8, 80, retry_too_many_requests=True)
    for twin in (copy.deepcopy(strategy), pickle.loads(pickle.dumps(strategy))):  # noqa: S301
        assert str(twin) == str(strategy)
        assert twin.backoffs()(UNAVAILABLE) >= 1


@BOTH
def test_its_text(strategy_class: Any) -> None:
    """``str`` and ``repr`` say what it is made of."""
    strategy = strategy_class(64, None, on_error=print)
    for text in (str(strategy), repr(strategy)):
        assert text.startswith(f"<{strategy_class.__name__} maximum_backoff=64, deadline=None, ")
        assert "is_transient" in text
        assert "print" in text


# --- A decorator


def test_decorating_a_function(time: FakeTime) -> None:
    """It keeps its name, takes its arguments, and is retried with the same ones."""
    seen: list[tuple[int, str]] = []

    @TruncatedExponentialBackoff(maximum_backoff=64.0)
    def fetch(number: int, *, text: str) -> str:
        """Fetch something."""
        seen.append((number, text))
        if len(seen) < 3:
            raise ConnectionResetError
        return text * number

    assert fetch(2, text="ab") == "abab"
    assert seen == [(2, "ab")] * 3
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch something.")
    assert len(time.waits) == 2


def test_decorating_a_coroutine_function(time: FakeTime) -> None:
    """It stays one."""

    @AsyncTruncatedExponentialBackoff()
    async def fetch(number: int) -> int:
        if not time.waits:
            raise ConnectionResetError
        return number

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(fetch(7)) == 7
    assert len(time.waits) == 1


def test_a_coroutine_function_needs_the_other_class() -> None:
    """The mistake is told when the function is decorated, not by retries that never come."""

    async def fetch() -> None:
        """Fetch nothing."""

    with pytest.raises(TypeError, match="use AsyncTruncatedExponentialBackoff"):
        TruncatedExponentialBackoff()(fetch)


def test_a_function_that_returns_an_awaitable_is_warned_about() -> None:
    """Which is what an asynchronous client's method looks like."""

    async def main() -> str:
        async def fetch() -> str:
            return "done"

        with pytest.warns(UserWarning, match="use AsyncTruncatedExponentialBackoff"):
            awaitable = TruncatedExponentialBackoff()(lambda: fetch())()
        return await awaitable

    assert asyncio.run(main()) == "done"


# --- Validation


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"maximum_backoff": 0}, ValueError, "maximum_backoff must be above 0 and finite.*got 0"),
        ({"maximum_backoff": -1.5}, ValueError, r"maximum_backoff must be .*; got -1\.5"),
        ({"maximum_backoff": math.nan}, ValueError, "maximum_backoff must be .*; got nan"),
        ({"maximum_backoff": math.inf}, ValueError, "maximum_backoff must be .*; got inf"),
        ({"maximum_backoff": 10**400}, ValueError, "maximum_backoff must be"),
        ({"maximum_backoff": timedelta(0)}, ValueError, "maximum_backoff must be"),
        ({"maximum_backoff": "32"}, TypeError, "maximum_backoff must be a number.*got '32'"),
        ({"maximum_backoff": True}, TypeError, "maximum_backoff must be a number.*got True"),
        ({"maximum_backoff": None}, TypeError, "maximum_backoff must be a number.*got None"),
        ({"maximum_backoff": print}, TypeError, "maximum_backoff must be a number"),
        ({"deadline": 0}, ValueError, "deadline must be above 0, or None for no deadline; got 0"),
        ({"deadline": -300.0}, ValueError, r"deadline must be .*; got -300\.0"),
        ({"deadline": math.nan}, ValueError, "deadline must be .*; got nan"),
        ({"deadline": -math.inf}, ValueError, "deadline must be .*; got -inf"),
        ({"deadline": "300"}, TypeError, "deadline must be a number.*got '300'"),
        ({"deadline": False}, TypeError, "deadline must be a number.*got False"),
        ({"retry_too_many_requests": 1}, TypeError, "retry_too_many_requests must be True or F"),
        ({"retry_too_many_requests": "no"}, TypeError, "retry_too_many_requests must be.*'no'"),
        ({"on_error": "log"}, TypeError, "on_error must be a function.*or None; got 'log'"),
        ({"on_error": ()}, TypeError, r"on_error must be a function.*or None; got \(\)"),
    ],
)
def test_what_the_constructor_refuses(
    strategy_class: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The error names argument, value, bound and remedy."""
    with pytest.raises(error, match=message):
        strategy_class(**arguments)


@BOTH
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda it: it.with_timeout(0), ValueError, "timeout must be above 0"),
        (lambda it: it.with_deadline("5"), TypeError, "deadline must be a number"),
        (lambda it: it.with_predicate(503), TypeError, "predicate must be a function.*got 503"),
        (lambda it: it.with_delay(maximum=math.inf), ValueError, "maximum must be .*finite"),
        (lambda it: it.with_delay(initial=0.5), ValueError, "initial must be 1 .*got 0.5"),
        (lambda it: it.with_delay(multiplier=3), ValueError, "multiplier 2, as .*None and 3"),
    ],
)
def test_what_a_copy_refuses(
    strategy_class: Any, change: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    """A copy is checked as the constructor checks."""
    with pytest.raises(error, match=message):
        change(strategy_class())


@BOTH
def test_times_may_be_timedeltas(strategy_class: Any) -> None:
    """They are kept in seconds."""
    strategy = strategy_class(timedelta(minutes=1), timedelta(hours=1))
    assert (strategy.maximum_backoff, strategy.deadline) == (60.0, 3600.0)


def test_the_public_names() -> None:
    """The module says what is public, in order."""
    assert retry.__all__ == sorted(retry.__all__)
    assert all(hasattr(retry, name) for name in retry.__all__)
