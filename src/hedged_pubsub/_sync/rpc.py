"""Publish requests on gRPC's synchronous channels, started without waiting for them."""

from __future__ import annotations

import _thread
import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from google.api_core import exceptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._core.events import ORIGINAL
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google import official, rpc
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.channels import MakeChannel
from hedged_pubsub._google.direct_call import DirectCall, direct_start
from hedged_pubsub._google.method import PublishMethod
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers


class SyncPublishMethod(PublishMethod):
    """The publish method of one synchronous channel; ``start`` takes what ``future`` takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        future = self.multicallable.future
        self.start: Callable[..., Any]
        if self.is_plain:
            self.start = direct_start(self.multicallable, _report)
        else:
            # Interceptors find an empty context, as on the official client's threads: who happens
            # to publish the last message of a batch, within a span perhaps, has no part in it.
            self.start = lambda *args, **kwargs: contextvars.Context().run(future, *args, **kwargs)


def _report(error: Exception) -> None:
    threads.log_later(
        logging.ERROR, "the end of a publish request could not be taken in", error=error
    )


class PublishRpc(rpc.PublishRpc[SyncPublishMethod]):
    """The publish requests of one publisher. Workers open its connections, and close them."""

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
        super().__init__(
            transport, make_channel, lock=library.guard(), clock=clock, settings=settings
        )

    def reset_after_fork(self) -> None:
        """Forget the parent's calls, in a forked child; gRPC sees to the channels."""
        self._lock = self._library.guard()
        self._connections.reset_after_fork()

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
            if method.is_plain and _thread.get_ident() != self._library.ident:
                with threads.FORK_GATE:
                    call = method.start(request, timeout, **arguments)
            else:
                call = method.start(request, timeout, **arguments)
        finally:
            if connection.own:
                self.started(connection, call)
        return call

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
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        except grpc.FutureCancelledError as error:
            raise exceptions.Cancelled("the publish request was cancelled locally") from error
        return batch.check(list(response.message_ids), threads.log_later)

    def call(self, batch: PublishBatch, timeout: float) -> list[str]:
        """Send the original and wait for its message ids; needs no other thread."""
        return self._call_with(self._connections.of(ORIGINAL).method, batch, timeout)

    def _call_with(
        self, method: SyncPublishMethod, batch: PublishBatch, timeout: float
    ) -> list[str]:
        request = method.prepare(batch.request)
        arguments = method.arguments(batch.topic, ORIGINAL, batch.publish_start_time)
        try:
            response = method.multicallable(request, timeout, **arguments)
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return batch.check(list(response.message_ids), threads.log_later)

    def close(self) -> None:
        """Close the connections that were opened here; the client's channel is its own to close."""
        with self._lock:
            own = self._connections.close()
        for connection in own:
            connection.method.channel.close()

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
