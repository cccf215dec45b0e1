"""The caller's retry and timeout, interpreted instead of called.

``google.api_core.retry.Retry`` sleeps between attempts, and nothing can wake it for a hedge. So its
predicate, waits and timeout are taken one by one, as the attempt engine needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, cast

from google.api_core import exceptions, gapic_v1
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, TimeToDeadlineTimeout
from google.cloud.pubsub_v1.publisher.exceptions import PublishError

from hedged_pubsub._official import nominal_timeout, retry_parts
from hedged_pubsub.events import ORIGINAL, Failed

_MAX_POLICIES: Final = 64
"""Policies to remember: more than a program names on purpose. One that makes a new ``Retry`` for
every call must not make this grow."""


class CallPolicy:
    """What a retry and a timeout mean for publish requests.

    Args:
        retry: A ``google.api_core.retry.Retry``, or ``None`` for no retry.
        timeout: Seconds, ``None`` for no timeout, or a timeout of ``google.api_core.timeout``.
        asynchronous: Whether an ``AsyncRetry`` is taken too.
        is_transient: Tells which errors are transient where ``retry`` is ``None``: those are not
            retried, but a hedge in flight is waited for.

    Attributes:
        given: The retry and the timeout as they were given.
        rpc_timeout: Seconds that the first request may take; ``math.inf`` for no limit.
        every_timeout: What a constant timeout gives each request; ``None`` for no limit.
        has_constant_timeout: Whether each request may take as long.
        total_timeout: Seconds after which nothing is sent any more; ``math.inf`` for no limit. The
            retry's timeout; without a retry the request's, since that is all the time there is.

    Raises:
        TypeError: If ``retry`` or ``timeout`` is none of the above.
    """

    def __init__(
        self,
        retry: object,
        timeout: object,
        *,
        is_transient: Callable[[Exception], bool],
        asynchronous: bool = False,
    ) -> None:
        # An ``AsyncRetry`` says the same, but its ``on_error`` may be meant for an event loop.
        if not isinstance(
            retry, (Retry, AsyncRetry, NoneType) if asynchronous else (Retry, NoneType)
        ):
            raise TypeError(
                "retry must be a google.api_core.retry.Retry or None for no retry, and cannot be "
                f"the name of an attribute; got {retry!r}"
            )
        self.given = (retry, timeout)
        self._timeout = _timeout_decorator(timeout)
        self._retry = None if retry is None else retry_parts(retry)
        self._is_transient = is_transient if self._retry is None else self._retry.predicate
        # The usual case, for which every batch would wrap a function to hear the same.
        nominal = nominal_timeout(self._timeout)
        self.has_constant_timeout = self._timeout is None or isinstance(
            self._timeout, ConstantTimeout
        )
        self.every_timeout = nominal
        self.rpc_timeout = _or_infinite(self.new_timeouts()() if nominal is None else nominal)
        self.total_timeout = (
            self.rpc_timeout if self._retry is None else _or_infinite(self._retry.timeout)
        )

    def check_hedge_delay(self, hedge_delay: float) -> None:
        """Refuse a hedge delay that could never come to a hedge.

        Raises:
            ValueError: If the delay is not below both timeouts.
        """
        if hedge_delay >= self.rpc_timeout:
            raise ValueError(
                f"hedge_delay ({hedge_delay:g} s) must be below the timeout of the publish request "
                f"({self.rpc_timeout:g} s): lower hedge_delay or raise the timeout"
            )
        if hedge_delay >= self.total_timeout:
            raise ValueError(
                f"hedge_delay ({hedge_delay:g} s) must be below the retry timeout "
                f"({self.total_timeout:g} s): lower hedge_delay or raise the timeout of the retry"
            )

    def start_call(self) -> CallState:
        """Return the policy's state for one batch."""
        return CallState(self)

    def new_timeouts(self) -> Callable[[], float | None]:
        """Return a function that tells the timeout of each attempt of one call, in turn."""
        if self.has_constant_timeout:
            return lambda: self.every_timeout

        # What api-core does with a timeout is to wrap the RPC in it, once a call, and to invoke
        # the result once an attempt. Wrapped around this, it tells the timeout of each.
        def tell(*, timeout: float | None = None) -> float | None:
            return timeout

        return cast("Callable[[], float | None]", cast("Any", self._timeout)(tell))


