"""Publish requests on gRPC's asyncio channels, past the official client's logging."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._core import log
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google import rpc
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.channels import MakeChannel
from hedged_pubsub._google.intercepted import InterceptedCalls
from hedged_pubsub._google.method import AsyncPublishMethod
from hedged_pubsub._google.rpc_errors import official_error, unreadable_answer


class AsyncPublishRpc(rpc.PublishRpc[AsyncPublishMethod]):
    """The publish requests of one asyncio publisher."""

    method_class = AsyncPublishMethod

    def __init__(
        self,
        transport: PublisherTransport,
        make_channel: MakeChannel | None,
        loop: asyncio.AbstractEventLoop,
        *,
        with_telemetry: bool,
        settings: HedgingSettings | None = None,
    ) -> None:
        super().__init__(
            transport,
            make_channel,
            lock=contextlib.nullcontext(),
            clock=loop.time,
            with_telemetry=with_telemetry,
            settings=settings,
        )
        self._loop = loop
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, batch: PublishBatch, attempt: int, timeout: float | None) -> list[str]:
        """Send a batch and wait for its message ids; a cancellation cancels the request."""
        connection, timeout = self.begin(batch, attempt, timeout)
        method = connection.method
        call: Any = None
        calls = None
        if not method.is_plain:
            calls = InterceptedCalls()
            calls.use()
        try:
            arguments = method.arguments(batch.topic, attempt, batch.publish_start_time)
            request = method.prepare(batch.request)
            call = method.multicallable(request, timeout=timeout, **arguments)
        finally:
            if connection.own:
                self.started(connection, call)
        try:
            response = await call
        except asyncio.CancelledError:
            # A call that is dropped would go on at the server; so would one that an interceptor
            # waits for.
            call.cancel()
            if calls is not None:
                calls.cancel()
            raise
        except grpc.RpcError as error:
            raise official_error(error) from error
        finally:
            self.ended(call)
        if response is None:
            raise unreadable_answer()
        return batch.check(list(response.message_ids), log.write)

    async def close(self) -> None:
        """Close the connections that were opened here; the client's channel is its own to close."""
        for connection in self._connections.close():
            self._close_channel(connection.method.channel)
        if self._closing:
            await asyncio.wait(self._closing)

    def _soon(self, function: Callable[[], object]) -> None:
        # Not in the turn of the loop in which a batch is sent.
        self._loop.call_soon(function)

    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_later(seconds, function, *args)

    def _connect(self, channel: Any) -> bool:
        # Waiting for a change of the state would leave a watch in gRPC's core, whose end is
        # reported to an event loop that may be closed by then.
        try:
            state = channel.get_state(try_to_connect=True)
        except Exception:  # noqa: BLE001 - it was closed
            return False
        return bool(state is grpc.ChannelConnectivity.READY)

    def _close_channel(self, channel: Any) -> None:
        task = self._loop.create_task(channel.close())
        self._closing.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._closing.discard)
