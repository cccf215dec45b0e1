"""The strategy inside the attempt engine, on virtual time."""

from __future__ import annotations

import pytest
from google.api_core import exceptions, gapic_v1
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from hedged_pubsub.call_policy import CallPolicies, CallPolicy
from hedged_pubsub.events import Fail, Failed
from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff
from hedged_pubsub.settings import HedgingSettings

from .fakes import FakeBatch, virtual_driver

_UNAVAILABLE = exceptions.ServiceUnavailable("down")
_DENIED = exceptions.PermissionDenied("no")


def policy(strategy: object, *, asynchronous: bool = False) -> CallPolicy:
    """Make the policy of a publisher with this strategy."""
    return CallPolicy(strategy, 60.0, is_transient=lambda _: False, asynchronous=asynchronous)


class PolicyBatch(FakeBatch):
    """A batch that asks a policy about its original's errors."""

    def __init__(self, strategy: TruncatedExponentialBackoff) -> None:
        made = policy(strategy)
        super().__init__(total_timeout=made.total_timeout)
        self._state = made.start_call()

    def judge(self, error: BaseException) -> Failed:
        """Ask the policy."""
        return self._state.judge(error)


def test_the_original_backs_off_by_the_formula() -> None:
    """It is sent again after 1 to 2 s, then after 2 to 3 s, and not before."""
    driver, time = virtual_driver()
    batch = PolicyBatch(TruncatedExponentialBackoff())
    driver.submit(batch)
    for number, (earliest, latest) in enumerate([(1, 2), (2, 3), (4, 5)], start=1):
        failed_at = time.now
        batch.calls[-1].fail(_UNAVAILABLE)
        time.advance(failed_at + earliest - 0.001)
        assert len(batch.calls) == number
        time.advance(failed_at + latest)
        assert len(batch.calls) == number + 1
    batch.calls[-1].succeed()
    assert batch.outcomes == [("answer", 0)]


def test_hedges_go_on_beside_the_backoff() -> None:
    """A hedge that was sent before the original failed may win while that one waits."""
    settings = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2)
    driver, time = virtual_driver(settings)
    for _ in range(5):
        earning = FakeBatch()
        driver.submit(earning)
        earning.calls[0].succeed()
    batch = PolicyBatch(TruncatedExponentialBackoff())
    driver.submit(batch)
    time.advance(0.1)
    original, hedge = batch.calls
    original.fail(_UNAVAILABLE)
    time.advance(0.9)
    assert len(batch.calls) == 2
    hedge.succeed()
    assert batch.outcomes == [("answer", 1)]
    time.advance(10)
    assert len(batch.calls) == 2


def test_the_deadline_ends_the_batch() -> None:
    """Where the next wait would pass it, the batch fails at once, as out of time."""
    driver, time = virtual_driver()
    batch = PolicyBatch(TruncatedExponentialBackoff(deadline=6.0))
    driver.submit(batch)
    while not batch.outcomes:
        batch.calls[-1].fail(_UNAVAILABLE)
        time.advance(time.now + (3 if not batch.outcomes else 0))
    assert batch.outcomes == [Fail(_UNAVAILABLE, retry_timed_out=True)]
    assert time.now <= 6.0


def test_what_the_server_asks_for_is_waited() -> None:
    """A RetryInfo lengthens the backoff."""
    state = policy(TruncatedExponentialBackoff()).start_call()
    info = RetryInfo(retry_delay=Duration(seconds=7))
    asked = state.judge(exceptions.ServiceUnavailable("busy", details=[info]))
    assert asked.backoff == 7
    usual = state.judge(_UNAVAILABLE)
    assert usual.backoff is not None
    assert 2 <= usual.backoff <= 3


def test_what_is_transient_is_the_strategys_to_say() -> None:
    """Its predicate, and its ``on_error``, are asked as for any other call."""
    heard: list[Exception] = []
    exhausted = exceptions.ResourceExhausted("quota")
    state = policy(TruncatedExponentialBackoff(on_error=heard.append)).start_call()
    assert state.judge(_DENIED) == Failed(0, _DENIED)
    assert state.judge(exhausted) == Failed(0, exhausted)
    assert state.judge(_UNAVAILABLE).transient
    assert heard == [_UNAVAILABLE]
    asked = policy(TruncatedExponentialBackoff(retry_too_many_requests=True)).start_call()
    assert asked.judge(exhausted).transient


@pytest.mark.parametrize(("deadline", "total"), [(30, 30), (None, float("inf"))])
def test_the_total_timeout_is_the_deadline(deadline: float | None, total: float) -> None:
    """It bounds hedges and resends alike."""
    assert policy(TruncatedExponentialBackoff(deadline=deadline)).total_timeout == total


def test_a_hedge_delay_past_the_deadline_is_refused() -> None:
    """The check names both."""
    default = gapic_v1.method.DEFAULT
    with pytest.raises(ValueError, match=r"hedge_delay \(1 s\) must be below .*\(0\.5 s\)"):
        CallPolicies(
            options_retry=TruncatedExponentialBackoff(deadline=0.5),
            options_timeout=default,
            method_retry=None,
            method_timeout=60.0,
            hedge_delay=1.0,
        )


@pytest.mark.parametrize(
    "strategy_class", [TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff]
)
def test_the_asynchronous_publisher_takes_either(
    strategy_class: type[TruncatedExponentialBackoff] | type[AsyncTruncatedExponentialBackoff],
) -> None:
    """It follows the formula too."""
    state = policy(strategy_class(maximum_backoff=3.5), asynchronous=True).start_call()
    first, second, third = [state.judge(_UNAVAILABLE).backoff for _ in range(3)]
    assert first is not None
    assert second is not None
    assert 1 <= first <= 2 <= second <= 3
    assert third == 3.5


def test_the_asynchronous_strategy_is_for_the_asynchronous_publisher() -> None:
    """The other publisher refuses it, and says what it takes."""
    with pytest.raises(TypeError, match=r"retry must be a google\.api_core\.retry\.Retry"):
        policy(AsyncTruncatedExponentialBackoff())
