"""The caller's retry and timeout, interpreted."""

from __future__ import annotations

import math
import random
from datetime import datetime, timezone
from typing import Any

import pytest
from google.api_core import exceptions, gapic_v1
from google.api_core.retry import Retry, if_exception_type
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, ExponentialTimeout, TimeToDeadlineTimeout
from google.cloud.pubsub_v1.publisher.exceptions import PublishError
from google.cloud.pubsub_v1.types import PublisherOptions
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from hedged_pubsub._core.events import ORIGINAL, Failed
from hedged_pubsub._google.call_policy import CallPolicies, CallPolicy
from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff

_DEFAULT = gapic_v1.method.DEFAULT
_TRANSIENT = if_exception_type(exceptions.ServiceUnavailable)
_UNAVAILABLE = exceptions.ServiceUnavailable("down")
_DENIED = exceptions.PermissionDenied("no")
_QUOTA = exceptions.ResourceExhausted("Quota exceeded")
_TOO_LARGE = exceptions.ResourceExhausted(
    "CLIENT: Received message larger than max (5000062 vs. 4194304)"
)


def policy(retry: Any = None, timeout: Any = 60.0, **kind: bool) -> CallPolicy:
    """Make a policy that calls UNAVAILABLE transient."""
    return CallPolicy(retry, timeout, is_transient=_TRANSIENT, **kind)


def policies(
    *,
    hedge_delay: float | None = 1.0,
    method_retry: Any = Retry(_TRANSIENT, timeout=600),  # noqa: B008 - it has no state
    method_timeout: Any = 60.0,
    **options: Any,
) -> CallPolicies:
    """Make the policies of a publisher: in seconds 60 a request, 600 in all, hedges after 1."""
    kind = {"asynchronous": options.pop("asynchronous")} if "asynchronous" in options else {}
    named = PublisherOptions(**{"retry": _DEFAULT, "timeout": _DEFAULT} | options)
    return CallPolicies(named, (method_retry, method_timeout), hedge_delay, **kind)


@pytest.mark.parametrize(
    ("timeout", "first", "constant"),
    [
        (5, 5, False),
        (0.5, 0.5, False),
        (None, None, True),
        (ConstantTimeout(7), 7, True),
        (ConstantTimeout(None), None, True),
        (TimeToDeadlineTimeout(8), 8, False),
        (ExponentialTimeout(initial=2, maximum=9), 2, False),
    ],
)
def test_timeouts(timeout: Any, first: float | None, constant: bool) -> None:
    """Every kind of timeout that the official client takes gives the request what it would."""
    interpreted = policy(timeout=timeout)
    assert interpreted.rpc_timeout == (math.inf if first is None else first)
    assert interpreted.start_call().next_timeout() == pytest.approx(first, abs=0.1)
    assert interpreted.has_constant_timeout == constant
    if constant:
        assert interpreted.every_timeout == first


def test_a_timeout_is_as_long_as_it_was_made_though_time_passes() -> None:
    """On a busy machine its clock has gone on when it is asked."""
    times = (datetime(2030, 1, 1, 0, 0, second, tzinfo=timezone.utc) for second in range(60))
    timeout = TimeToDeadlineTimeout(8, clock=lambda: next(times))
    assert policy(timeout=timeout).rpc_timeout == 8


@pytest.mark.parametrize(
    ("retry", "total"),
    [
        (Retry(timeout=30), 30),
        (Retry(timeout=None), math.inf),
        (TruncatedExponentialBackoff(deadline=30), 30),
        (TruncatedExponentialBackoff(deadline=None), math.inf),
        (None, 60),
    ],
)
def test_total_timeout(retry: Any, total: float) -> None:
    """It is the retry's; without a retry the request has all the time there is."""
    assert policy(retry, 60).total_timeout == total
    assert policy(None, None).total_timeout == math.inf


@pytest.mark.parametrize(
    ("retry", "error", "is_transient"),
    [
        (Retry(_TRANSIENT), _UNAVAILABLE, True),
        (Retry(_TRANSIENT), _DENIED, False),
        # Without a retry it is known as such: a hedge in flight may still save the batch (R6).
        (None, _UNAVAILABLE, True),
        (None, _DENIED, False),
        # What is no answer of the service fails for good, whatever the predicate says.
        (Retry(lambda _: True), PublishError("too few"), False),
        (Retry(lambda _: True), KeyboardInterrupt(), False),
        # gRPC refuses a message for its size, with the status of a quota, every time.
        (Retry(lambda _: True), _QUOTA, True),
        (Retry(lambda _: True), _TOO_LARGE, False),
        (TruncatedExponentialBackoff(), _UNAVAILABLE, True),
        (TruncatedExponentialBackoff(), _DENIED, False),
        (TruncatedExponentialBackoff(), _QUOTA, False),
        (TruncatedExponentialBackoff(retry_too_many_requests=True), _QUOTA, True),
    ],
)
def test_which_errors_are_transient(retry: Any, error: BaseException, is_transient: bool) -> None:
    """The retry's predicate says it, and only of answers of the service."""
    failed = policy(retry).start_call().judge(error)
    assert failed == Failed(ORIGINAL, error, transient=is_transient, backoff=failed.backoff)
    assert (failed.backoff is not None) == (is_transient and retry is not None)


