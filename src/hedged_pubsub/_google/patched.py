"""``PublisherClient.publish`` as others have patched it, tracers above all.

Whatever is put around the official method calls it in the end, with what it has added to the
message. The official method hands a message to a sequencer: with hedging on, to one that has it
hedged, so that nothing that is patched has to know of us.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import FunctionType
from typing import Any, Final

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import client

from hedged_pubsub._google.unhedged import UnhedgedPublisher


def _is_official(publish: object) -> bool:
    # What wraps it says so, or comes from another module.
    is_function = type(publish) is FunctionType and not hasattr(publish, "__wrapped__")
    return is_function and publish.__module__ == client.__name__


# The class itself: a program may have put ours in its place, for libraries that look it up there.
_CLIENT: Final = pubsub_v1.PublisherClient
_OFFICIAL: Final = _CLIENT.publish if _is_official(_CLIENT.publish) else None


def is_patched() -> bool:
    """Tell whether publishing goes through code that is neither Google's nor ours."""
    return _CLIENT.publish is not _OFFICIAL


class PatchablePublisher(UnhedgedPublisher):
    """The official client, whose ``publish`` can be led to another one once it is through."""

    _publish_instead: weakref.WeakMethod[Callable[..., Future[str]]] | None = None

    def _lead_to(self, publish: Callable[..., Future[str]]) -> None:
        """Let messages that the official ``publish`` accepts go to this method of the publisher.

        It is called with the topic, the data, the retry, the timeout and the attributes. It does
        what the official client does otherwise: locking, flow control, tracing.
        """
        # Not the method itself: a publisher that holds itself would end late, in a collection.
        self._publish_instead = weakref.WeakMethod(publish)
        self._batch_lock = contextlib.nullcontext()
        self._flow_controller = _NoFlowControl()
        self._open_telemetry_enabled = False

    @property
    def open_telemetry_enabled(self) -> bool:
        """Whether messages have spans; officially."""
        return bool(self.publisher_options.enable_open_telemetry_tracing)

    def _get_or_create_sequencer(self, topic: str, ordering_key: str) -> Any:
        if self._publish_instead is None:
            return super()._get_or_create_sequencer(topic, ordering_key)
        return _Sequencer(topic, self._publish_instead())

    def _ensure_commit_timer_runs_no_lock(self) -> None:
        if self._publish_instead is None:
            super()._ensure_commit_timer_runs_no_lock()


class _Sequencer:
    def __init__(self, topic: str, publish: Any) -> None:
        self._topic = topic
        self._publish = publish

    def publish(self, wrapper: Any, retry: object, timeout: object) -> Future[str]:
        message = wrapper.message
        attributes = dict(message.attributes)
        future: Future[str] = self._publish(self._topic, message.data, retry, timeout, attributes)
        return future


class _NoFlowControl:
    def add(self, message: object) -> None:
        """Do nothing."""

    def release(self, message: object) -> None:
        """Do nothing, either."""