class CallState:
    """How far one batch has come in its policy. Used by one thread at a time."""

    __slots__ = ("_backoffs", "_policy", "next_timeout")

    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy
        self._backoffs: Callable[[Exception], float] | None = None
        self.next_timeout: Callable[[], float | None] = policy.new_timeouts()
        """Seconds that the next original request may take, or ``None`` for no limit."""

    def judge(self, error: BaseException) -> Failed:
        """Ask the policy about an error of the original, as api-core's retry loop does.

        Raises:
            Exception: What the predicate or ``on_error``, a user's code, raises.
        """
        # Too few message ids are no answer of the RPC; the official client retries none either.
        if not isinstance(error, Exception) or isinstance(error, PublishError):
            return Failed(ORIGINAL, error)
        if _is_too_large(error):
            return Failed(ORIGINAL, error)
        if not self._policy._is_transient(error):
            return Failed(ORIGINAL, error)
        retry = self._policy._retry
        if retry is None:
            return Failed(ORIGINAL, error, transient=True)
        if retry.on_error is not None:
            retry.on_error(error)
        if self._backoffs is None:
            self._backoffs = retry.backoffs()
        return Failed(ORIGINAL, error, transient=True, backoff=self._backoffs(error))


class CallPolicies:
    """The policies of one publisher: its defaults, and what a call gives instead.

    Args:
        options_retry: The publisher options' retry; may be ``gapic_v1.method.DEFAULT``.
        options_timeout: The publisher options' timeout; may be ``gapic_v1.method.DEFAULT``.
        method_retry: What the generated method does by default.
        method_timeout: What the generated method does by default.
        hedge_delay: Checked against every policy; ``None`` if nothing is hedged.
        asynchronous: Whether an ``AsyncRetry`` is taken too.

    Attributes:
        default: The policy of a publish that names neither.
    """

    def __init__(
        self,
        *,
        options_retry: object,
        options_timeout: object,
        method_retry: Retry | AsyncRetry | None,
        method_timeout: object,
        hedge_delay: float | None,
        asynchronous: bool = False,
    ) -> None:
        self._asynchronous = asynchronous
        self._retry = method_retry if options_retry is gapic_v1.method.DEFAULT else options_retry
        self._timeout = (
            method_timeout if options_timeout is gapic_v1.method.DEFAULT else options_timeout
        )
        self._is_transient = (
            (lambda _: False) if method_retry is None else retry_parts(method_retry).predicate
        )
        self._hedge_delay = hedge_delay
        self._made: dict[object, CallPolicy] = {}
        self.default = self.get(gapic_v1.method.DEFAULT, gapic_v1.method.DEFAULT)

    def get(self, retry: object, timeout: object) -> CallPolicy:
        """Return the policy for these arguments of ``publish()``; for equal ones the same.

        Raises:
            TypeError: If one is of a type that cannot be interpreted.
            ValueError: If the hedge delay is not below a timeout.
        """
        retry = self._retry if retry is gapic_v1.method.DEFAULT else retry
        timeout = self._timeout if timeout is gapic_v1.method.DEFAULT else timeout
        # Of the retry's identity, since retries do not compare; of the timeout's type too, since
        # ``True == 1``. The policy holds both, so that an id is not taken by another object.
        key = (id(retry), type(timeout), timeout)
        try:
            policy = self._made.get(key)
        except TypeError:  # a timeout that cannot be hashed, of a type that will be refused
            return self._make(retry, timeout)
        if policy is None:
            policy = self._make(retry, timeout)
            if len(self._made) >= _MAX_POLICIES:
                self._made.clear()
            self._made[key] = policy
        return policy

    def _make(self, retry: object, timeout: object) -> CallPolicy:
        policy = CallPolicy(
            retry, timeout, is_transient=self._is_transient, asynchronous=self._asynchronous
        )
        if self._hedge_delay is not None:
            policy.check_hedge_delay(self._hedge_delay)
        return policy


def _is_too_large(error: Exception) -> bool:
    """Tell whether gRPC itself, at either end, refused a message for its size.

    That has the status of an exhausted quota, which is transient by default; but the same request
    will be refused again and again, until the retry timeout.
    """
    return isinstance(error, exceptions.ResourceExhausted) and "message larger than max" in str(
        error
    )


def _timeout_decorator(timeout: object) -> Callable[[Any], Any] | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        if math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds; got nan")
        return cast("Callable[[Any], Any]", TimeToDeadlineTimeout(timeout=timeout))
    if callable(timeout):
        return timeout
    raise TypeError(
        "timeout must be a number of seconds, None for no timeout, or a timeout of "
        f"google.api_core.timeout, and cannot be the name of an attribute; got {timeout!r}"
    )


def _or_infinite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
