"""The server's state: topics, subscriptions, stored messages. Knows no calls and no faults."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.pubsub_v1 import types

from hedged_pubsub.testing.records import StoredMessage
from hedged_pubsub.testing.subscription import Subscription

# The raw protobuf classes: their proto-plus wrappers cost several microseconds a message.
TopicProto = types.Topic.pb()
SubscriptionProto = types.Subscription.pb()

DELETED_TOPIC = "_deleted-topic_"
"""What a subscription shows as its topic once that is deleted; the real service's word."""

_DEFAULT_ACK_DEADLINE = 10
_PATH = re.compile(r"projects/[^/]+/(topics|subscriptions)/[^/]+")


class StatusError(Exception):
    """An error the client gets as a gRPC status.

    Attributes:
        code: the status code.
        details: the text that goes with it.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        """Returns code and text."""
        return f"{self.code.name}: {self.details}"


@dataclass(frozen=True, slots=True)
class _StoredBatch:
    """The messages of one attempt, kept as they came; turned into records when asked for."""

    topic: str
    messages: Any
    ids: list[str]
    publish_time: float
    attempt_number: int | None
    call: int

    def records(self) -> Iterator[StoredMessage]:
        for message_id, message in zip(self.ids, self.messages, strict=True):
            yield StoredMessage(
                message_id=message_id,
                topic=self.topic,
                data=message.data,
                attributes=tuple(sorted(message.attributes.items())),
                ordering_key=message.ordering_key,
                publish_time=self.publish_time,
                attempt_number=self.attempt_number,
                call=self.call,
            )


class Broker:
    """Topics, subscriptions and messages. Thread-safe.

    Args:
        auto_create_topics: whether publishing to an unknown topic creates it.
    """

    def __init__(self, *, auto_create_topics: bool) -> None:
        self._auto_create_topics = auto_create_topics
        self._lock = threading.Lock()
        self._topics: dict[str, Any] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._batches: list[_StoredBatch] = []
        self._ids = itertools.count(1)

    def create_topic(self, topic: Any) -> Any:
        """Adds a topic and returns it.

        Raises:
            StatusError: ALREADY_EXISTS, or INVALID_ARGUMENT for a malformed name.
        """
        _check_path(topic.name, "topics")
        with self._lock:
            if topic.name in self._topics:
                raise StatusError(
                    grpc.StatusCode.ALREADY_EXISTS, f"topic {topic.name} exists already"
                )
            self._topics[topic.name] = topic
        return topic

    def topic(self, path: str) -> Any:
        """Returns a topic.

        Raises:
            StatusError: NOT_FOUND.
        """
        with self._lock:
            return self._topic(path)

    def topics(self, project: str) -> list[Any]:
        """Returns the topics of a project (``"projects/…"``), in order of creation."""
        with self._lock:
            return [t for path, t in self._topics.items() if path.startswith(project + "/")]

    def update_topic(self, topic: Any, mask: Any) -> Any:
        """Sets the fields of a topic that the mask names and returns the topic.

        Raises:
            StatusError: NOT_FOUND, or INVALID_ARGUMENT for a mask that names no settable field.
        """
        if not mask.paths or "name" in mask.paths:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "update_mask must name at least one field, and not the name",
            )
        with self._lock:
            updated = TopicProto()
            updated.CopyFrom(self._topic(topic.name))
            try:
                mask.MergeMessage(topic, updated, True, True)
            except (KeyError, ValueError):
                raise StatusError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"update_mask={list(mask.paths)} must name fields of a topic",
                ) from None
            self._topics[topic.name] = updated
            return updated

    def delete_topic(self, path: str) -> None:
        """Removes a topic. Its subscriptions stay, as on the real service.

        Raises:
            StatusError: NOT_FOUND.
        """
        with self._lock:
            self._topic(path)
            del self._topics[path]
            for subscription in self._subscriptions.values():
                if subscription.proto.topic == path:
                    subscription.proto.topic = DELETED_TOPIC

    def create_subscription(self, proto: Any) -> Any:
        """Adds a subscription and returns its protobuf message.

        Raises:
            StatusError: ALREADY_EXISTS, NOT_FOUND for its topic, or INVALID_ARGUMENT.
        """
        _check_path(proto.name, "subscriptions")
        deadline = proto.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE
        if not 10 <= deadline <= 600:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"ack_deadline_seconds={deadline} must be between 10 and 600, or 0 for the default",
            )
        proto.ack_deadline_seconds = deadline
        with self._lock:
            self._topic(proto.topic)
            if proto.name in self._subscriptions:
                raise StatusError(
                    grpc.StatusCode.ALREADY_EXISTS, f"subscription {proto.name} exists already"
                )
            self._subscriptions[proto.name] = Subscription(proto)
        return proto

    def subscription(self, path: str) -> Subscription:
        """Returns a subscription.

        Raises:
            StatusError: NOT_FOUND.
        """
        with self._lock:
            found = self._subscriptions.get(path)
        if found is None:
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"subscription {path} does not exist")
        return found

    def subscriptions(self, *, project: str | None = None, topic: str | None = None) -> list[Any]:
        """Returns the subscriptions of a project (``"projects/…"``) or of a topic.

        Raises:
            StatusError: NOT_FOUND for the topic.
        """
        with self._lock:
            if topic is not None:
                self._topic(topic)
            return [
                s.proto
                for path, s in self._subscriptions.items()
                if (topic is None or s.proto.topic == topic)
                and (project is None or path.startswith(project + "/"))
            ]

    def delete_subscription(self, path: str) -> None:
        """Removes a subscription; whoever waits on it gets NOT_FOUND.

        Raises:
            StatusError: NOT_FOUND.
        """
        subscription = self.subscription(path)
        with self._lock:
            self._subscriptions.pop(path, None)
        subscription.close()

    def check_topic(self, path: str) -> None:
        """Checks that one can publish to the topic, creating it if topics are auto-created.

        Raises:
            StatusError: NOT_FOUND, or INVALID_ARGUMENT for a malformed name.
        """
        with self._lock:
            if path in self._topics:
                return
            if self._auto_create_topics:
                _check_path(path, "topics")
                self._topics[path] = TopicProto(name=path)
                return
            self._topic(path)

    def publish(
        self, topic: str, messages: Any, *, attempt_number: int | None, call: int
    ) -> list[str]:
        """Stores messages, hands them to the topic's subscriptions and returns their ids.

        Args:
            topic: path of the topic.
            messages: protobuf messages; the broker keeps them.
            attempt_number: of the attempt that brought them, for the records.
            call: number of the call that brought them, for the records.

        Raises:
            StatusError: NOT_FOUND.
        """
        now = time.time()
        with self._lock:
            self._topic(topic)
            ids = [str(next(self._ids)) for _ in messages]
            self._batches.append(_StoredBatch(topic, messages, ids, now, attempt_number, call))
            subscriptions = [s for s in self._subscriptions.values() if s.proto.topic == topic]
            if subscriptions:
                for message_id, message in zip(ids, messages, strict=True):
                    message.message_id = message_id
                    message.publish_time.FromNanoseconds(int(now * 1e9))
                for subscription in subscriptions:
                    subscription.add(messages)
        return ids

    def messages(self, topic: str | None) -> tuple[StoredMessage, ...]:
        """Returns what was stored, in order; of one topic (its path) or of all."""
        with self._lock:
            batches = list(self._batches)
        return tuple(
            record
            for batch in batches
            if topic is None or batch.topic == topic
            for record in batch.records()
        )

    def clear(self) -> None:
        """Forgets all messages, also those the subscriptions have not delivered yet."""
        with self._lock:
            self._batches.clear()
            for subscription in self._subscriptions.values():
                subscription.clear()

    def _topic(self, path: str) -> Any:
        found = self._topics.get(path)
        if found is None:
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"topic {path} does not exist")
        return found


def _check_path(path: str, collection: str) -> None:
    match = _PATH.fullmatch(path)
    if match is None or match[1] != collection:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"name={path!r} must be of the form projects/PROJECT/{collection}/NAME",
        )
