"""``HedgedPublisher``: the official publisher client, with publish hedging."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures._base import PENDING
from typing import Any, Final, NoReturn

import grpc
from google.api_core import gapic_v1
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._core.batching import Limits
from hedged_pubsub._core.flow_control import Permit
from hedged_pubsub._core.hedge_delay import check_number
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import HedgingStats
from hedged_pubsub._google import messages
from hedged_pubsub._google.channels import MakeChannel, second_channel
from hedged_pubsub._google.options import (
    call_policies,
    refuse_endpoint,
    refuse_ordering,
    refuse_ordering_key,
    refuse_pickling,
    refuse_transport,
    settings_in_force,
)
from hedged_pubsub._google.patched import PatchablePublisher, is_patched
from hedged_pubsub._sync import process, threads
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.flow_control import FlowControl
from hedged_pubsub._sync.future import PublishFuture
from hedged_pubsub._sync.publish_transport import over_http2
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub._sync.sender import TOLD, Mailbox, Sender

_DEFAULT: Final = gapic_v1.method.DEFAULT
_DEFAULTS: Final = (_DEFAULT, "")
_GRPC_OR_OFF: Final = "'grpc', or pass hedging_settings=None"

# For the usual ``publish()``, which is one function: what is looked up once rather than for each
# message, and what stands before data of a size, for sizes that were published before.
_new: Final = PublishFuture.__new__
_now: Final = time.time
_tell: Final = threads.LIBRARY.put
_prefixes: Final[dict[int, bytes]] = {}
_MAX_USUAL_SIZE: Final = 0x10000
"""Bytes of data; few beside the service's limit, which needs a look for others."""


