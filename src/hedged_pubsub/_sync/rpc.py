"""Publish requests on gRPC's synchronous channels, started without waiting for them."""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.api_core import exceptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._core.events import ORIGINAL
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google import forks, official, rpc
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.channels import MakeChannel
from hedged_pubsub._google.direct_call import DirectCall, direct_start
from hedged_pubsub._google.intercepted import InterceptedCalls, noting
from hedged_pubsub._google.method import PublishMethod
from hedged_pubsub._google.rpc_errors import as_if_waited_for, official_error
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers


class SyncPublishMethod(PublishMethod):
    """The publish method of one synchronous channel; ``start`` takes what ``future`` takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start: Callable[..., Any] = (
            direct_start(self.multicallable, _report)
            if self.is_plain
            else self.multicallable.future
        )

    def _channel_of_calls(self) -> Any:
        return self.channel if self.is_plain else noting(self.channel)


def _report(error: Exception) -> None:
    threads.log_later(
        logging.ERROR, "the end of a publish request could not be taken in", error=error
    )


class PublishRpc(rpc.PublishRpc[SyncPublishMethod]):
    """The publish requests of one publisher. Workers open its connections, and close them.

    Attributes:
        is_parents: Whether, in a forked child, the channels are still those of its parent.
    """

    method_class = SyncPublishMethod

    def __init__(
        self,
        transport: PublisherGrpcTransport,
        make_channel: MakeChannel | None,
        library: LibraryThread,
        workers: Workers,
        clock: Callable[[], float],
        settings: HedgingSettings | None = None,
    ) -> None:
        self._library = library
        self._workers = workers
        self.is_parents = False
        self._is_lost = False
        super().__init__(
            transport, make_channel, lock=library.guard(), clock=clock, settings=settings
        )

    @property
    def channels(self) -> list[Any]:
        """The channels that requests are sent on."""
        methods: list[Any] = self._connections.methods
        return [method.channel for method in methods if method is not None]

    def reset_after_fork(self) -> None:
        """Leave the channels to the parent, in a forked child; ``renew`` makes others."""
        self._lock = self._library.guard()
        self._renewal = threading.RLock()
        self.is_parents = True
        if self._make_channel is not None:
            for channel in self.channels:
                forks.leave_to_parent(channel)
            self._connections.close()
        elif not forks.is_supported_by_grpc():  # the user's, which is used on if that can be
            channels = self.channels
            self._is_lost = any(forks.is_busy(channel) for channel in channels)
            if self._is_lost:
                forks.leave_to_parent(channels[0])

    def renew(self) -> None:
        """Make channels of this process's own after a fork, once.

        Raises:
            RuntimeError: If that cannot be, or gRPC does not work here.
        """
        with self._renewal:
            if not self.is_parents:
                return
            forks.refuse_broken_core()
            make_channel: Any = self._make_channel
            if make_channel is not None:
                make_channel.renew(self._transport)
            elif self._is_lost:
                forks.refuse_busy_channel()
            self._connect_client()
            self.is_parents = False

    def commit(self, batch: PublishBatch) -> None:
        """Make the request of a batch, which all its attempts share, and start the RPC's span."""
        super().commit(batch)
        if not self.is_plain:
            batch.intercepted = {}

    def start(self, batch: PublishBatch, attempt: int, timeout: float | None) -> Any:
        """Start a request and return its call, as gRPC's ``future()`` does."""
        connection, timeout = self.begin(batch, attempt, timeout)
        method, request, call = connection.method, batch.request, None
        try:
            arguments = method.arguments(batch.topic, attempt, batch.publish_start_time)
            if connection.own:
                request = method.prepare(request)
            # A fork waits for the library's thread, and for no interceptor of the user's, which
            # may take its time.
            if not method.is_plain:
                call = self._start_intercepted(method, batch, attempt, request, timeout, arguments)
            elif _thread.get_ident() != self._library.ident:
                with threads.FORK_GATE:
                    call = method.start(request, timeout, **arguments)
            else:
                call = method.start(request, timeout, **arguments)
        finally:
            if connection.own:
                self.started(connection, call)
        return call

    def _start_intercepted(
        self,
        method: SyncPublishMethod,
        batch: PublishBatch,
        attempt: int,
        request: Any,
        timeout: float | None,
        arguments: Mapping[str, Any],
    ) -> Any:
        """Start a request through interceptors, which may hold its call until it is answered."""
        calls, held = InterceptedCalls(), batch.intercepted
        if held is not None:
            held[attempt] = calls
            if attempt not in batch.run.in_flight:  # it was decided a moment before
                calls.cancel()
        try:
            return calls.run(method.start, request, timeout, **arguments)
        finally:
            if held is not None:
                held.pop(attempt, None)

    def when_ended(
        self, call: Any, callback: Callable[[Any, int, Any], object], batch: Any, attempt: int
    ) -> None:
        """Call ``callback(batch, attempt, call)`` once a request has ended, at once if it has."""
        if isinstance(call, DirectCall):
            call.when_ended(callback, batch, attempt)
        else:
            call.add_done_callback(partial(callback, batch, attempt))

    def cancel(self, call: Any) -> None:
        """Cancel a request if it has not ended."""
        call.cancel()
        self.ended(call)

    def outcome(self, batch: PublishBatch, call: Any) -> list[str]:
        """Return the message ids of an ended request, or raise as the official client would."""
        self.ended(call)
        try:
            response = call.result()
        except grpc.RpcError as failed:
            error = as_if_waited_for(failed)
            raise official_error(error) from error
        except grpc.FutureCancelledError as error:
            raise exceptions.Cancelled("the publish request was cancelled locally") from error
        return batch.check(list(response.message_ids), threads.log_later)

    def call(self, batch: PublishBatch, timeout: float) -> list[str]:
        """Send the original and wait for its message ids; needs no other thread."""
        method = self._connections.of(ORIGINAL).method
        request = method.prepare(batch.request)
        arguments = method.arguments(batch.topic, ORIGINAL, batch.publish_start_time)
        try:
            response = method.multicallable(request, timeout, **arguments)
        except grpc.RpcError as error:
            raise official_error(error) from error
        return batch.check(list(response.message_ids), threads.log_later)

    def close(self) -> None:
        """Close the connections that were opened here; the client's channel is its own to close."""
        with self._lock:
            own = self._connections.close()
        for connection in own:
            connection.method.channel.close()

    def release(self) -> None:
        """Let go of all channels; close those that gRPC may hold, to which forks are a concern."""
        self.close_soon()
        super().release()

    def _soon(self, function: Callable[[], object]) -> None:
        self._workers.submit_urgent(function)

    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        self._library.call_at(self._clock() + seconds, function, *args)

    def _connect(self, channel: Any) -> bool:
        return official.connect(channel)

    def _open_channel(self, make_channel: MakeChannel) -> Any:
        with threads.FORK_GATE:
            return make_channel()

    def _close_channel(self, channel: Any) -> None:
        # Not here: this may be gRPC's thread, which closing waits for.
        self._workers.submit_urgent(threads.close, channel)
