"""The caller's retry and timeout, interpreted instead of called.

``google.api_core.retry.Retry`` sleeps between attempts, and nothing can wake it for a hedge. So its
predicate, waits and timeout are used one by one, as the attempt engine needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, Final

from google.api_core import exceptions, gapic_v1
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, TimeToDeadlineTimeout
from google.cloud.pubsub_v1.publisher.exceptions import PublishError
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub._core.events import ORIGINAL, Failed
from hedged_pubsub._google.official import backoffs, has_own_loop, key_of, nominal_timeout

_DEFAULT: Final = gapic_v1.method.DEFAULT

TOO_LARGE: Final = "message larger than max"
"""What gRPC, at either end, says of a message that it refuses for its size."""

_MAX_POLICIES: Final = 64
"""Policies to remember, in case a program makes another one for every call."""

_NO_LIMIT: Final = 1e9
"""Seconds; a timeout of thirty years is none. Clocks that count nanoseconds overflow above."""


class CallPolicy:
    """What a retry and a timeout, which ``publish()`` documents, mean for publish requests.

    ``is_transient`` tells which errors are transient where ``retry`` is ``None``: those are not
    retried, but a hedge in flight is waited for. An ``asynchronous`` one takes ``AsyncRetry`` too.
    ``asks_user`` tells whether the retry may be a user's, whose predicate may do anything.
    """

    def __init__(
        self,
        retry: object,
        timeout: object,
        *,
        is_transient: Callable[[Exception], bool],
        asynchronous: bool = False,
        asks_user: bool = True,
    ) -> None:
        self.asks_user = asks_user
        # An ``AsyncRetry`` says the same, but its ``on_error`` may be meant for an event loop.
        retries = (Retry, AsyncRetry) if asynchronous else (Retry,)
        if retry is not None and not isinstance(retry, retries):
            raise TypeError(
                "retry must be a google.api_core.retry.Retry or None for no retry, and cannot be "
                f"the name of an attribute; got {retry!r}"
            )
        if retry is not None and has_own_loop(retry):
            raise TypeError(
                f"retry must not have a __call__ of its own, as {type(retry).__name__} has: it "
                "would not be called, since its predicate, delays and timeout are used one by one; "
                "pass a google.api_core.retry.Retry"
            )
        self._timeout = _timeout_decorator(timeout)
        self._retry = retry
        self._is_transient = is_transient if retry is None else retry._predicate
        # The usual case, for which every batch would wrap a function to be told the same.
        self.has_constant_timeout = isinstance(self._timeout, (ConstantTimeout, NoneType))
        self.every_timeout = _limit(
            nominal_timeout(self._timeout)
        )  # if constant; None for no limit
        # Of the first request, and until nothing is sent any more: the retry's. Without a retry it
        # is the request's, since that is all the time there is.
        first = self.new_timeouts()() if self.every_timeout is None else self.every_timeout
        total = first if retry is None else _limit(retry._timeout)
        self.rpc_timeout = math.inf if first is None else first
        self.total_timeout = math.inf if total is None else total

    def check_hedge_delay(self, hedge_delay: float) -> None:
        """Raise ValueError unless the hedge delay is below both timeouts: it would never pass."""
        request = (self.rpc_timeout, "timeout of the publish request", "timeout")
        retry = (self.total_timeout, "retry timeout", "timeout of the retry")
        for timeout, whose, remedy in (request, retry):
            if hedge_delay >= timeout:
                raise ValueError(
                    f"hedge_delay ({hedge_delay:g} s) must be below the {whose} ({timeout:g} s): "
                    f"lower hedge_delay or raise the {remedy}"
                )

    def start_call(self) -> CallState:
        return CallState(self)

    def new_timeouts(self) -> Callable[[], float | None]:
        """Return a function that tells the timeout of each attempt of one call, in turn."""
        if self.has_constant_timeout:
            return lambda: self.every_timeout
        # api-core wraps the RPC in a timeout, once a call, and calls the result once an attempt,
        # with the timeout as an argument. Here the RPC is a function that returns it.
        wrap: Any = self._timeout
        timeouts: Callable[[], float | None] = wrap(lambda *, timeout=None: _limit(timeout))
        return timeouts


class CallState:
    """How far one batch has come in its policy. Used by one thread at a time."""

    __slots__ = ("_backoffs", "_policy", "next_timeout")

    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy
        self._backoffs: Callable[[Exception], float] | None = None
        self.next_timeout = policy.new_timeouts()

    def judge(self, error: BaseException) -> Failed:
        """Ask the policy, a user's code, about an error of the original, as api-core does."""
        if (
            not isinstance(error, Exception)
            # Too few message ids, with which the official client does not try again either.
            or isinstance(error, PublishError)
            # The status of an exhausted quota, but of gRPC itself, and again for every attempt.
            or (isinstance(error, exceptions.ResourceExhausted) and TOO_LARGE in str(error))
            or not self._policy._is_transient(error)
        ):
            return Failed(ORIGINAL, error)
        retry = self._policy._retry
        if retry is None:
            return Failed(ORIGINAL, error, transient=True)
        if retry._on_error is not None:
            retry._on_error(error)
        if self._backoffs is None:
            self._backoffs = backoffs(retry)
        return Failed(ORIGINAL, error, transient=True, backoff=self._backoffs(error))


class CallPolicies:
    """The policies of one publisher: the default one, and those of calls that name something else.

    ``defaults`` are the generated method's, for what the options leave at ``DEFAULT``.
    """

    def __init__(
        self,
        options: PublisherOptions,
        defaults: tuple[Retry | AsyncRetry | None, object],
        hedge_delay: float | None,
        *,
        asynchronous: bool = False,
    ) -> None:
        retry, timeout = defaults
        self._clients_retry = retry
        self._retry = retry if options.retry is _DEFAULT else options.retry
        self._timeout = timeout if options.timeout is _DEFAULT else options.timeout
        is_transient = (lambda _: False) if retry is None else retry._predicate
        self._make = partial(CallPolicy, is_transient=is_transient, asynchronous=asynchronous)
        self._hedge_delay = hedge_delay
        self._made: dict[object, CallPolicy] = {}
        self.default = self.get(_DEFAULT, _DEFAULT)

    def get(self, retry: object, timeout: object) -> CallPolicy:
        """Return the policy for these arguments, the same one for those that say the same."""
        retry = self._retry if retry is _DEFAULT else retry
        timeout = self._timeout if timeout is _DEFAULT else timeout
        # A number by its type too, since ``True == 1``.
        key = (key_of(retry), type(timeout), key_of(timeout))
        policy = self._made.get(key)
        if policy is None:
            policy = self._make(retry, timeout, asks_user=retry is not self._clients_retry)
            if self._hedge_delay is not None:
                policy.check_hedge_delay(self._hedge_delay)
            if len(self._made) >= _MAX_POLICIES:
                self._made.clear()
            self._made[key] = policy
        return policy


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None or timeout >= _NO_LIMIT else timeout


def _timeout_decorator(timeout: object) -> Callable[[Any], Any] | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        if math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds; got nan")
        decorator: Callable[[Any], Any] = TimeToDeadlineTimeout(timeout=timeout)
        return decorator
    if callable(timeout):
        return timeout
    raise TypeError(
        "timeout must be a number of seconds, None for no timeout, or a timeout of "
        f"google.api_core.timeout, and cannot be the name of an attribute; got {timeout!r}"
    )
