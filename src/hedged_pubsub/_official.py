"""All that this package touches of the private parts of the official client and of api-core.

The contract tests of this module run at the lowest and at the newest supported releases, so that
a change over there shows here first.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio
from google.api_core import gapic_v1
from google.api_core.retry import Retry, exponential_sleep_generator
from google.api_core.retry_async import AsyncRetry
from google.api_core.timeout import ConstantTimeout, TimeToDeadlineTimeout
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.publisher.flow_controller import FlowController
from google.cloud.pubsub_v1.types import LimitExceededBehavior
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryParts:
    """What a ``google.api_core.retry.Retry`` would do, without its ``time.sleep``.

    Attributes:
        predicate: Whether an error is transient.
        on_error: Told about every transient error, or ``None``.
        timeout: Seconds from the first attempt after which no other starts; ``None`` for no end.
        backoffs: Starts the waits of one call: a function that is told of each error in turn and
            returns the seconds to wait after it.
    """

    predicate: Callable[[Exception], bool]
    on_error: Callable[[Exception], object] | None
    timeout: float | None
    backoffs: Callable[[], Callable[[Exception], float]]


def retry_parts(retry: Retry | AsyncRetry) -> RetryParts:
    """Take a retry apart."""

    def backoffs() -> Callable[[Exception], float]:
        if isinstance(retry, (TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff)):
            return retry.backoffs()
        waits: Iterator[float] = exponential_sleep_generator(
            retry._initial, retry._maximum, multiplier=retry._multiplier
        )
        return lambda _error: next(waits)

    return RetryParts(
        predicate=retry._predicate,
        on_error=retry._on_error,
        timeout=retry._timeout,
        backoffs=backoffs,
    )


def nominal_timeout(timeout: object) -> float | None:
    """Return what an api-core timeout says, in seconds; ``None`` if it does not say one number.

    Asked for the timeout of the first attempt, a ``TimeToDeadlineTimeout`` may answer with a bit
    less on a busy machine, by the time between two looks at its clock.
    """
    if isinstance(timeout, (ConstantTimeout, TimeToDeadlineTimeout)):
        return cast("float | None", timeout._timeout)
    return None


def publish_defaults(transport: PublisherTransport) -> tuple[Retry | AsyncRetry | None, object]:
    """Return the retry and the timeout that the generated ``publish`` has by default."""
    method: Any = transport._wrapped_methods[transport.publish]
    return method._retry, method._timeout


def call_arguments(transport: PublisherTransport, topic: str) -> Mapping[str, Any]:
    """Return what the official client passes to the RPC beside request and timeout.

    That is the metadata (``x-goog-api-client``, ``x-goog-request-params``) and, if one is set,
    the compression. It is asked for by calling the client's own wrapper around a target that only
    looks at its arguments, so that it is the same in every release.
    """
    method: Any = copy.copy(transport._wrapped_methods[transport.publish])
    method._target = lambda _request, **arguments: arguments
    method._start_span_fn = None  # newer releases can trace the call; this is none
    routing = gapic_v1.routing_header.to_grpc_metadata((("topic", topic),))
    arguments = method(None, retry=None, timeout=None, metadata=(routing,))
    if inspect.iscoroutine(arguments):
        # The asyncio client's. It has nothing to wait for, so one step brings the result.
        try:
            arguments.send(None)
        except StopIteration as finished:
            arguments = finished.value
    return cast("Mapping[str, Any]", arguments)


def is_plain_channel(channel: grpc.Channel | grpc.aio.Channel) -> bool:
    """Tell whether no interceptor sits on a channel; what cannot be told counts as one."""
    if type(channel) is grpc.aio._channel.Channel:
        return not channel._unary_unary_interceptors
    return type(channel) is grpc._channel.Channel


def connect(channel: grpc.Channel) -> bool:
    """Begin to connect a channel that is not connected, and tell whether it is.

    ``Channel.subscribe`` could do that too; but its thread fails aloud if the channel is closed
    meanwhile. A channel that cannot be asked counts as connected: its first call connects it.
    """
    core: Any = channel
    while core is not None and not hasattr(core, "check_connectivity_state"):
        core = getattr(core, "_channel", None)  # of an interceptor's, and of the innermost
    if core is None:
        return True
    try:
        state: int = core.check_connectivity_state(True)
    except ValueError:  # it was closed
        return False
    ready: int = grpc.ChannelConnectivity.READY.value[0]
    return state == ready


class FlowControl:
    """The official flow controller, lending credit for sizes instead of messages.

    Args:
        controller: That of the client.

    Attributes:
        counts: Whether it counts at all; by default it does not.
    """

    def __init__(self, controller: FlowController) -> None:
        self._controller = controller
        behavior = controller._settings.limit_exceeded_behavior
        self.counts = behavior != LimitExceededBehavior.IGNORE

    def start_anew(self) -> None:
        """Lend nothing yet, in a forked child: the parent's messages come back to the parent."""
        FlowController.__init__(self._controller, self._controller._settings)

    def borrow(self, size: int) -> None:
        """Take credit for one message; waits for it if the options say so.

        Args:
            size: The serialized message's, in bytes.

        Raises:
            google.cloud.pubsub_v1.publisher.exceptions.FlowControlLimitError: If the message would
                exceed the limits, and the options say not to wait, or it alone exceeds them.
        """
        try:
            self._controller.add(_Sized(size))
        except FlowControlLimitError:
            raise
        except BaseException:  # a KeyboardInterrupt while it waited
            self._stop_waiting()
            raise

    def _stop_waiting(self) -> None:
        """Take this thread out of the queue: what is reserved for it would be lost."""
        controller = self._controller
        with controller._operational_lock:
            reservation = controller._waiting.pop(threading.current_thread(), None)
            if reservation is None:
                return
            controller._reserved_bytes -= reservation.bytes_reserved
            controller._reserved_slots -= reservation.has_slot
            controller._distribute_available_capacity()
            if controller._ready_to_unblock():
                controller._has_capacity.notify_all()

    def give_back(self, size: int) -> None:
        """Return the credit of one message."""
        self._controller.release(_Sized(size))


class _Sized:
    """What the flow controller looks at of a message: the size of its raw form."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def _pb(self) -> _Sized:
        return self

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        return self._size
