"""The way of a message from ``publish()`` to its outcome."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any, Final

from google.api_core import gapic_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._batch import make_message, serialize_message
from hedged_pubsub._channels import MakeChannel
from hedged_pubsub._official import FlowControl, publish_defaults
from hedged_pubsub._sync import process, threads
from hedged_pubsub._sync.batcher import Batcher
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub._tracing import MessageTracing
from hedged_pubsub.call_policy import CallPolicies
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats

_DEFAULT: Final = gapic_v1.method.DEFAULT


class Pipeline:
    """Flow control, batching and sending for one publisher.

    Args:
        settings: When to hedge, and the budget.
        batch_settings: When a batch is full, and how long it waits.
        options: The publisher's options.
        flow_control: Lends credit for each message.
        transport: Where requests go.
        make_channel: Makes a channel for hedges; ``None`` if they share the transport's.
        exit_timeout: Seconds that the end of the interpreter waits for what was accepted.

    Raises:
        TypeError: If the options' retry or timeout is of a type that cannot be interpreted.
        ValueError: If the hedge delay is not below both timeouts.
    """

    def __init__(
        self,
        settings: HedgingSettings,
        *,
        batch_settings: BatchSettings,
        options: PublisherOptions,
        flow_control: FlowControl,
        transport: PublisherGrpcTransport,
        make_channel: MakeChannel | None,
        exit_timeout: float,
    ) -> None:
        method_retry, method_timeout = publish_defaults(transport)
        self._policies = CallPolicies(
            options_retry=options.retry,
            options_timeout=options.timeout,
            method_retry=method_retry,
            method_timeout=method_timeout,
            hedge_delay=settings.initial_hedge_delay,
        )
        self._tracing = options.enable_open_telemetry_tracing
        self._flow_control = flow_control
        self._driver = Driver(settings, threads.SCHEDULER, threads.WORKERS, threads.CLOCK)
        self._rpc = PublishRpc(
            transport, make_channel, threads.SCHEDULER, threads.WORKERS, threads.CLOCK
        )
        self._batcher = Batcher(
            settings=batch_settings,
            flow_control=flow_control,
            rpc=self._rpc,
            driver=self._driver,
            scheduler=threads.SCHEDULER,
            workers=threads.WORKERS,
            clock=threads.CLOCK,
        )
        process.look_after(self._batcher, exit_timeout)

    def publish(
        self, topic: str, data: bytes, attributes: dict[str, Any], retry: Any, timeout: Any
    ) -> futures.Future:
        """Accept a message; see ``HedgedPublisher.publish``."""
        publish_start_time = time.time()
        message = make_message(data, attributes) if self._tracing else None
        body = serialize_message(data, attributes) if message is None else b""
        if retry is _DEFAULT and timeout is _DEFAULT:
            policy = self._policies.default
        else:
            policy = self._policies.get(retry, timeout)
        if message is not None:
            return self._publish_traced(topic, message, policy, publish_start_time)
        if not self._flow_control.counts:
            return self._batcher.add(topic, body, policy, publish_start_time)
        try:
            self._flow_control.borrow(len(body))
        except FlowControlLimitError as error:
            return _failed(error)
        try:
            return self._batcher.add(topic, body, policy, publish_start_time)
        except BaseException:
            self._flow_control.give_back(len(body))
            raise

    def _publish_traced(
        self, topic: str, message: Any, policy: Any, publish_start_time: float
    ) -> futures.Future:
        tracing = MessageTracing(message, topic)
        body: bytes = message.SerializeToString()
        tracing.wait_for_credit()
        try:
            self._flow_control.borrow(len(body))
        except FlowControlLimitError as error:
            tracing.refused_credit(error)
            return _failed(error)
        tracing.got_credit()
        try:
            future = self._batcher.add(topic, body, policy, publish_start_time, tracing)
        except BaseException as error:
            self._flow_control.give_back(len(body))
            tracing.refused(error)
            raise
        tracing.batched()
        return future

    def flush(self, timeout: float | None) -> None:
        """Send what was accepted and wait until it is decided; see ``HedgedPublisher.flush``."""
        self._batcher.commit_all()
        wait(self._batcher.undecided(), timeout)

    def stop(self) -> None:
        """Send what was accepted, and accept no more."""
        self._batcher.stop()

    def abandon(self, error: BaseException) -> None:
        """End all that is under way with an error."""
        self._driver.abandon(error)

    def close(self) -> None:
        """Close the connections that were opened beside the transport's."""
        self._rpc.close()

    def stats(self, topic: str | None) -> HedgingStats:
        """Return a snapshot of one topic, or of all."""
        return self._driver.stats(topic)


def wait(accepted: list[Any], timeout: float | None) -> None:
    """Wait for futures.

    Raises:
        concurrent.futures.TimeoutError: If some are not done after ``timeout`` seconds.
    """
    _, undecided = concurrent.futures.wait(accepted, timeout)
    if undecided:
        raise concurrent.futures.TimeoutError(
            f"{len(undecided)} of {len(accepted)} messages are not decided after {timeout:g} s"
        )


def _failed(error: BaseException) -> futures.Future:
    future = futures.Future()
    future.set_exception(error)
    return future
