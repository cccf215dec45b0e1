"""``HedgedPublisher``: the official publisher client, with publish hedging."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import grpc
from google.api_core import gapic_v1
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._channels import second_channel
from hedged_pubsub._official import FlowControl
from hedged_pubsub._options import (
    check_hedging_settings,
    is_switched_off,
    refuse_ordering,
    refuse_transport,
)
from hedged_pubsub._sync.pipeline import Pipeline, wait
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats

_DEFAULT: Final = gapic_v1.method.DEFAULT
_GRPC_OR_OFF: Final = "'grpc', or pass hedging_settings=None"


class HedgedPublisher(pubsub_v1.PublisherClient):  # type: ignore[misc]
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
        kwargs: As officially: ``credentials``, ``transport``, ``client_options``, ``client_info``.

    Raises:
        TypeError: If ``hedging_settings`` is neither ``HedgingSettings`` nor ``None``, or if the
            options' retry or timeout is of a type that cannot be interpreted.
        ValueError: If ordering is enabled, if the hedge delay is not below the timeout of the
            publish request and below the retry timeout, or if the transport has no gRPC calls that
            can be cancelled (``rest``, ``grpc_asyncio``).
    """

    def __init__(
        self,
        batch_settings: pubsub_v1.types.BatchSettings | Sequence[Any] = (),
        publisher_options: pubsub_v1.types.PublisherOptions | Sequence[Any] = (),
        *,
        hedging_settings: HedgingSettings | None = HedgingSettings(),  # noqa: B008 - it is frozen
        exit_timeout: float = 10.0,
        **kwargs: Any,
    ) -> None:
        check_hedging_settings(hedging_settings)
        _check_exit_timeout(exit_timeout)
        if is_switched_off():
            hedging_settings = None
        if hedging_settings is not None:
            refuse_ordering(publisher_options, "disable ordering, or pass hedging_settings=None")
            refuse_transport(kwargs.get("transport"), PublisherGrpcTransport, _GRPC_OR_OFF)
        make_channel = None
        if hedging_settings is not None and hedging_settings.second_connection:
            make_channel = second_channel(kwargs, PublisherGrpcTransport, grpc.insecure_channel)
        super().__init__(batch_settings, publisher_options, **kwargs)
        self._hedging_settings = hedging_settings
        self._closed = False
        self._pipeline: Pipeline | None = None  # and none with hedging off
        # Undecided messages with hedging off; the pipeline knows its own.
        self._undecided: set[futures.Future] = set()
        if hedging_settings is None:
            return
        try:
            refuse_transport(self.transport, PublisherGrpcTransport, _GRPC_OR_OFF)
            self._pipeline = Pipeline(
                hedging_settings,
                batch_settings=self.batch_settings,
                options=self.publisher_options,
                flow_control=FlowControl(self._flow_controller),
                transport=self.transport,
                make_channel=make_channel,
                exit_timeout=exit_timeout,
            )
        except BaseException:
            if kwargs.get("transport") is not self.transport:
                self.transport.close()
            raise

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
        return HedgingStats() if self._pipeline is None else self._pipeline.stats(topic)

    def publish(
        self,
        topic: str,
        data: bytes,
        ordering_key: str = "",
        retry: Any = _DEFAULT,
        timeout: Any = _DEFAULT,
        **attrs: bytes | str,
    ) -> futures.Future:
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
        if self._pipeline is None:
            future = super().publish(topic, data, ordering_key, retry, timeout, **attrs)
            self._undecided.add(future)
            future.add_done_callback(self._undecided.discard)
            return future
        if ordering_key != "":
            raise ValueError(
                "Cannot publish a message with an ordering key when message ordering is not "
                "enabled."
            )
        return self._pipeline.publish(topic, data, attrs, retry, timeout)

    def stop(self) -> None:
        """Send what was accepted, and accept no more. Returns at once.

        What is in flight is still retried and hedged until it is decided.

        Raises:
            RuntimeError: If the publisher was stopped before.
        """
        if self._pipeline is None:
            super().stop()
        else:
            self._pipeline.stop()
            self._is_stopped = True  # what the official client's other methods look at

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
        if self._pipeline is not None:
            self._pipeline.flush(timeout)
            return
        with self._batch_lock:
            if not self._is_stopped:
                self._commit_sequencers()
        wait(list(self._undecided.copy()), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Stop, flush, and close the channel. Closing again does nothing.

        Args:
            timeout: Seconds to wait at most for what was accepted; ``None`` waits as long as it
                takes, which the retry timeout bounds.

        Raises:
            concurrent.futures.TimeoutError: If messages were undecided after ``timeout``. The
                publisher is closed then, and their futures fail with ``RuntimeError``.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._is_stopped:
                self.stop()
            self.flush(timeout)
        finally:
            if self._pipeline is not None:
                self._pipeline.abandon(
                    RuntimeError("the publisher was closed before the message was stored")
                )
                self._pipeline.close()
            self.transport.close()

    def __enter__(self) -> HedgedPublisher:
        """Return the publisher."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush, then close."""
        self.close()


def _check_exit_timeout(exit_timeout: object) -> None:
    if isinstance(exit_timeout, bool) or not isinstance(exit_timeout, (int, float)):
        raise TypeError(f"exit_timeout must be a number of seconds; got {exit_timeout!r}")
    # Written so that NaN fails it.
    if not 0 <= exit_timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"exit_timeout must be from 0 to {threading.TIMEOUT_MAX:g} seconds; "
            f"got {exit_timeout!r}"
        )