def test_backoffs_and_growing_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn as api-core draws them, each attempt the next, each batch from the first."""
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    growing: dict[str, Any] = {"initial": 1, "maximum": 5, "multiplier": 2}
    interpreted = policy(Retry(_TRANSIENT, **growing), ExponentialTimeout(**growing))
    for _ in range(2):
        state = interpreted.start_call()
        assert [state.judge(_UNAVAILABLE).backoff for _ in range(4)] == [1, 2, 4, 5]
        assert [state.next_timeout() for _ in range(4)] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("strategy_class", "asynchronous"),
    [
        (TruncatedExponentialBackoff, False),
        (TruncatedExponentialBackoff, True),
        (AsyncTruncatedExponentialBackoff, True),
    ],
)
def test_backoffs_are_those_of_the_strategy(strategy_class: Any, asynchronous: bool) -> None:
    """They follow its formula, or what the server asks for in a RetryInfo."""
    state = policy(strategy_class(maximum_backoff=4.5), asynchronous=asynchronous).start_call()
    info = RetryInfo(retry_delay=Duration(seconds=7))
    asked = exceptions.ServiceUnavailable("busy", details=[info])
    errors = (_UNAVAILABLE, asked, _UNAVAILABLE, _UNAVAILABLE)
    first, second, third, fourth = [state.judge(error).backoff or 0 for error in errors]
    assert 1 <= first <= 2
    assert second == 7
    assert 4 <= third <= 4.5 == fourth


@pytest.mark.parametrize("retry_class", [Retry, TruncatedExponentialBackoff])
def test_on_error_is_told_of_transient_errors_only(retry_class: Any) -> None:
    """As in api-core's retry loop."""
    told: list[Exception] = []
    state = policy(retry_class(on_error=told.append)).start_call()
    for error in (_UNAVAILABLE, _DENIED):
        state.judge(error)
    assert told == [_UNAVAILABLE]


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("retry", ["often", 3, True, AsyncRetry(), AsyncTruncatedExponentialBackoff()], TypeError),
        ("timeout", ["5", True, [1]], TypeError),
        ("timeout", [math.nan], ValueError),
    ],
    ids=["retry", "timeout", "nan"],
)
def test_what_cannot_be_interpreted(name: str, values: list[Any], error: type[Exception]) -> None:
    """It is refused, also where it cannot be hashed; an ``AsyncRetry`` is for asyncio."""
    for value in values:
        for make in (policies, policies().get):
            with pytest.raises(error, match=f"{name} must be a "):
                make(**{"retry": _DEFAULT, "timeout": _DEFAULT} | {name: value})
    assert policies(retry=AsyncRetry(timeout=9), asynchronous=True).default.total_timeout == 9
    with pytest.raises(TypeError, match="retry must be a "):
        policy(AsyncRetry())


def test_equal_arguments_have_one_policy() -> None:
    """A publish that names neither retry nor timeout costs no new policy; memory is bounded."""
    made = policies(timeout=30.0)
    default = made.get(_DEFAULT, _DEFAULT)
    assert default is made.default
    assert (default.rpc_timeout, default.total_timeout) == (30.0, 600.0)
    other = made.get(_DEFAULT, 5.0)
    assert other is made.get(_DEFAULT, float("5"))  # another object
    assert (other.rpc_timeout, other.total_timeout) == (5.0, 600.0)
    counts = []
    for timeout in range(2, 102):
        made.get(Retry(timeout=timeout), _DEFAULT)
        counts.append(len(made._made))
    assert max(counts) == 64


class Listener:
    """Has methods to be told of errors."""

    def on_error(self, error: Exception) -> None:
        """Do nothing."""

    def on_other_error(self, error: Exception) -> None:
        """Do nothing, either."""


_LISTENER = Listener()
_TOLD: list[Exception] = []


@pytest.mark.parametrize("retry_class", [Retry, AsyncRetry])
def test_retries_that_say_the_same_share_a_policy(retry_class: Any) -> None:
    """Some programs make a new one for each publish; each would be a batch of its own."""
    get = policies(asynchronous=True).get
    usual: dict[str, Any] = {
        "predicate": _TRANSIENT,
        "initial": 0.5,
        "timeout": 9,
        "on_error": _LISTENER.on_error,
    }
    policy = get(retry_class(**usual), 5.0)
    same = if_exception_type(exceptions.ServiceUnavailable)
    assert policy is get(retry_class(**usual), 5.0)
    assert policy is get(retry_class(**usual | {"predicate": same}), 5.0)
    assert policy is get(retry_class(**usual | {"timeout": 3}).with_timeout(9), 5.0)
    others: list[dict[str, Any]] = [
        *({"predicate": lambda _: True}, {"predicate": if_exception_type(KeyError)}),
        *({"initial": 0.6}, {"maximum": 7}, {"multiplier": 3}, {"timeout": None}),
        *({"on_error": Listener().on_error}, {"on_error": _LISTENER.on_other_error}),
        {"on_error": None},
    ]
    made = {policy, *(get(retry_class(**usual | other), 5.0) for other in others)}
    assert len(made) == 1 + len(others)


