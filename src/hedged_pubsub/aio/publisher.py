"""``AsyncHedgedPublisher``: a batching publisher for asyncio, with publish hedging."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

import grpc.aio
from google.api_core import gapic_v1
from google.auth.credentials import AnonymousCredentials
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherAsyncClient, PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub._core.batching import Limits
from hedged_pubsub._core.message_ids import check_id_attribute, next_id
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import HedgingStats
from hedged_pubsub._core.wire import topic_name
from hedged_pubsub._google import messages
from hedged_pubsub._google.channels import second_channel
from hedged_pubsub._google.options import (
    OfOneProcess,
    call_policies,
    refuse_endpoint,
    refuse_ordering,
    refuse_transport,
    settings_in_force,
)
from hedged_pubsub._recording import LatencyRecording, start_recording
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.aio.rpc import AsyncPublishRpc
from hedged_pubsub.aio.sender import PublishFuture, Sender

_DEFAULT: Final = gapic_v1.method.DEFAULT

_MAX_TURN: Final = 0.001
"""Seconds of publishing after which others get their turn. Nothing is waited for as long as flow
control has room, so a task that publishes in a loop would keep all others from running."""

publishers: weakref.WeakKeyDictionary[AsyncHedgedPublisher, asyncio.AbstractEventLoop]
publishers = weakref.WeakKeyDictionary()
"""All that are alive, with their loops."""

_END_TIMEOUT: Final = 1.0
"""Seconds that closing waits for requests that it has cancelled. They end within a few turns of the
event loop, unless an interceptor of the user's holds them up."""


