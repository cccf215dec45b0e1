"""One publisher class in one situation, and what there is to see."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable
from typing import Any, Final

import grpc
import pytest
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

Message = tuple[bytes, dict[str, str], str]
"""A message's data, attributes and ordering key."""

Program = Callable[["Scene"], None]
"""A small program for either publisher class."""


class SentRequests(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Notes how many messages each publish request has, and the sorted names of its headers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.headers: list[tuple[str, ...]] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass a call on."""
        if details.method.endswith("/Publish"):
            self.sizes.append(len(request.messages))
            self.headers.append(tuple(sorted(key for key, _ in details.metadata)))
        return continuation(details, request)


def observed_transport(
    address: str, interceptor: grpc.UnaryUnaryClientInterceptor
) -> PublisherGrpcTransport:
    """Make a transport to a server for a publisher whose calls pass through an interceptor."""
    channel = grpc.intercept_channel(grpc.insecure_channel(address), interceptor)
    return PublisherGrpcTransport(channel=channel)


class Scene:
    """A topic of its own, publishers of one class, and notes of what happens."""

    def __init__(self, publisher_class: type[PublisherClient], address: str) -> None:
        self.topic = f"projects/parity-{uuid.uuid4().hex}/topics/orders"
        self.sent = SentRequests()  # by publishers that are made by ``make_observed``
        self.ids: set[str] = set()  # of messages that must be received
        self.messages: dict[str, Message] = {}  # all that were received, by id
        self._publisher_class = publisher_class
        self._address = address
        self._notes: list[str] = []
        self._cleanup = contextlib.ExitStack()

    def make(self, *arguments: Any, **keywords: Any) -> Any:
        """Make a publisher, as a program does that knows nothing of hedging."""
        publisher = self._publisher_class(*arguments, **keywords)
        self._cleanup.callback(publisher.transport.close)
        return publisher

    def make_observed(self, *arguments: Any, address: str | None = None) -> Any:
        """Make a publisher whose requests are noted in ``sent``."""
        transport = observed_transport(address or self._address, self.sent)
        return self.make(*arguments, transport=transport)

    def note(self, what: str, value: object) -> None:
        """Note a value by its text, in which the topic's project has the same name each time."""
        project = self.topic.split("/")[1]
        self._notes.append(f"{what}: {str(value).replace(project, 'parity')}")

    def attempt(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something, note what it returns or raises, and return it; an error is None."""
        try:
            result = function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, that is what is compared
            self.note(what, f"{_type(error)}: {error}{_cause(error)}")
            return None
        self.note(what, f"returns {_kind(result)}")
        return result

    def outcome(self, what: str, *futures: Any, timeout: float = 30) -> None:
        """Wait for publishes and note what became of each; None is a publish that was refused."""
        for future in filter(None, futures):
            if message_id := self.attempt(what, future.result, timeout=timeout):
                self.ids.add(message_id)

    def publish(
        self, publisher: Any, topic: Any = None, data: Any = b"data", **keywords: Any
    ) -> None:
        """Publish and note the outcome; a topic may contain the scene's as ``{topic}``."""
        topic = topic.format(topic=self.topic) if isinstance(topic, str) else topic or self.topic
        future = self.attempt("publish", publisher.publish, topic=topic, data=data, **keywords)
        self.outcome("outcome", future)

    def observe(self, program: Program) -> list[str]:
        """Run a program, and return its notes and the messages that it stored."""
        with (
            pytest.MonkeyPatch.context() as patch,
            self._cleanup,
            # The one that a client makes for an emulator takes no more than 4 MB.
            grpc.insecure_channel(
                self._address, [("grpc.max_receive_message_length", -1)]
            ) as channel,
        ):
            subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
            patch.setenv("PUBSUB_EMULATOR_HOST", self._address)
            admin = self._cleanup.enter_context(PublisherClient())
            admin.create_topic(name=self.topic)
            subscription = self.topic.replace("topics", "subscriptions")
            request = {"name": subscription, "topic": self.topic, "ack_deadline_seconds": 600}
            subscriber.create_subscription(request)
            program(self)
            last = admin.publish(self.topic, b"the last message").result(timeout=30)
            self.messages = _receive(subscriber, subscription, {last, *self.ids})
            del self.messages[last]
        unknown = len(self.messages.keys() - self.ids)
        stored = sorted(f"stored: {_shorten(*message)}" for message in self.messages.values())
        return [*self._notes, f"stored without a future that knows the id: {unknown}", *stored]


def _receive(subscriber: SubscriberClient, subscription: str, ids: set[str]) -> dict[str, Message]:
    """Return what has come, by id, when all messages with these ids have."""
    messages: dict[str, Message] = {}
    while ids - messages.keys():
        answer = subscriber.pull(subscription=subscription, max_messages=1000, timeout=60)
        for message in (received.message for received in answer.received_messages):
            described = (message.data, dict(message.attributes), message.ordering_key)
            messages[message.message_id] = described
    return messages


def _shorten(data: bytes, attributes: dict[str, str], ordering_key: str) -> str:
    text = repr(data)
    if len(text) > 60:
        text = f"{text[:20]}... of {len(data)} bytes, hash {hash(data)}"
    return f"{text} {sorted(attributes.items())} {ordering_key!r}"


def _type(value: object) -> str:
    # Python 3.10 has a TimeoutError of its own for futures.
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return re.sub(r"^(builtins|concurrent\.futures\._base)\.", "", name)


def _kind(value: object) -> str:
    # By what the documentation promises: the class behind it may be a subclass.
    if isinstance(value, PublisherClient):
        return "a publisher"
    return "a future" if hasattr(value, "add_done_callback") else _type(value)


def _cause(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, grpc.RpcError):
        # Its class differs between blocking and other calls, and is private either way.
        return f", caused by grpc.RpcError {cause.code().name}"
    return f", caused by {_type(cause)}{_cause(cause)}" if cause else ""


MISSING: Final = "{topic}-missing"
"""A topic that does not exist, for ``Scene.publish``."""
