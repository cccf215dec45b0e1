"""One publisher class in one situation, and what there is to see."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.contract.sent import SentRequests, observed_transport

TIMEOUT_SECONDS: Final = 30.0
_SENTINEL: Final = b"the last message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one publisher class did in one case; two of them can be compared.

    Attributes:
        notes: What the program saw, in order.
        stored: The messages that a subscriber gets, sorted.
    """

    notes: tuple[str, ...]
    stored: tuple[str, ...]


class Scene:
    """A topic of its own, publishers of one class, and a note of what happens.

    Args:
        publisher_class: The class under observation.
        address: The emulator's, ``host:port``; the environment names it as well.

    Attributes:
        topic: The topic's full name.
        sent: The requests of the publishers made by ``make_observed``.
    """

    def __init__(self, publisher_class: type[PublisherClient], address: str) -> None:
        self.publisher_class = publisher_class
        # Under any name the same text, so that texts can be compared.
        self._project = f"parity-{uuid.uuid4().hex}"
        self.topic = f"projects/{self._project}/topics/orders"
        self._subscription = f"projects/{self._project}/subscriptions/orders"
        self.sent = SentRequests()
        self._address = address
        self._notes: list[str] = []
        self._ids: set[str] = set()
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Scene:
        """Create the topic, and the subscription that gets what is published to it."""
        self._admin = PublisherClient()
        self._cleanup.callback(self._admin.transport.close)
        # The channel that the client makes for an emulator takes no more than 4 MB.
        channel = grpc.insecure_channel(self._address, [("grpc.max_receive_message_length", -1)])
        transport = SubscriberGrpcTransport(channel=channel)
        self._subscriber = self._cleanup.enter_context(SubscriberClient(transport=transport))
        self._admin.create_topic(name=self.topic)
        self._subscriber.create_subscription(name=self._subscription, topic=self.topic)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all clients."""
        self._cleanup.close()

    def make(self, *arguments: Any, **keywords: Any) -> Any:
        """Make a publisher, as a program does that knows nothing of hedging."""
        publisher = self.publisher_class(*arguments, **keywords)
        self._cleanup.callback(publisher.transport.close)
        return publisher

    def make_observed(self, *arguments: Any) -> Any:
        """Make a publisher whose requests are noted in ``sent``."""
        return self.make(*arguments, transport=observed_transport(self._address, self.sent))

    def note(self, what: str, value: object) -> None:
        """Take down a value by its text."""
        self._notes.append(f"{what}: {str(value).replace(self._project, 'parity')}")

    def note_error(self, what: str, error: BaseException) -> None:
        """Take down an error: its type, its text, and what caused it."""
        self.note(what, f"{_type(error)}: {error}{_cause(error)}")

    def attempt(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something, and take down what it raises.

        Returns:
            What the function returns; ``None`` if it raises.
        """
        try:
            result = function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, that is what is compared
            self.note_error(what, error)
            return None
        self.note(what, f"returns {_kind(result)}")
        return result

    def outcome(self, what: str, future: Any, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait for a publish, and take down what became of it."""
        try:
            message_id = future.result(timeout=timeout)
        except Exception as error:  # noqa: BLE001 - as above
            self.note_error(what, error)
        else:
            self._ids.add(message_id)
            self.note(what, f"stored, id is a {_type(message_id)}")

    def observe(self) -> Observation:
        """Receive what was stored, and return all there is to see."""
        messages = self._received()
        unknown = messages.keys() - self._ids
        self.note("stored without a future that knows the id", len(unknown))
        return Observation(notes=tuple(self._notes), stored=tuple(sorted(messages.values())))

    def _received(self) -> dict[str, str]:
        """Pull until the last message comes, and every other whose id is known."""
        last = self._admin.publish(self.topic, _SENTINEL).result(TIMEOUT_SECONDS)
        missing = {last, *self._ids}
        messages = {}
        while missing:
            pulled = self._subscriber.pull(
                subscription=self._subscription, max_messages=1000, timeout=TIMEOUT_SECONDS
            ).received_messages
            self._subscriber.acknowledge(
                subscription=self._subscription, ack_ids=[item.ack_id for item in pulled]
            )
            for message in (item.message for item in pulled):
                missing.discard(message.message_id)
                messages[message.message_id] = _describe(message)
        del messages[last]
        return messages


def _describe(message: Any) -> str:
    data = repr(message.data)
    if len(data) > 60:
        data = f"{data[:20]}... of {len(message.data)} bytes, hash {hash(message.data)}"
    return f"{data} {sorted(message.attributes.items())} {message.ordering_key!r}"


def _type(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _kind(value: object) -> str:
    # By what the documentation promises: the class behind it may be a subclass.
    if isinstance(value, PublisherClient):
        return "a publisher"
    if callable(getattr(value, "add_done_callback", None)):
        return "a future"
    return _type(value)


def _cause(error: BaseException) -> str:
    cause = error.__cause__
    if cause is None:
        return ""
    if isinstance(cause, grpc.RpcError):
        # Its class differs between blocking and other calls, and is private either way.
        return f", caused by grpc.RpcError {cause.code().name}"
    return f", caused by {_type(cause)}{_cause(cause)}"