class HedgedPublisher(PatchablePublisher):
    """A drop-in for ``google.cloud.pubsub_v1.PublisherClient`` that hedges slow publishes.

    When a publish request is not answered within the hedge delay, the same batch is sent again in
    parallel, and again after each further delay; the first answer counts and the rest is cancelled.
    A token bucket for each topic bounds the extra requests. A message may be stored more than once,
    with different message ids: see the documentation on duplicates.

    Everything else is the official client: batching, flow control, retries, errors, futures, and
    all methods of the API.

    Args:
        batch_settings: As officially.
        publisher_options: As officially; ordering must not be enabled together with hedging.
        hedging_settings: When to hedge, and the budget. ``None`` turns hedging off and leaves the
            official client as it is; so does the environment variable ``HEDGED_PUBSUB_DISABLE=1``,
            whatever stands here.
        exit_timeout: Seconds that the end of the interpreter waits for accepted messages that are
            not stored yet; 0 does not wait. A warning counts what could not be stored. Without
            hedging nothing is waited for, as officially.
        publish_transport: What publish requests are sent with, ``"grpc"`` or ``"http2"``, which
            takes less CPU time and needs the extra ``[http2]``. By default what the environment
            variable ``HEDGED_PUBSUB_PUBLISH_TRANSPORT`` says, or gRPC where that is not possible.
            All else, and publishing with hedging off, is sent with gRPC.
        kwargs: As officially: ``credentials``, ``transport``, ``client_options``, ``client_info``.

    Raises:
        TypeError: If ``hedging_settings`` is neither ``HedgingSettings`` nor ``None``, or if the
            options' retry or timeout is of a type that cannot be interpreted.
        ValueError: If ordering is enabled, if the hedge delay is not below the timeout of the
            publish request and below the retry timeout, or if the transport has no gRPC calls that
            can be cancelled (``rest``, ``grpc_asyncio``); if ``publish_transport`` is another
            one, or ``"http2"`` with what that cannot have.
    """

    def __init__(
        self,
        batch_settings: pubsub_v1.types.BatchSettings | Sequence[Any] = (),
        publisher_options: pubsub_v1.types.PublisherOptions | Sequence[Any] = (),
        *,
        hedging_settings: HedgingSettings | None = HedgingSettings(),  # noqa: B008 - it is frozen
        exit_timeout: float = 10.0,
        publish_transport: str | None = None,
        **kwargs: Any,
    ) -> None:
        hedging_settings = settings_in_force(hedging_settings, batch_settings, kwargs)
        check_number("exit_timeout", exit_timeout, 0, threading.TIMEOUT_MAX, unit=" seconds")
        if hedging_settings is not None:
            refuse_ordering(publisher_options, "disable ordering, or pass hedging_settings=None")
            refuse_transport(kwargs.get("transport"), PublisherGrpcTransport, _GRPC_OR_OFF)
        make_channel = None
        if hedging_settings is not None:
            make_channel = second_channel(
                kwargs,
                PublisherGrpcTransport,
                grpc.insecure_channel,
                hedging_settings.hedge_endpoint,
            )
            refuse_endpoint(hedging_settings, make_channel)
        super().__init__(batch_settings, publisher_options, **kwargs)
        self._hedging_settings = hedging_settings
        self._closed = False
        self._sender: Sender | None = None  # and none with hedging off
        self._usual: dict[str, Mailbox] = {}
        if hedging_settings is None:
            process.register_official(self, exit_timeout)
            return
        try:
            refuse_transport(self.transport, PublisherGrpcTransport, _GRPC_OR_OFF)
            self._sender = self._make_sender(hedging_settings, make_channel, publish_transport)
        except BaseException:
            if kwargs.get("transport") is not self.transport:
                self.transport.close()
            raise
        self._usual = self._sender.usual
        self._lead_to(self._publish_hedged)
        process.register(self._sender, exit_timeout)

    def _make_sender(
        self,
        settings: HedgingSettings,
        make_channel: MakeChannel | None,
        publish_transport: str | None,
    ) -> Sender:
        library, workers, clock = threads.LIBRARY, threads.WORKERS, threads.CLOCK
        options = self.publisher_options
        self._policies = call_policies(self.transport, options, settings)
        flow_control = FlowControl(options.flow_control)
        arguments = (self.transport, make_channel, library, workers, clock, settings)
        rpc = over_http2(publish_transport, arguments) or PublishRpc(*arguments)
        return Sender(
            limits=Limits(*self.batch_settings),
            flow_control=flow_control,
            is_traced=options.enable_open_telemetry_tracing,
            driver=Driver(settings, rpc, flow_control, library, workers, clock),
            library=library,
            workers=workers,
            clock=clock,
        )

    @property
    def hedging_settings(self) -> HedgingSettings | None:
        """The settings in force; ``None`` if hedging is off."""
        return self._hedging_settings

    def hedging_stats(self, topic: str | None = None) -> HedgingStats:
        """Return what hedging did so far.

        Args:
            topic: The full name of a topic, or ``None`` for all topics together.

        Returns:
            A snapshot; all zero for a topic that was never published to, and with hedging off.
        """
        return HedgingStats() if self._sender is None else self._sender.driver.stats(topic)

    def publish(
        self,
        topic: str,
        data: bytes,
        ordering_key: str = "",
        retry: Any = _DEFAULT,
        timeout: Any = _DEFAULT,
        **attrs: bytes | str,
    ) -> Future[str]:
        """Publish a message, as the official client does.

        Args:
            topic: The full name of the topic.
            data: The message body.
            ordering_key: Needs ordering, which excludes hedging.
            retry: A ``google.api_core.retry.Retry``, or ``None`` for no retry; by default that of
                the publisher options.
            timeout: Seconds for each request, or ``None`` for no limit; by default that of the
                publisher options.
            attrs: The message's attributes, as text or UTF-8 bytes.

        Returns:
            A future of the message id.

        Raises:
            TypeError: If ``data`` is not ``bytes``, an attribute is neither ``str`` nor ``bytes``,
                or ``retry`` or ``timeout`` is of a type that cannot be interpreted.
            ValueError: If the hedge delay is not below ``timeout`` and below the timeout of
                ``retry``, or an ordering key is given without ordering.
            RuntimeError: If the publisher was stopped.
            google.cloud.pubsub_v1.publisher.exceptions.MessageTooLargeError: If the message would
                exceed what the service accepts in one request.
        """
        # The usual message takes the short way: data alone, no options, a topic that is known.
        mailbox = self._usual.get(topic)
        if (
            mailbox is None
            or attrs
            or type(data) is not bytes
            or retry is not _DEFAULT
            or timeout is not _DEFAULT
            or ordering_key != ""
            or (prefix := _prefixes.get(size := len(data))) is None
        ):
            return self._publish(topic, data, ordering_key, retry, timeout, attrs)
        future = _new(PublishFuture)
        future._state = PENDING
        future._asked = None
        future.prefix = prefix
        future.body = data
        future.start_time = _now()
        queue = mailbox.queue
        # A signal handler may raise after each call. Before the first there is no message yet;
        # from then on the library's thread is told of it, come what may.
        try:
            queue.append(future)
            if len(queue) >= mailbox.wanted or size > mailbox.bound:
                mailbox.wanted = TOLD
                _tell(mailbox)
        except BaseException:
            _tell(mailbox)
            raise
        return future

    def _publish(
        self,
        topic: str,
        data: bytes,
        ordering_key: str,
        retry: Any,
        timeout: Any,
        attrs: dict[str, Any],
    ) -> Future[str]:
        """Publish any message."""
        sender = self._sender
        if sender is None or is_patched():
            # As most programs call it, for those who have patched it.
            options = {"ordering_key": ordering_key, "retry": retry, "timeout": timeout}
            named = {name: options[name] for name in options if options[name] not in _DEFAULTS}
            officially: Future[str] = super().publish(topic, data, **named, **attrs)
            return officially
        if ordering_key != "":
            refuse_ordering_key(ordering_key)
        return self._publish_hedged(topic, data, retry, timeout, attrs)

    def _publish_hedged(
        self, topic: str, data: bytes, retry: Any, timeout: Any, attrs: dict[str, Any]
    ) -> Future[str]:
        """Publish a message without an ordering key."""
        sender: Any = self._sender
        future = PublishFuture()
        future.start_time = _now()
        size = messages.write(future, topic, data, attrs, is_traced=sender.is_traced)
        if future.body is data and size < _MAX_USUAL_SIZE:
            _prefixes[len(data)] = future.prefix
        is_default = retry is _DEFAULT and timeout is _DEFAULT
        policy = self._policies.default if is_default else self._policies.get(retry, timeout)
        try:
            self._pass_flow_control(sender.flow_control, future, size)
            messages.check_size(topic, len(future.prefix) + len(future.body))
            mailbox = sender.mailbox(topic, policy)
            runs = threads.LIBRARY.start()
            if runs and is_default and not sender.has_extras and not is_patched():
                sender.make_usual(topic, mailbox)
            if future.tracing is not None:
                future.tracing.batched()
            queue, size = mailbox.queue, len(future.body)
        except BaseException as error:
            if future.permit is not None:
                release = (sender.flow_control.release, (future.permit,))
                try:
                    release[0](*release[1])
                finally:  # one call of C code, should a signal handler end the other one
                    _tell((0.0, *release))
            if isinstance(error, FlowControlLimitError):
                refused: Future[str] = futures.Future()
                refused.set_exception(error)
                return refused
            if future.tracing is not None:
                future.tracing.refused(error)
            raise
        # As in ``publish``.
        try:
            queue.append(future)
            if len(queue) >= mailbox.wanted or size > mailbox.bound:
                mailbox.wanted = TOLD
                _tell(mailbox)
        except BaseException:
            _tell(mailbox)
            raise
        if not runs:
            threads.LIBRARY.run_once()
        return future

    def _pass_flow_control(
        self, flow_control: FlowControl, future: PublishFuture, size: int
    ) -> None:
        tracing = future.tracing
        if tracing is not None:
            tracing.flow_control_started()
        if flow_control.counts:
            future.permit = Permit(size)
            try:
                flow_control.add(future.permit)
            except FlowControlLimitError as error:
                if tracing is not None:
                    tracing.flow_control_refused(error)
                raise
        if tracing is not None:
            tracing.flow_control_ended()

    def stop(self) -> None:
        """Send what was accepted, and accept no more. Returns at once.

        What is in flight is still retried and hedged until it is decided.

        Raises:
            RuntimeError: If the publisher was stopped before.
        """
        if self._sender is None:
            super().stop()
            return
        if self._stop(self._sender):
            raise RuntimeError("Cannot stop a publisher already stopped.")

    def _stop(self, sender: Sender) -> bool:
        """Accept no more and send what is open; tell whether it was stopped before."""
        try:
            was_stopped = self._accept_no_more()
            sender.refuse("Cannot publish on a stopped publisher.")
        finally:
            sender.send_soon()
        return was_stopped

    def flush(self, timeout: float | None = None) -> None:
        """Send what was accepted and wait until all of it is decided, whether stored or failed.

        Messages published by other threads meanwhile are not waited for.

        Args:
            timeout: Seconds to wait at most; ``None`` waits as long as it takes, which the
                retry timeout bounds.

        Raises:
            concurrent.futures.TimeoutError: If messages are undecided after ``timeout``; they are
                still under way.
        """
        if self._sender is None:
            super().flush(timeout)
        else:
            self._sender.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Stop, flush, and close the channel. Closing again does nothing.

        Whoever closes at the same time waits as well.

        Args:
            timeout: Seconds to wait at most for what was accepted; ``None`` waits as long as it
                takes, which the retry timeout bounds.

        Raises:
            concurrent.futures.TimeoutError: If messages were undecided after ``timeout``. The
                publisher is closed then, and their futures fail with ``RuntimeError``.
        """
        if self._sender is None:
            super().close(timeout)
            return
        if self._closed:
            return
        try:
            self._stop(self._sender)
            self._sender.flush(timeout)
        finally:
            self._sender.abandon(
                RuntimeError("the publisher was closed before the message was stored")
            )
            threads.close_on_worker(self._sender.driver.rpc)
            self._close_transport()
            self._closed = True

    def _close_transport(self) -> None:
        threads.close_on_worker(self.transport)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: it can be neither pickled nor copied."""
        refuse_pickling(self)

    def __enter__(self) -> HedgedPublisher:
        """Return the publisher."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Flush, then close."""
        self.close()