class AsyncHedgedPublisher(OfOneProcess, PublisherAsyncClient):
    """The asyncio twin of ``HedgedPublisher``: batching, flow control and hedging on an event loop.

    The official ``PublisherAsyncClient`` sends one request for each call of ``publish``. This class
    collects messages into batches like the official synchronous client, hedges slow requests by the
    same rules as ``HedgedPublisher``, and has all other methods of the official asyncio client.

    Make it in a running event loop, and use it in that loop only. It starts no threads.

    Args:
        batch_settings: When a batch is sent, as for the official synchronous client.
        publisher_options: Flow control, retry, timeout and tracing, as for the official synchronous
            client; an ``AsyncRetry`` is taken too. Ordering must not be enabled.
        hedging_settings: When to hedge, and the budget. ``None`` turns hedging off; so does the
            environment variable ``HEDGED_PUBSUB_DISABLE=1``, whatever stands here. Batches are made
            and retried all the same.
        id_attribute: As for ``HedgedPublisher``: name of an attribute with a unique id.
        kwargs: As for ``PublisherAsyncClient``: ``credentials``, ``transport``,
            ``client_options``, ``client_info``.

    Raises:
        RuntimeError: If no event loop is running.
        TypeError: If ``hedging_settings`` is neither ``HedgingSettings`` nor ``None``, if
            ``id_attribute`` is no text, or if the options' retry or timeout is of a type that
            cannot be interpreted.
        ValueError: If ordering is enabled, if the hedge delay is not below the timeout of the
            publish request and below the retry timeout, if the transport is not ``grpc_asyncio``,
            or for an ``id_attribute`` that ``HedgedPublisher`` would refuse.
    """

    def __init__(
        self,
        batch_settings: BatchSettings | Sequence[Any] = (),
        publisher_options: PublisherOptions | Sequence[Any] = (),
        *,
        hedging_settings: HedgingSettings | None = HedgingSettings(),  # noqa: B008 - it is frozen
        id_attribute: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._loop = _running_loop("be made")
        hedging_settings = settings_in_force(hedging_settings, batch_settings, kwargs)
        check_id_attribute(id_attribute)
        options = PublisherOptions(*publisher_options)
        refuse_ordering(options, "AsyncHedgedPublisher has no ordering: use the official client")
        refuse_transport(kwargs.get("transport"), PublisherGrpcAsyncIOTransport, "'grpc_asyncio'")
        if os.environ.get("PUBSUB_EMULATOR_HOST"):
            # As the official synchronous publisher does; the generated client does the rest.
            kwargs["client_options"] = {"api_endpoint": os.environ["PUBSUB_EMULATOR_HOST"]}
            if "transport" not in kwargs:
                kwargs["credentials"] = AnonymousCredentials()
        make_channel = None
        if hedging_settings is not None:
            make_channel = second_channel(
                kwargs,
                PublisherGrpcAsyncIOTransport,
                grpc.aio.insecure_channel,
                hedging_settings.hedge_endpoint,
            )
            refuse_endpoint(hedging_settings, make_channel)
        super().__init__(**kwargs)
        self._hedging_settings = hedging_settings
        self._id_attribute = id_attribute
        self._closed = False
        self._recording: LatencyRecording | None = None
        self._end: asyncio.Task[None] | None = None
        self._turn_ends: float | None = None  # loop time; none yet in this turn of the loop
        transport = self.transport
        refuse_transport(transport, PublisherGrpcAsyncIOTransport, "'grpc_asyncio'")
        self._policies = call_policies(transport, options, hedging_settings, asynchronous=True)
        self._tracing: bool = options.enable_open_telemetry_tracing
        self._flow_control = FlowControl(options.flow_control)
        self._rpc = AsyncPublishRpc(
            transport,
            make_channel,
            self._loop,
            with_telemetry=hedging_settings is not None,
            settings=hedging_settings,
        )
        self._sender = Sender(
            hedging=hedging_settings,
            limits=Limits(*BatchSettings(*batch_settings)),
            flow_control=self._flow_control,
            is_traced=self._tracing,
            usual_policy=self._policies.default,
            rpc=self._rpc,
            loop=self._loop,
        )
        publishers[self] = self._loop
        self._call_when_dropped(self._sender.end)

    @classmethod
    def from_service_account_info(
        cls, info: dict[str, Any], *args: Any, **kwargs: Any
    ) -> AsyncHedgedPublisher:
        """Make a publisher with the credentials of a service account's key, parsed."""
        make: Any = PublisherClient.from_service_account_info
        return cast("AsyncHedgedPublisher", make.__func__(cls, info, *args, **kwargs))

    @classmethod
    def from_service_account_file(
        cls, filename: str, *args: Any, **kwargs: Any
    ) -> AsyncHedgedPublisher:
        """Make a publisher with the credentials of a service account's key file."""
        make: Any = PublisherClient.from_service_account_file
        return cast("AsyncHedgedPublisher", make.__func__(cls, filename, *args, **kwargs))

    from_service_account_json = from_service_account_file

    @property
    def hedging_settings(self) -> HedgingSettings | None:
        """The settings in force; ``None`` if hedging is off."""
        return self._hedging_settings

    def hedging_stats(self, topic: str | None = None) -> HedgingStats:
        """Return what batching and hedging did so far; see ``HedgedPublisher.hedging_stats``.

        Args:
            topic: The full name of a topic; without one, all topics are added up.
        """
        return self._sender.driver.stats(topic)

    def record_latencies(self, path: str | os.PathLike[str]) -> LatencyRecording:
        """Record what each publish request takes into a CSV file, for ``hedged-pubsub plan``.

        As ``HedgedPublisher.record_latencies``, which says what is recorded. Rows are written in
        the event loop's default executor.

        Args:
            path: The file.

        Returns:
            A context manager, whose end, or ``close()``, ends the recording. So does closing the
            publisher. With hedging off nothing is recorded, and a warning says so:
            ``HedgingSettings(observe_only=True)`` records without sending hedges.

        Raises:
            OSError: If the file cannot be written.
            RuntimeError: If this publisher is recording already, or was closed.
            ValueError: If the file exists and is no recording.
        """
        self._check_loop()
        self._recording = start_recording(
            path,
            None if self._hedging_settings is None else self._sender.driver.record,
            clock=self._loop.time,
            run=partial(self._loop.run_in_executor, None),
            previous=self._recording,
            is_closed=self._closed,
        )
        return self._recording

    # Of a message, not of a request as in the base class.
    async def publish(  # type: ignore[override]
        self,
        topic: str,
        data: bytes,
        ordering_key: str = "",
        retry: object = _DEFAULT,
        timeout: object = _DEFAULT,
        **attrs: bytes | str,
    ) -> str:
        """Publish a message and wait until it is stored.

        Cancelling the task that waits does not cancel the publish: the message is in a batch with
        others, and is sent all the same. Only while it waits for flow control is it taken back.

        Args:
            topic: The full name of the topic.
            data: The message body.
            ordering_key: Not supported; must be empty.
            retry: As for ``HedgedPublisher.publish``; an ``AsyncRetry`` is taken too.
            timeout: Seconds for each request; likewise.
            attrs: The message's attributes, as text or UTF-8 bytes.

        Returns:
            The message id.

        Raises:
            TypeError: If an argument is of a type that cannot be interpreted.
            ValueError: If an ordering key is given, or if the hedge delay is not below ``timeout``
                and below the timeout of ``retry``.
            RuntimeError: If the publisher was closed, or is used in another event loop.
            google.cloud.pubsub_v1.publisher.exceptions.FlowControlLimitError: If the message would
                exceed the limits, and the options say not to wait.
            google.cloud.pubsub_v1.publisher.exceptions.MessageTooLargeError: If the message would
                exceed what the service accepts in one request.
            google.api_core.exceptions.GoogleAPICallError: What the publish failed with.
        """
        return await (await self.enqueue(topic, data, ordering_key, retry, timeout, **attrs))

    async def enqueue(
        self,
        topic: str,
        data: bytes,
        ordering_key: str = "",
        retry: object = _DEFAULT,
        timeout: object = _DEFAULT,
        **attrs: bytes | str,
    ) -> asyncio.Future[str]:
        """Accept a message and return an awaitable of its id, so that one task can publish many.

        This waits for flow control only. The arguments and errors are those of ``publish``, but
        what the publish fails with is raised by the awaitable. If nobody asks for the result of
        any message of a batch that fails, asyncio reports its error once.

        Returns:
            An awaitable of the message id. Cancelling it does not cancel the publish, but loses
            the result: wait with ``asyncio.shield`` where a timeout is to end the wait only.
        """
        publish_start_time = time.time()
        self._check_usable()
        if ordering_key != "":
            raise ValueError(
                f"AsyncHedgedPublisher has no ordering. Got ordering_key={ordering_key!r}: leave "
                "it out, or use a HedgedPublisher with hedging_settings=None and "
                "enable_message_ordering=True"
            )
        if type(topic) is not str:
            topic = topic_name(topic)
        id_attribute = self._id_attribute
        if id_attribute is not None and id_attribute not in attrs:
            attrs[id_attribute] = next_id()
        future = PublishFuture(loop=self._loop)
        future.start_time = publish_start_time
        size = messages.write(future, topic, data, attrs, is_traced=self._tracing)
        if retry is _DEFAULT and timeout is _DEFAULT:
            policy = self._policies.default
        else:
            policy = self._policies.get(retry, timeout)
        if self._turn_ends is None:
            self._turn_ends = self._loop.time() + _MAX_TURN
            self._loop.call_soon(setattr, self, "_turn_ends", None)
        elif self._loop.time() >= self._turn_ends:
            await asyncio.sleep(0)
        if self._tracing or self._flow_control.counts:
            await self._pass_flow_control(future, size)
        try:
            if size > 0x10000:  # few bytes beside the service's limit, which others may reach
                messages.check_size(topic, len(future.prefix) + len(future.body))
            if self._closed:  # meanwhile, while flow control or others held this task
                self._check_usable()
            if future.tracing is not None:
                future.tracing.batched()
        except BaseException as error:
            if future.permit is not None:
                self._flow_control.release(future.permit)
            if future.tracing is not None:
                future.tracing.refused(error)
            raise
        self._sender.add(topic, future, policy)
        return future

    async def _pass_flow_control(self, future: PublishFuture, size: int) -> None:
        tracing = future.tracing
        if tracing is not None:
            tracing.flow_control_started()
        if self._flow_control.counts:
            try:
                future.permit = await self._flow_control.add(size)
            except BaseException as error:
                if tracing is not None:
                    tracing.flow_control_refused(error)
                raise
        if tracing is not None:
            tracing.flow_control_ended()

    async def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted and wait until all of it is decided, whether stored or failed.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes, which the
                retry timeout bounds.

        Raises:
            asyncio.TimeoutError: If messages are undecided after ``timeout``; they are still under
                way.
            RuntimeError: If it is used in another event loop.
        """
        self._check_loop()
        self._sender.send_all()
        accepted, undecided = await self._sender.wait(timeout)
        if undecided:
            raise asyncio.TimeoutError(
                f"{undecided} of {accepted} messages are not decided after {timeout:g} s"
            )

    async def close(self, timeout: float | None = None) -> None:
        """Accept no more, flush, and close the channel.

        Cancelling the task that closes ends the wait for messages, as ``timeout`` does, and the
        channel is closed all the same. It may be called again, and from several tasks: each call
        returns when all is decided and the channel is closed, and the one that waits shortest ends
        the wait of all.

        Args:
            timeout: Seconds to wait at most for what was accepted; ``None`` waits as long as it
                takes, which the retry timeout bounds.

        Raises:
            asyncio.TimeoutError: If messages were undecided after ``timeout``; it says how many.
                Their requests are cancelled then and their awaitables fail with ``RuntimeError``.
            RuntimeError: If it is used in another event loop.
        """
        self._check_loop()
        self._closed = True
        try:
            await self.flush(timeout)
        finally:
            self._sender.abandon(
                RuntimeError("the publisher was closed before the message was stored")
            )
            if self._recording is not None:
                self._recording.close()
            await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        """Close the channels, once for all that wait for it, whoever of them is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        for _ in range(2):  # again if it is cancelled itself, with all tasks of the loop
            if self._end is None or self._end.cancelled():
                self._end = self._loop.create_task(self._close_channels())
            while not self._end.done():
                try:
                    await asyncio.wait([self._end])
                except asyncio.CancelledError as error:  # see _END_TIMEOUT
                    cancelled = error
            if not self._end.cancelled():
                break
        if cancelled is not None:
            raise cancelled
        if self._end is not None and not self._end.cancelled():
            self._end.result()

    async def _close_channels(self) -> None:
        try:
            await self._rpc.close()
        finally:
            try:
                await self.transport.close()
            finally:
                await self._sender.driver.wait_for_tasks(_END_TIMEOUT)

    async def __aenter__(self) -> AsyncHedgedPublisher:
        """Return the publisher."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Flush, then close, whatever the block ended with."""
        await self.close()

    def _check_usable(self) -> None:
        self._check_loop()
        if self._closed:
            raise RuntimeError("Cannot publish on a closed publisher.")

    def _check_loop(self) -> None:
        if _running_loop("be used") is not self._loop:
            raise RuntimeError(
                "this AsyncHedgedPublisher belongs to another event loop: make one for each loop"
            )


def _running_loop(what: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            f"an AsyncHedgedPublisher must {what} in a running event loop: call it from a coroutine"
        ) from None