@pytest.mark.parametrize(
    "make",
    [
        TruncatedExponentialBackoff,
        lambda: TruncatedExponentialBackoff(retry_too_many_requests=True),
        lambda: TruncatedExponentialBackoff().with_predicate(if_exception_type(KeyError)),
        lambda: Retry(on_error=_TOLD.append),
        lambda: type("Mine", (Retry,), {})(),
    ],
)
def test_a_strategy_of_ours_is_told_apart_in_the_same_way(make: Any) -> None:
    """So is one whose functions are made anew each time; a subclass is not its base."""
    made = policies()
    one, two = make(), make()
    assert (made.get(one, 5.0) is made.get(two, 5.0)) == (type(one) is type(two))
    assert made.get(one, 5.0) is not made.get(Retry(), 5.0)


@pytest.mark.parametrize(
    "timeout_class", [ConstantTimeout, TimeToDeadlineTimeout, ExponentialTimeout]
)
def test_timeouts_that_say_the_same_share_a_policy(timeout_class: Any) -> None:
    """As for retries."""
    get = policies().get
    assert get(_DEFAULT, timeout_class(5)) is get(_DEFAULT, timeout_class(5))
    assert get(_DEFAULT, timeout_class(5)) is not get(_DEFAULT, timeout_class(6))


def test_a_retry_with_a_loop_of_its_own_is_refused() -> None:
    """It would not be called, and what it does beside its attributes would not be done."""

    class Own(Retry):
        def __call__(self, func: Any, on_error: Any = None) -> Any:
            return func

    for make in (lambda: policies(retry=Own()), lambda: policies().get(Own(), _DEFAULT)):
        with pytest.raises(TypeError, match="retry must not have a __call__ of its own, as Own"):
            make()


@pytest.mark.parametrize("huge", [math.inf, 1e300, 1e9])
def test_a_huge_timeout_is_no_limit(huge: float) -> None:
    """What no clock can count to would fail each batch."""
    for timeout in (huge, ConstantTimeout(huge), TimeToDeadlineTimeout(huge)):
        made = policies().get(Retry(timeout=huge), timeout)
        assert (made.rpc_timeout, made.total_timeout) == (math.inf, math.inf)
        assert made.start_call().next_timeout() is None


def test_a_timeout_that_equals_another_is_not_taken_for_it() -> None:
    """Of equal ones of two types, one may be refused; and what has no hash is not looked up."""
    made = policies(hedge_delay=None)
    assert made.get(_DEFAULT, 1).rpc_timeout == 1
    with pytest.raises(TypeError, match="timeout must be"):
        made.get(_DEFAULT, True)

    unhashable: Any = type("Unhashable", (ConstantTimeout,), {"__hash__": None})
    unusual = made.get(Retry(timeout=9), unhashable(5))
    assert (unusual.rpc_timeout, unusual.total_timeout) == (5, 9)
    kept = [made.get(_DEFAULT, ConstantTimeout(seconds)).rpc_timeout for seconds in (6, 7)]
    assert kept == [6, 7]


def test_without_a_retry_the_methods_tells_what_is_transient() -> None:
    """A batch that is not sent again may still be saved by a hedge in flight (R6)."""
    for method_retry in (Retry(_TRANSIENT), None):
        once = policies(method_retry=method_retry).get(None, 5.0).start_call()
        assert once.judge(_UNAVAILABLE).transient is (method_retry is not None)
        assert not once.judge(_DENIED).transient


def test_options_come_before_the_methods_defaults() -> None:
    """The publisher options' retry is used; where they name none, the generated method's."""
    eight, nine = Retry(timeout=8), Retry(timeout=9)
    for retry, method, total in (
        *((_DEFAULT, None, 60), (_DEFAULT, eight, 8)),
        *((nine, None, 9), (nine, eight, 9)),
    ):
        made = policies(retry=retry, method_retry=method)
        assert (made.default.total_timeout, made.default.rpc_timeout) == (total, 60)


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 1.0},
        {"retry": Retry(timeout=1.0)},
        {"retry": TruncatedExponentialBackoff(deadline=1.0)},
    ],
    ids=["timeout", "retry", "strategy"],
)
def test_the_hedge_delay_must_be_below_both_timeouts(arguments: dict[str, Any]) -> None:
    """The error names both values (R12); without hedging there is nothing to check."""
    for delay in (None, 0.999):
        policies(hedge_delay=delay, **arguments)
    for delay in (1.0, 1.5):
        with pytest.raises(ValueError, match=rf"hedge_delay \({delay:g} s\) .*\(1 s\)"):
            policies(hedge_delay=delay, **arguments)
