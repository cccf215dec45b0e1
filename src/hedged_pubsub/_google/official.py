"""What this package touches of the private parts of the official client and of api-core."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.api_core import gapic_v1
from google.api_core.retry import Retry, exponential_sleep_generator, if_exception_type
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, ExponentialTimeout, TimeToDeadlineTimeout
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport
from grpc._cython import cygrpc

from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff

TOTAL_TIMEOUT: Final = 600.0
"""Seconds for which the official synchronous client sends a batch again by default."""


def backoffs(retry: Retry | AsyncRetry) -> Callable[[Exception], float]:
    """Start one call: return a function from each error to the seconds that the retry waits."""
    if isinstance(retry, (TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff)):
        return retry.backoffs()
    waits: Iterator[float] = exponential_sleep_generator(
        retry._initial, retry._maximum, multiplier=retry._multiplier
    )
    return lambda _error: next(waits)


def nominal_timeout(timeout: object) -> float | None:
    """Return the seconds that an api-core timeout was made with, if with one number."""
    # Asked for its timeout, a TimeToDeadlineTimeout would answer less: its clock has gone on.
    if isinstance(timeout, (ConstantTimeout, TimeToDeadlineTimeout)):
        return cast("float | None", timeout._timeout)
    return None


_LOOPS: Final = {
    kind.__call__
    for kind in (Retry, AsyncRetry, TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff)
}
_CHECK_TYPE: Final = if_exception_type().__code__


def has_own_loop(retry: Retry | AsyncRetry) -> bool:
    """Tell whether a subclass retries in a way of its own, whatever its attributes say."""
    return type(retry).__call__ not in _LOOPS


def key_of(value: object) -> object:
    """Return what is equal for retries, and for timeouts, that say the same, while they live.

    Functions are told apart by identity: bound methods by that of their object, and the predicates
    of ``if_exception_type`` by their types. So is what is of no known kind.
    """
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, tuple):
        return tuple(map(key_of, value))
    if isinstance(
        value, (Retry, AsyncRetry, ConstantTimeout, TimeToDeadlineTimeout, ExponentialTimeout)
    ):
        return type(value), key_of(tuple(vars(value).values()))
    if isinstance(value, FunctionType) and value.__code__ is _CHECK_TYPE:
        return tuple(cell.cell_contents for cell in value.__closure__ or ())
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return id(value.__self__), value.__name__
    return id(value)


def publish_defaults(transport: PublisherTransport) -> tuple[Retry | AsyncRetry | None, object]:
    """Return the retry and the timeout that the generated ``publish`` has by default."""
    method: Any = transport._wrapped_methods[transport.publish]
    retry = method._retry
    if isinstance(retry, AsyncRetry):
        # The generated asyncio client gives up after a minute, and with waits of up to a minute
        # often after ten seconds, where the synchronous one, for the same service, has ten minutes.
        retry = retry.with_timeout(TOTAL_TIMEOUT)
    return retry, method._timeout


def call_arguments(transport: PublisherTransport, topic: str) -> Mapping[str, Any]:
    """Return what the official client passes to the RPC: metadata and, if set, compression."""
    # The client's own wrapper passes it to a function that returns it: so it is every release's.
    method: Any = copy.copy(transport._wrapped_methods[transport.publish])
    method._target = lambda _request, **arguments: arguments
    method._start_span_fn = None  # newer releases can trace the call
    routing = gapic_v1.routing_header.to_grpc_metadata((("topic", topic),))
    arguments = method(None, retry=None, timeout=None, metadata=(routing,))
    if inspect.iscoroutine(arguments):
        # The asyncio client's. It has nothing to wait for, so one step brings the result.
        try:
            arguments.send(None)
        except StopIteration as finished:
            arguments = finished.value
    return cast("Mapping[str, Any]", arguments)


def gevent_hub() -> Any:
    """Return the hub of gevent's on which gRPC runs its greenlets.

    ``None`` unless ``grpc.experimental.gevent.init_gevent()`` was called.
    """
    return getattr(cygrpc.g_gevent_threadpool, "hub", None)


def is_plain_channel(channel: grpc.Channel | grpc.aio.Channel) -> bool:
    """Tell whether no interceptor sits on a channel; what cannot be told counts as one."""
    if type(channel) is grpc.aio._channel.Channel:
        return not channel._unary_unary_interceptors
    return type(channel) is grpc._channel.Channel


def connect(channel: grpc.Channel) -> bool:
    """Begin to connect a channel that is not connected, and tell whether it is."""
    # The thread of ``Channel.subscribe`` would raise if the channel is closed meanwhile.
    core: Any = channel
    while core is not None and not hasattr(core, "check_connectivity_state"):
        core = getattr(core, "_channel", None)  # of an interceptor's, and of the innermost
    if core is None:  # it cannot be asked, and its first call connects it
        return True
    try:
        state: int = core.check_connectivity_state(True)
    except ValueError:  # it was closed
        return False
    ready: int = grpc.ChannelConnectivity.READY.value[0]
    return state == ready
