"""Requests that interceptors have sent and not handed over yet, so that they can be cancelled.

An interceptor may wait for the answer before it returns the call, as Sentry's does. Whoever sent
the attempt has no call to cancel by then. So what is innermost, below all interceptors, takes note
of each call that is started there.
"""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from hedged_pubsub._google.official import is_plain_channel


class InterceptedCalls:
    """The calls that interceptors have started for one attempt."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._is_cancelled = False

    def run(self, start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``start``, whose calls these are, in an empty context.

        As on the official client's threads: who happens to publish the last message of a batch,
        within a span perhaps, has no part in it.
        """
        context = contextvars.Context()
        context.run(_current.set, self)
        return context.run(start, *args, **kwargs)

    def use(self) -> None:
        """Take note of the calls that this task, and what it starts, will start."""
        _current.set(self)

    def add(self, call: Any) -> None:
        """Take note of a call; cancel it if the attempt was cancelled before it."""
        self._calls.append(call)
        # Added first, then checked: either this sees the cancellation, or that one sees the call.
        if self._is_cancelled:
            call.cancel()

    def cancel(self) -> None:
        """Cancel the calls that were started, and any that come later."""
        self._is_cancelled = True
        for call in self._calls:
            call.cancel()


_current: Final[contextvars.ContextVar[InterceptedCalls]] = contextvars.ContextVar(
    "hedged_pubsub_intercepted_calls"
)


def _note(call: Any) -> None:
    calls = _current.get(None)
    if calls is not None:
        calls.add(call)


def noting(channel: Any) -> Any:
    """Return a channel that sends through the same interceptors, and takes note of the calls.

    The channel itself, which others may use as well, stays as it is. One of a class that is known
    to nobody here, without another channel inside, is returned.
    """
    if is_plain_channel(channel):
        return _NotingChannel(channel)
    inner = getattr(channel, "_channel", None)
    if inner is None or hasattr(channel, "__del__"):  # which would close it with its copy
        return channel
    copied = copy.copy(channel)
    copied._channel = noting(inner)
    return copied


class _NotingChannel:
    """The innermost channel: only for calls of unary methods."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _NotingMethod(self._channel.unary_unary(*args, **kwargs))


class _NotingMethod:
    def __init__(self, method: grpc.UnaryUnaryMultiCallable) -> None:
        self._method = method
        self.with_call = method.with_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    def future(self, *args: Any, **kwargs: Any) -> Any:
        call = self._method.future(*args, **kwargs)
        _note(call)
        return call


class NotingInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """The innermost interceptor of an asyncio channel."""

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        """Send the request, and take note of its call."""
        call = await continuation(details, request)
        _note(call)
        return call
