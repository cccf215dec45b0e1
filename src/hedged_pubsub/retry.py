"""A retry strategy for any client: truncated exponential backoff with jitter.

It is the strategy that Google documents for the Model Armor API, as a policy object that works as
``retry=`` of any generated client method, in the publisher options, and as a decorator of any
function: https://docs.cloud.google.com/model-armor/retry-strategy

After failure n (n = 0, 1, 2, …) of a request the wait is::

    min(2**n + random_fraction, maximum_backoff) seconds

with a ``random_fraction`` below 1 that is drawn anew for each wait, so that clients that failed
together do not come back together. There is no further attempt once ``deadline`` seconds have
passed since the first.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import logging
import math
import random
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry

from hedged_pubsub.server_errors import is_transient, requested_wait

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncTruncatedExponentialBackoff", "TruncatedExponentialBackoff", "is_transient"]

_LOGGER = logging.getLogger(__name__)

# The formula's 2**n, in the terms of api-core.
_INITIAL: Final = 1.0
_MULTIPLIER: Final = 2.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _TruncatedExponentialBackoff:
    """What the strategy is for functions and for coroutines alike.

    A mixin in front of a retry class of api-core, whose attributes it fills: whoever takes such a
    retry apart finds a predicate, a timeout and so on.
    """

    _predicate: Callable[[Exception], bool]
    _maximum: float
    _timeout: float | None
    _deadline: float | None  # api-core keeps it under both names
    _on_error: Callable[[Exception], object] | None

    def __init__(
        self,
        maximum_backoff: float | timedelta = 32.0,
        deadline: float | timedelta | None = 300.0,
        retry_too_many_requests: bool = False,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        if not isinstance(retry_too_many_requests, bool):
            raise TypeError(
                f"retry_too_many_requests must be True or False; got {retry_too_many_requests!r}"
            )
        if on_error is not None and not callable(on_error):
            raise TypeError(
                f"on_error must be a function that takes the error, or None; got {on_error!r}"
            )
        # The retry class behind this one.
        super().__init__(  # type: ignore[call-arg]
            predicate=functools.partial(is_transient, too_many_requests=True)
            if retry_too_many_requests
            else is_transient,
            initial=_INITIAL,
            maximum=_check_maximum_backoff("maximum_backoff", maximum_backoff),
            multiplier=_MULTIPLIER,
            timeout=_check_deadline("deadline", deadline),
            on_error=on_error,
        )

    @property
    def maximum_backoff(self) -> float:
        """The longest wait in seconds, unless the server asks for a longer one."""
        return self._maximum

    @property
    def deadline(self) -> float | None:
        """Seconds since the first attempt after which no other starts; ``None`` for no end."""
        return self._timeout

    @property
    def timeout(self) -> float | None:
        """The deadline, as api-core calls it now."""
        return self._timeout

    def backoffs(self) -> Callable[[Exception], float]:
        """Start the waits of one call.

        Returns:
            A function that is told of each error in turn and returns the seconds to wait after it,
            which are those of the formula, or what the server asked for if that is longer.
        """
        exponential = _INITIAL

        def backoff(error: Exception) -> float:
            nonlocal exponential
            wait = min(exponential + random.random(), self._maximum)  # noqa: S311 - no secret
            exponential *= _MULTIPLIER  # infinite in the end, which the maximum takes care of
            return max(wait, requested_wait(error))

        return backoff

    def with_timeout(self, timeout: float | timedelta | None) -> Self:
        """Return a copy with another deadline, in seconds; see the class about its values."""
        return self._with_deadline("timeout", timeout)

    def with_deadline(self, deadline: float | timedelta | None) -> Self:
        """Return a copy with another deadline, in seconds; see the class about its values."""
        return self._with_deadline("deadline", deadline)

    def _with_deadline(self, name: str, value: object) -> Self:
        changed = copy.copy(self)
        changed._timeout = changed._deadline = _check_deadline(name, value)
        return changed

    def with_predicate(self, predicate: Callable[[Exception], bool]) -> Self:
        """Return a copy that retries what ``predicate`` says, 429 and all.

        Args:
            predicate: Tells whether an error is worth another attempt. To add to what the
                strategy retries, ask ``is_transient`` in it.

        Raises:
            TypeError: If it is not callable.
        """
        if not callable(predicate):
            raise TypeError(f"predicate must be a function that takes an error; got {predicate!r}")
        changed = copy.copy(self)
        changed._predicate = predicate
        return changed

    def with_delay(
        self,
        initial: float | None = None,
        maximum: float | timedelta | None = None,
        multiplier: float | None = None,
    ) -> Self:
        """Return a copy with another ``maximum_backoff``.

        Args:
            initial: Is 1 in the formula.
            maximum: The new ``maximum_backoff``; ``None`` leaves it as it is.
            multiplier: Is 2 in the formula.

        Raises:
            TypeError: If ``maximum`` is no ``maximum_backoff``.
            ValueError: Likewise, or if the formula would be another one.
        """
        if initial not in (None, _INITIAL) or multiplier not in (None, _MULTIPLIER):
            raise ValueError(
                f"initial must be {_INITIAL:g} and multiplier {_MULTIPLIER:g}, as in the formula, "
                f"or None; got {initial!r} and {multiplier!r}: for another formula use a "
                "google.api_core.retry.Retry"
            )
        changed = copy.copy(self)
        if maximum is not None:
            changed._maximum = _check_maximum_backoff("maximum", maximum)
        return changed

    def __repr__(self) -> str:
        """Return what it is made of."""
        return (
            f"<{type(self).__name__} maximum_backoff={self._maximum:g}, deadline={self._timeout}, "
            f"predicate={self._predicate}, on_error={self._on_error}>"
        )

    __str__ = __repr__


class TruncatedExponentialBackoff(_TruncatedExponentialBackoff, Retry):
    """Retries a function, or a method of a client, until it succeeds or the deadline passes.

    After failure n (n = 0, 1, 2, …) the wait is ``min(2**n + random_fraction, maximum_backoff)``
    seconds, with a random fraction below 1 that is drawn anew each time. If the server asks for
    more, by ``Retry-After`` (HTTP) or ``google.rpc.RetryInfo``, the wait is that. Retried are HTTP
    500, 502, 503, 504 and their gRPC equals, and connections that failed: see ``is_transient``.
    It is the strategy of https://docs.cloud.google.com/model-armor/retry-strategy

    The object has no state of a call and can be shared by any number of calls and threads. Like
    each ``google.api_core.retry.Retry`` it decorates functions; on giving up, the function raises
    ``google.api_core.exceptions.RetryError`` with the last error as its cause. An error that is not
    retried is raised as it is.

    Args:
        maximum_backoff: The longest wait of the formula, in seconds or as a ``timedelta``; above
            0 and finite. Typical are 32 and 64.
        deadline: Seconds since the first attempt, or a ``timedelta``, after which no other attempt
            starts; above 0. A wait that would end later is not begun: the call gives up at once.
            An attempt in progress is not cut short; that is what a client's ``timeout=`` is for.
            ``None`` or infinite for no end.
        retry_too_many_requests: Whether 429 (RESOURCE_EXHAUSTED) is retried as well.
        on_error: Called with each error before the wait that follows it; what it raises is raised.

    Raises:
        TypeError: If a value is not of its type; ``bool`` is not a number here.
        ValueError: If a number is out of its range or NaN.
    """

    def __call__(
        self,
        func: Callable[_P, _R],
        on_error: Callable[[Exception], object] | None = None,
    ) -> Callable[_P, _R]:
        """Wrap a function.

        Args:
            func: What to call until it succeeds.
            on_error: Used if the strategy has none of its own.

        Returns:
            The function, with retries.

        Raises:
            TypeError: If it is a coroutine function, which raises its errors elsewhere.
        """
        if inspect.iscoroutinefunction(func):
            raise TypeError(
                f"{func!r} is a coroutine function: use AsyncTruncatedExponentialBackoff"
            )

        @functools.wraps(func)
        def retrying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            call = _Call(self, on_error)
            while True:
                try:
                    result = func(*args, **kwargs)
                except Exception as error:
                    wait = call.wait_after(error)
                    if wait is None:
                        raise
                else:
                    if inspect.isawaitable(result):
                        warnings.warn(
                            "errors of an awaitable are not retried: use "
                            "AsyncTruncatedExponentialBackoff",
                            stacklevel=2,
                        )
                    return result
                time.sleep(wait)

        return retrying


class AsyncTruncatedExponentialBackoff(_TruncatedExponentialBackoff, AsyncRetry):
    """``TruncatedExponentialBackoff`` for coroutine functions and asynchronous clients.

    Args:
        maximum_backoff: See ``TruncatedExponentialBackoff``, as for all of them.
        deadline: See there.
        retry_too_many_requests: See there.
        on_error: See there; an ordinary function.

    Raises:
        TypeError: If a value is not of its type; ``bool`` is not a number here.
        ValueError: If a number is out of its range or NaN.
    """

    def __call__(  # type: ignore[override]  # api-core's loses the types of the arguments
        self,
        func: Callable[_P, Awaitable[_R]],
        on_error: Callable[[Exception], object] | None = None,
    ) -> Callable[_P, Awaitable[_R]]:
        """Wrap a coroutine function, or whatever returns an awaitable.

        Args:
            func: What to call until what it returns succeeds.
            on_error: Used if the strategy has none of its own.

        Returns:
            The function, with retries.
        """

        @functools.wraps(func)
        async def retrying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            call = _Call(self, on_error)
            while True:
                try:
                    return await func(*args, **kwargs)
                except Exception as error:
                    wait = call.wait_after(error)
                    if wait is None:
                        raise
                await asyncio.sleep(wait)

        return retrying


class _Call:
    """How far one call has come."""

    def __init__(
        self,
        strategy: _TruncatedExponentialBackoff,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        self._predicate = strategy._predicate
        self._on_error = on_error if strategy._on_error is None else strategy._on_error
        self._backoff = strategy.backoffs()
        self._timeout = math.inf if strategy._timeout is None else strategy._timeout
        self._deadline = time.monotonic() + self._timeout

    def wait_after(self, error: Exception) -> float | None:
        """Return the seconds to wait after an error, or ``None`` if the error is to be raised.

        Raises:
            RetryError: If the wait would end past the deadline.
        """
        if not self._predicate(error):
            return None
        if self._on_error is not None:
            self._on_error(error)
        wait = self._backoff(error)
        if time.monotonic() + wait > self._deadline:
            # In api-core's words.
            raise RetryError(f"Timeout of {self._timeout:0.1f}s exceeded", error) from error
        _LOGGER.debug("waiting %.1f s after %r", wait, error)
        return wait


def _check_maximum_backoff(name: str, value: object) -> float:
    return _check_seconds(name, value, "above 0 and finite, typically 32 or 64")


def _check_deadline(name: str, value: object) -> float | None:
    if value is None or value == math.inf:
        return None
    return _check_seconds(name, value, "above 0, or None for no deadline")


def _check_seconds(name: str, value: object, bounds: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"{name} must be a number of seconds or a timedelta, {bounds}; got {value!r}"
        )
    if not 0 < seconds <= sys.float_info.max:
        raise ValueError(f"{name} must be {bounds}; got {value!r}")
    return float(seconds)
