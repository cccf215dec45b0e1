"""The caller's retry and timeout, interpreted."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from google.api_core import exceptions, gapic_v1
from google.api_core.retry import Retry, if_exception_type
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, ExponentialTimeout, TimeToDeadlineTimeout
from google.cloud.pubsub_v1.publisher.exceptions import PublishError

from hedged_pubsub.call_policy import CallPolicies, CallPolicy
from hedged_pubsub.events import ORIGINAL, Failed

_DEFAULT = gapic_v1.method.DEFAULT
_TRANSIENT = if_exception_type(exceptions.ServiceUnavailable)
_UNAVAILABLE = exceptions.ServiceUnavailable("down")
_DENIED = exceptions.PermissionDenied("no")


def policy(retry: Any = None, timeout: Any = 60.0) -> CallPolicy:
    """Make a policy that calls UNAVAILABLE transient."""
    return CallPolicy(retry, timeout, is_transient=_TRANSIENT)


@pytest.mark.parametrize(
    ("timeout", "first", "rpc_timeout"),
    [
        (5, 5, 5),
        (0.5, 0.5, 0.5),
        (None, None, math.inf),
        (ConstantTimeout(7), 7, 7),
        (ConstantTimeout(None), None, math.inf),
        (TimeToDeadlineTimeout(8), 8, 8),
        (ExponentialTimeout(initial=2, maximum=9), 2, 2),
    ],
)
def test_timeouts(timeout: Any, first: float | None, rpc_timeout: float) -> None:
    """Every kind of timeout that the official client takes gives the request what it would."""
    interpreted = policy(timeout=timeout)
    assert interpreted.rpc_timeout == rpc_timeout
    assert interpreted.start_call().next_timeout() == pytest.approx(first, abs=0.1)


def test_a_growing_timeout_grows_from_attempt_to_attempt() -> None:
    """Each batch starts the sequence anew, and each attempt takes the next of it."""
    interpreted = policy(timeout=ExponentialTimeout(initial=1, maximum=5, multiplier=2))
    for _ in range(2):
        state = interpreted.start_call()
        assert [state.next_timeout() for _ in range(4)] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("retry", "timeout", "total"),
    [
        (Retry(timeout=30), 60, 30),
        (Retry(timeout=None), 60, math.inf),
        (None, 60, 60),
        (None, None, math.inf),
    ],
)
def test_total_timeout(retry: Any, timeout: Any, total: float) -> None:
    """It is the retry's; without a retry the request has all the time there is."""
    assert policy(retry, timeout).total_timeout == total


def test_a_permanent_error() -> None:
    """What the predicate does not call transient fails for good."""
    assert policy(Retry(_TRANSIENT)).start_call().judge(_DENIED) == Failed(ORIGINAL, _DENIED)


def test_backoffs_are_those_of_the_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits are drawn as api-core draws them, anew for each batch."""
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    interpreted = policy(Retry(_TRANSIENT, initial=1, maximum=5, multiplier=2))
    for _ in range(2):
        state = interpreted.start_call()
        assert [state.judge(_UNAVAILABLE).backoff for _ in range(4)] == [1, 2, 4, 5]


def test_without_a_retry_a_transient_error_is_known_as_such() -> None:
    """It is not retried, and a hedge in flight may still save the batch (R6)."""
    state = policy(None).start_call()
    assert state.judge(_UNAVAILABLE) == Failed(ORIGINAL, _UNAVAILABLE, transient=True)
    assert state.judge(_DENIED) == Failed(ORIGINAL, _DENIED)


def test_on_error_hears_of_transient_errors_only() -> None:
    """As in api-core's retry loop."""
    heard: list[Exception] = []
    state = policy(Retry(_TRANSIENT, on_error=heard.append)).start_call()
    state.judge(_UNAVAILABLE)
    state.judge(_DENIED)
    assert heard == [_UNAVAILABLE]


def test_what_is_no_answer_of_the_service_is_not_judged() -> None:
    """Too few ids, and what is no ``Exception``, fail for good whatever the predicate says."""
    everything = Retry(lambda _: True)
    for error in (PublishError("too few"), KeyboardInterrupt()):
        assert policy(everything).start_call().judge(error) == Failed(ORIGINAL, error)


def test_a_message_that_grpc_refuses_for_its_size_is_not_sent_again() -> None:
    """It has the status of an exhausted quota, but will be refused every time."""
    retry = Retry(if_exception_type(exceptions.ResourceExhausted))
    too_large = exceptions.ResourceExhausted(
        "CLIENT: Received message larger than max (5000062 vs. 4194304)"
    )
    quota = exceptions.ResourceExhausted("Quota exceeded")
    assert policy(retry).start_call().judge(too_large) == Failed(ORIGINAL, too_large)
    assert policy(retry).start_call().judge(quota).transient


@pytest.mark.parametrize("retry", ["often", 3, True, AsyncRetry(), _DEFAULT], ids=repr)
def test_a_retry_of_another_type(retry: Any) -> None:
    """Only what can be interpreted is taken; an ``AsyncRetry`` is for asyncio."""
    with pytest.raises(TypeError, match=r"retry must be a google\.api_core\.retry\.Retry"):
        policy(retry)


@pytest.mark.parametrize("timeout", ["5", True, _DEFAULT, [1]], ids=repr)
def test_a_timeout_of_another_type(timeout: Any) -> None:
    """A text or a truth value is no timeout."""
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        policy(timeout=timeout)


def test_the_default_policy_is_made_once() -> None:
    """A publish that names neither retry nor timeout costs no new policy."""
    policies = CallPolicies(
        options_retry=_DEFAULT,
        options_timeout=30.0,
        method_retry=Retry(_TRANSIENT, timeout=600),
        method_timeout=60.0,
        hedge_delay=1.0,
    )
    default = policies.get(_DEFAULT, _DEFAULT)
    assert default is policies.get(_DEFAULT, _DEFAULT)
    assert (default.rpc_timeout, default.total_timeout) == (30.0, 600.0)
    other = policies.get(_DEFAULT, 5.0)
    assert (other.rpc_timeout, other.total_timeout) == (5.0, 600.0)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (_DEFAULT, None),
        (_DEFAULT, Retry(timeout=8)),
        (Retry(timeout=9), None),
        (Retry(timeout=9), Retry(timeout=8)),
    ],
)
def test_options_come_before_the_methods_defaults(options: Any, method: Any) -> None:
    """The publisher options' retry is used; where they name none, the generated method's."""
    policies = CallPolicies(
        options_retry=options,
        options_timeout=_DEFAULT,
        method_retry=method,
        method_timeout=7.0,
        hedge_delay=1.0,
    )
    expected = 9 if options is not _DEFAULT else 7 if method is None else 8
    assert policies.get(_DEFAULT, _DEFAULT).total_timeout == expected
    assert policies.get(_DEFAULT, _DEFAULT).rpc_timeout == 7
