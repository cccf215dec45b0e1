"""A retry strategy for any client: truncated exponential backoff with jitter.

It is the strategy that Google documents for the Model Armor API, as a policy object that works as
``retry=`` of any generated client method, in the publisher options, and as a decorator of any
function. The random part keeps clients that failed together from coming back together.
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry
from google.api_core.retry_async import AsyncRetry

from hedged_pubsub.retry.errors import is_transient, requested_wait

if TYPE_CHECKING:
    from typing_extensions import Self

_LOGGER = logging.getLogger("hedged_pubsub.retry")

# The formula's 2**n, in the terms of api-core.
_INITIAL: Final = 1.0
_MULTIPLIER: Final = 2.0
_USE_ASYNC: Final = "use AsyncTruncatedExponentialBackoff"
_BACKOFF_BOUNDS: Final = "above 0 and finite, typically 32 or 64"

_is_transient_or_429: Final = functools.partial(is_transient, too_many_requests=True)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Values(NamedTuple):
    """What api-core's constructor takes; what it keeps of it is its own business."""

    predicate: Callable[[Exception], bool]
    maximum: float
    timeout: float | None
    on_error: Callable[[Exception], object] | None


class _TruncatedExponentialBackoff:
    """The strategy, for functions and for coroutines: a mixin in front of a class of api-core."""

    def __init__(
        self,
        maximum_backoff: float | timedelta = 32.0,
        deadline: float | timedelta | None = 300.0,
        retry_too_many_requests: bool = False,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        too_many = retry_too_many_requests
        if not isinstance(too_many, bool):
            raise TypeError(f"retry_too_many_requests must be True or False; got {too_many!r}")
        if not (on_error is None or callable(on_error)):
            raise TypeError(f"on_error must be a function of the error, or None; got {on_error!r}")
        predicate = _is_transient_or_429 if too_many else is_transient
        maximum = _check_seconds("maximum_backoff", maximum_backoff)
        timeout = _check_deadline("deadline", deadline)
        self._take(_Values(predicate, maximum, timeout, on_error))

    def _take(self, values: _Values) -> None:
        self._values = values
        formula = {"initial": _INITIAL, "multiplier": _MULTIPLIER}
        super().__init__(**formula, **values._asdict())  # api-core's

    def _copy(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        changed._take(self._values._replace(**changes))
        return changed

    @property
    def maximum_backoff(self) -> float:
        """The longest wait in seconds, unless the server asks for a longer one."""
        return self._values.maximum

    @property
    def deadline(self) -> float | None:
        """Seconds since the first attempt after which no other starts; ``None`` for no end."""
        return self._values.timeout

    def backoffs(self) -> Callable[[Exception], float]:
        """Start one call: return a function from each error, in turn, to the seconds to wait."""
        exponential, maximum = _INITIAL, self._values.maximum

        def backoff(error: Exception) -> float:
            nonlocal exponential
            wait = min(exponential + random.random(), maximum)  # noqa: S311 - no secret
            exponential *= _MULTIPLIER  # infinite in the end, which the maximum takes care of
            return max(wait, requested_wait(error))

        return backoff

    def with_timeout(self, timeout: float | timedelta | None) -> Self:
        """Return a copy with another deadline, in seconds; see the class about its values."""
        return self._copy(timeout=_check_deadline("timeout", timeout))

    def with_deadline(self, deadline: float | timedelta | None) -> Self:
        """Return a copy with another deadline, in seconds; see the class about its values."""
        return self._copy(timeout=_check_deadline("deadline", deadline))

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
        return self._copy(predicate=predicate)

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
        changes = {} if maximum is None else {"maximum": _check_seconds("maximum", maximum)}
        return self._copy(**changes)

    def _waits(
        self, on_error: Callable[[Exception], object] | None
    ) -> Callable[[Exception], float | None]:
        """Start one call: return a function from each error to the wait, None to raise it."""
        is_worth_it, _, timeout, tell = self._values
        tell = on_error if tell is None else tell
        timeout = math.inf if timeout is None else timeout
        backoff, deadline = self.backoffs(), time.monotonic() + timeout

        def wait_after(error: Exception) -> float | None:
            if not is_worth_it(error):
                return None
            if tell is not None:
                tell(error)
            wait = backoff(error)
            if time.monotonic() + wait > deadline:
                # In api-core's words.
                raise RetryError(f"Timeout of {timeout:0.1f}s exceeded", error) from error
            _LOGGER.debug("waiting %.1f s after %r", wait, error)
            return wait

        return wait_after

    def __repr__(self) -> str:
        predicate, maximum, timeout, on_error = self._values
        return (
            f"<{type(self).__name__} maximum_backoff={maximum:g}, deadline={timeout}, "
            f"predicate={predicate}, on_error={on_error}>"
        )

    __str__ = __repr__


class TruncatedExponentialBackoff(_TruncatedExponentialBackoff, Retry):
    """Retry a function, or a method of a client, until it succeeds or the deadline passes.

    After failure n (n = 0, 1, 2, …) the wait is ``min(2**n + random_fraction, maximum_backoff)``
    seconds, with a random fraction below 1 that is drawn again each time. If the server asks for
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
        """Return a function with retries; ``on_error`` is used if the strategy has none.

        Raise TypeError for a coroutine function, which raises its errors elsewhere.
        """
        if inspect.iscoroutinefunction(func):
            raise TypeError(f"{func!r} is a coroutine function: {_USE_ASYNC}")

        @functools.wraps(func)
        def retrying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            wait_after = self._waits(on_error)
            while True:
                try:
                    result = func(*args, **kwargs)
                except Exception as error:
                    wait = wait_after(error)
                    if wait is None:
                        raise
                else:
                    if inspect.isawaitable(result):
                        text = "errors of an awaitable are not retried: "
                        warnings.warn(text + _USE_ASYNC, stacklevel=2)
                    return result
                time.sleep(wait)

        return retrying


class AsyncTruncatedExponentialBackoff(_TruncatedExponentialBackoff, AsyncRetry):
    """``TruncatedExponentialBackoff`` for coroutine functions and asynchronous clients.

    Arguments and errors are the same; ``on_error`` is an ordinary function here, too.
    """

    def __call__(  # type: ignore[override]  # api-core's loses the types of the arguments
        self,
        func: Callable[_P, Awaitable[_R]],
        on_error: Callable[[Exception], object] | None = None,
    ) -> Callable[_P, Awaitable[_R]]:
        """Return a coroutine function, or what returns awaitables, with retries."""

        @functools.wraps(func)
        async def retrying(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            wait_after = self._waits(on_error)
            while True:
                try:
                    return await func(*args, **kwargs)
                except Exception as error:
                    wait = wait_after(error)
                    if wait is None:
                        raise
                await asyncio.sleep(wait)

        return retrying


def _check_deadline(name: str, value: object) -> float | None:
    if value is None or value == math.inf:
        return None
    return _check_seconds(name, value, "above 0, or None for no deadline")


def _check_seconds(name: str, value: object, bounds: str = _BACKOFF_BOUNDS) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"{name} must be a number of seconds or a timedelta, {bounds}; got {value!r}"
        )
    if not 0 < seconds <= sys.float_info.max:
        raise ValueError(f"{name} must be {bounds}; got {value!r}")
    return float(seconds)
