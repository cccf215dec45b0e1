"""The server's state: topics, subscriptions, stored messages. Knows no calls and no faults."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.pubsub_v1 import types

from hedged_pubsub.testing.records import StoredMessage

_Found = TypeVar("_Found")

# The raw protobuf classes: their proto-plus wrappers cost several microseconds a message.
TopicProto = types.Topic.pb()
SubscriptionProto = types.Subscription.pb()

DELETED_TOPIC: Final = "_deleted-topic_"
"""What a subscription shows as its topic once that is deleted; the real service's word."""

_DEFAULT_ACK_DEADLINE: Final = 10  # seconds

# Fields without which a test on this server says the same. All others, also those of later
# releases, promise what the server does not do: a test that relies on one must not pass here.
_TOPIC_FIELDS: Final = {
    *("name", "labels", "tags", "state", "kms_key_name", "message_storage_policy"),
    *("message_retention_duration", "satisfies_pzs"),
}
_SUBSCRIPTION_FIELDS: Final = {
    *("name", "topic", "ack_deadline_seconds", "labels", "tags", "state", "expiration_policy"),
    # These are about seeking, which is a method that the server does not have.
    *("message_retention_duration", "retain_acked_messages", "topic_message_retention_duration"),
}


class StatusError(Exception):
    """An error the client gets as a gRPC status.

    Attributes:
        code: the status code.
        details: the text that goes with it.
        retry_after: seconds to wait that go with it as RetryInfo; None for none.
    """

    def __init__(
        self, code: grpc.StatusCode, details: str, retry_after: float | None = None
    ) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Return code and text."""
        return f"{self.code.name}: {self.details}"


@dataclass(slots=True)
class Delivery:
    """A delivered message, leased to its consumer until it is acknowledged or expires."""

    ack_id: str
    message: Any
    expires: float
    consumer: object


class Subscription:
    """Delivers each message at least once: again when not acknowledged in time. Thread-safe."""

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._leases: dict[str, Delivery] = {}
        self._ack_ids = itertools.count(1)
        self._closed = False

    def add(self, messages: Iterable[Any]) -> None:
        """Queue messages."""
        with self._changed:
            self._waiting.extend(messages)
            self._changed.notify_all()

    def take(
        self,
        consumer: object,
        *,
        max_messages: int,
        max_outstanding: int = 0,
        ack_deadline: float = 0.0,
        timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Delivery]:
        """Wait for messages and lease them; return none when that was in vain.

        A limit of 0 is none. Every `wake` asks ``cancelled`` again.
        """
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._closed and not cancelled():
                now = time.monotonic()
                for expired in [d for d in self._leases.values() if d.expires <= now]:
                    del self._leases[expired.ack_id]
                    self._waiting.appendleft(expired.message)
                room = min(max_messages, len(self._waiting))
                if max_outstanding > 0:
                    outstanding = sum(d.consumer is consumer for d in self._leases.values())
                    room = min(room, max_outstanding - outstanding)
                if room > 0:
                    expires = now + (ack_deadline or self.proto.ack_deadline_seconds)
                    taken = [
                        Delivery(
                            str(next(self._ack_ids)), self._waiting.popleft(), expires, consumer
                        )
                        for _ in range(room)
                    ]
                    self._leases.update((delivery.ack_id, delivery) for delivery in taken)
                    return taken
                if now >= give_up:
                    break
                wake_up = min([give_up, *(d.expires for d in self._leases.values())])
                self._changed.wait(min(wake_up - now, threading.TIMEOUT_MAX))
            return []

    def acknowledge(self, ack_ids: Iterable[str]) -> None:
        """End leases for good. Unknown and late ids are ignored, as on the real service."""
        with self._changed:
            for ack_id in ack_ids:
                self._leases.pop(ack_id, None)
            self._changed.notify_all()

    def modify_ack_deadline(self, ack_ids: Iterable[str], seconds: float) -> None:
        """Let leases end ``seconds`` from now; 0 delivers the messages again at once."""
        expires = time.monotonic() + seconds
        with self._changed:
            for ack_id in self._leases.keys() & ack_ids:
                self._leases[ack_id].expires = expires
            self._changed.notify_all()

    def wake(self) -> None:
        """Let everything that waits ask ``cancelled`` again."""
        self.add(())

    def clear(self) -> None:
        """Forget all messages."""
        with self._changed:
            self._waiting.clear()
            self._leases.clear()

    def close(self) -> None:
        """End all waiting, for good."""
        self._closed = True
        self.wake()


class Broker:
    """Topics, subscriptions and messages. Thread-safe. Raises `StatusError` as the service does."""

    def __init__(self, *, auto_create_topics: bool) -> None:
        self._auto_create_topics = auto_create_topics
        self._lock = threading.Lock()
        self._topics: dict[str, Any] = {}
        self._subscriptions: dict[str, Subscription] = {}
        # The messages of one attempt with their ids, and what their records have in common.
        self._batches: list[tuple[Any, list[str], dict[str, Any]]] = []
        self._ids = itertools.count(1)

    def create_topic(self, topic: Any) -> Any:
        """Add a topic and return it."""
        _check_fields("topic", topic, _TOPIC_FIELDS)
        with self._lock:
            _add(self._topics, topic.name, topic, "topics")
        return topic

    def topic(self, path: str) -> Any:
        """Return a topic."""
        with self._lock:
            return _find(self._topics, path)

    def topics(self, project: str) -> list[Any]:
        """Return the topics of a project (``"projects/…"``), in order of creation."""
        with self._lock:
            return [t for path, t in self._topics.items() if path.startswith(project + "/")]

    def update_topic(self, topic: Any, mask: Any) -> Any:
        """Set the fields of a topic that the mask names and return the topic."""
        if not mask.paths or "name" in mask.paths:
            raise invalid("update_mask must name at least one field, and not the name")
        with self._lock:
            updated = TopicProto()
            updated.CopyFrom(_find(self._topics, topic.name))
            try:
                mask.MergeMessage(topic, updated, True, True)
            except (KeyError, ValueError):
                raise invalid(
                    f"update_mask={list(mask.paths)} must name fields of a topic"
                ) from None
            _check_fields("topic", updated, _TOPIC_FIELDS)
            self._topics[topic.name] = updated
            return updated

    def delete_topic(self, path: str) -> None:
        """Remove a topic. Its subscriptions stay, as on the real service."""
        with self._lock:
            _find(self._topics, path)
            del self._topics[path]
            for subscription in self._subscriptions.values():
                if subscription.proto.topic == path:
                    subscription.proto.topic = DELETED_TOPIC

    def create_subscription(self, proto: Any) -> Any:
        """Add a subscription and return its protobuf message."""
        if not proto.push_config.ByteSize():
            proto.ClearField("push_config")  # an empty one is how to ask for none
        _check_fields("subscription", proto, _SUBSCRIPTION_FIELDS)
        deadline = proto.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE
        if not 10 <= deadline <= 600:
            raise invalid(
                f"ack_deadline_seconds={deadline} must be between 10 and 600, or 0 for the default"
            )
        proto.ack_deadline_seconds = deadline
        with self._lock:
            _find(self._topics, proto.topic)
            _add(self._subscriptions, proto.name, Subscription(proto), "subscriptions")
        return proto

    def subscription(self, path: str) -> Subscription:
        """Return a subscription."""
        with self._lock:
            return _find(self._subscriptions, path)

    def subscriptions(self, *, project: str | None = None, topic: str | None = None) -> list[Any]:
        """Return the subscriptions of a project (``"projects/…"``) or of a topic."""
        with self._lock:
            if topic is not None:
                _find(self._topics, topic)
            return [
                s.proto
                for path, s in self._subscriptions.items()
                if (topic is None or s.proto.topic == topic)
                and (project is None or path.startswith(project + "/"))
            ]

    def delete_subscription(self, path: str) -> None:
        """Remove a subscription; whoever waits on it gets NOT_FOUND."""
        with self._lock:
            subscription = _find(self._subscriptions, path)
            del self._subscriptions[path]
        subscription.close()

    def check_topic(self, path: str) -> None:
        """Check that one can publish to the topic, creating it if topics are auto-created."""
        with self._lock:
            if path in self._topics:
                return
            _check_path(path, "topics")
            if self._auto_create_topics:
                _add(self._topics, path, TopicProto(name=path), "topics")
            _find(self._topics, path)

    def publish(
        self, topic: str, messages: Any, *, attempt_number: int | None, call: int
    ) -> list[str]:
        """Store a request's messages, hand them to the topic's subscriptions; return their ids."""
        now = time.time()
        with self._lock:
            _find(self._topics, topic)
            ids = [str(next(self._ids)) for _ in messages]
            common = {"topic": topic, "attempt_number": attempt_number, "call": call}
            self._batches.append((messages, ids, {**common, "publish_time": now}))
            subscriptions = [s for s in self._subscriptions.values() if s.proto.topic == topic]
            if subscriptions:
                for message_id, message in zip(ids, messages, strict=True):
                    message.message_id = message_id
                    message.publish_time.FromNanoseconds(int(now * 1e9))
                for subscription in subscriptions:
                    subscription.add(messages)
        return ids

    def messages(self, topic: str | None) -> tuple[StoredMessage, ...]:
        """Return what was stored, in order; of one topic (its path) or of all."""
        with self._lock:
            batches = [batch for batch in self._batches if topic in (None, batch[2]["topic"])]
        return tuple(
            StoredMessage(
                message_id=message_id,
                data=message.data,
                attributes=tuple(sorted(message.attributes.items())),
                ordering_key=message.ordering_key,
                **common,
            )
            for messages, ids, common in batches
            for message, message_id in zip(messages, ids, strict=True)
        )

    def clear(self) -> None:
        """Forget all messages, also those the subscriptions have not delivered yet."""
        with self._lock:
            self._batches.clear()
            for subscription in self._subscriptions.values():
                subscription.clear()


def _find(known: Mapping[str, _Found], path: str) -> _Found:
    found = known.get(path)
    if found is None:
        raise StatusError(grpc.StatusCode.NOT_FOUND, f"{path} does not exist")
    return found


def _add(known: dict[str, _Found], path: str, new: _Found, collection: str) -> None:
    _check_path(path, collection)
    if path in known:
        raise StatusError(grpc.StatusCode.ALREADY_EXISTS, f"{path} exists already")
    known[path] = new


def _check_path(path: str, collection: str) -> None:
    if not re.fullmatch(f"projects/[^/]+/{collection}/[^/]+", path):
        raise invalid(f"name={path!r} must be of the form projects/PROJECT/{collection}/NAME")


def _check_fields(kind: str, proto: Any, known: set[str]) -> None:
    for field, _value in proto.ListFields():
        if field.name not in known:
            details = (
                f"{kind}.{field.name} is not implemented by this test server: leave it out, or "
                "use the service, or Google's emulator if that has it"
            )
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, details)


def invalid(details: str) -> StatusError:
    """Return the error for a request that makes no sense."""
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, details)
