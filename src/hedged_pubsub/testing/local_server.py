"""The server in this process: puts the services behind a gRPC port."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from hedged_pubsub.testing import publisher_service, subscriber_service
from hedged_pubsub.testing.broker import Broker, SubscriptionProto, TopicProto
from hedged_pubsub.testing.faults import FaultScript
from hedged_pubsub.testing.proxy import TcpProxy
from hedged_pubsub.testing.proxy_connection import ProxyConnection
from hedged_pubsub.testing.publish import PublishService
from hedged_pubsub.testing.records import Attempt, StoredMessage
from hedged_pubsub.testing.settings import ServerSettings
from hedged_pubsub.testing.threads import DaemonPool, Timer

# A worker waits for a call's request message and for its answer to be written, no longer: held
# calls take none. So a few are enough.
_WORKERS = 8

_GRACE_SECONDS = 0.05

_GRPC_OPTIONS = (
    # Well above the 10 MB a request may have, so that a larger one gets the service's own error.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # Two servers on one port would share its connections at random: refuse instead.
    ("grpc.so_reuseport", 0),
    # Calls that wait to be picked up: gRPC would refuse some from 1,000 on.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
)


class LocalServer:
    """A server on loopback, up from construction to `stop`. Thread-safe.

    Args:
        settings: how to set it up.
        script: what happens to the Publish calls.

    Raises:
        RuntimeError: if the port is not free.
    """

    def __init__(self, settings: ServerSettings, script: FaultScript) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._has_relay = settings.relay
        self._relay: TcpProxy | None = None
        self._check_script(script)
        self._broker = Broker(auto_create_topics=settings.auto_create_topics)
        self._timer = Timer("pubsub-server-timer")
        self._pool = DaemonPool(_WORKERS, "pubsub-server")
        self._publish = PublishService(
            broker=self._broker,
            pool=self._pool,
            timer=self._timer,
            script=script,
            client_address=self._client_address if settings.relay else str,
            reset_connection=self._reset_connection,
        )
        services = {
            "google.pubsub.v1.Publisher": {
                "Publish": self._publish.method(),
                **publisher_service.methods(self._broker),
            },
            "google.pubsub.v1.Subscriber": subscriber_service.methods(self._broker),
        }
        self._grpc_server = grpc.server(self._pool, options=_GRPC_OPTIONS)
        self._grpc_server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*service) for service in services.items())
        )
        try:
            self.port = self._listen(settings.port)
        except (OSError, RuntimeError):
            self.stop()
            raise RuntimeError(
                f"port={settings.port} on 127.0.0.1 cannot be listened on: is another server using "
                "it? Choose another, or 0 for one that is free"
            ) from None

    def create_topic(self, path: str) -> None:
        """Adds a topic.

        Raises:
            StatusError: ALREADY_EXISTS, or INVALID_ARGUMENT.
        """
        self._broker.create_topic(TopicProto(name=path))

    def create_subscription(self, path: str, topic: str) -> None:
        """Adds a subscription.

        Raises:
            StatusError: ALREADY_EXISTS, NOT_FOUND for the topic, or INVALID_ARGUMENT.
        """
        self._broker.create_subscription(SubscriptionProto(name=path, topic=topic))

    def set_script(self, script: FaultScript) -> None:
        """Replaces the script.

        Raises:
            ValueError: if it resets connections and the server has no relay.
        """
        self._check_script(script)
        self._publish.set_script(script)

    def attempts(self, topic: str | None) -> tuple[Attempt, ...]:
        """Returns every Publish attempt."""
        return self._publish.attempts(topic)

    def messages(self, topic: str | None) -> tuple[StoredMessage, ...]:
        """Returns every stored message."""
        return self._broker.messages(topic)

    def clear(self) -> None:
        """Forgets attempts and messages."""
        self._publish.clear()
        self._broker.clear()

    def stop(self) -> None:
        """Ends all calls, frees the port and ends all threads; the records stay readable."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._timer.stop()
        # The short grace lets gRPC say an orderly goodbye on each connection; without any, the
        # clients' gRPC logs an error for each.
        self._grpc_server.stop(_GRACE_SECONDS).wait()
        if self._relay is not None:
            self._relay.stop()
        self._pool.shutdown()

    def _check_script(self, script: FaultScript) -> None:
        if script.resets_connections and not self._has_relay:
            raise ValueError(
                "faults has a ResetConnection, which needs a relay in front of the server; "
                "start the server with relay=True"
            )

    def _listen(self, port: int) -> int:
        grpc_port: Any = self._grpc_server.add_insecure_port(
            f"127.0.0.1:{0 if self._has_relay else port}"
        )
        if grpc_port == 0:  # what older releases of gRPC return instead of raising
            raise OSError(f"port {port}")
        self._grpc_server.start()
        if not self._has_relay:
            return int(grpc_port)
        relay = TcpProxy(f"127.0.0.1:{grpc_port}", port=port)
        relay.start()
        self._relay = relay
        return relay.port

    def _client_address(self, peer: str) -> str:
        """Turns a peer as gRPC names it into the client's own address, in front of the relay."""
        connection = self._connection(peer)
        return peer if connection is None else f"ipv4:{connection.client_address}"

    def _reset_connection(self, peer: str) -> None:
        connection = self._connection(peer)
        if connection is not None:
            connection.reset()

    def _connection(self, peer: str) -> ProxyConnection | None:
        return None if self._relay is None else self._relay.connection_of(peer)
