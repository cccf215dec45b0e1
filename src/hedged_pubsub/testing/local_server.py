"""The server itself, in whatever process it runs: puts the services behind a gRPC port."""

from __future__ import annotations

from typing import Final

from hedged_pubsub._google.core_server import CoreServer
from hedged_pubsub.testing import services
from hedged_pubsub.testing.broker import Broker, SubscriptionProto, TopicProto
from hedged_pubsub.testing.faults import FaultScript
from hedged_pubsub.testing.proxy import TcpProxy
from hedged_pubsub.testing.publish import PublishService

# Lets gRPC end each connection in order; without it, the clients' gRPC logs an error for each.
_GRACE_SECONDS: Final = 0.05

_GRPC_OPTIONS: Final = (
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
    """A server on loopback, up from construction to `stop`, which must be called once.

    The arguments are those of `PubSubServer`. A port that is not free is a RuntimeError.
    """

    def __init__(
        self, script: FaultScript, port: int, auto_create_topics: bool, relay: bool
    ) -> None:
        self.broker = Broker(auto_create_topics=auto_create_topics)
        self.publish = PublishService(self.broker, script)
        handlers = services.handlers(self.broker, self.publish.publish)
        self._server = self.publish.server = CoreServer(handlers, _GRPC_OPTIONS, "pubsub-server")
        try:
            self.port = self._listen(port, relay)
        except (OSError, RuntimeError):
            self.stop()
            raise RuntimeError(
                f"port={port} on 127.0.0.1 cannot be listened on: is another server using it? "
                "Choose another, or 0 for one that is free"
            ) from None

    def create_topic(self, path: str) -> None:
        """Add a topic."""
        self.broker.create_topic(TopicProto(name=path))

    def create_subscription(self, path: str, topic: str) -> None:
        """Add a subscription."""
        self.broker.create_subscription(SubscriptionProto(name=path, topic=topic))

    def stop(self) -> None:
        """End all calls, free the port and end all threads; the records stay readable."""
        self._server.stop(_GRACE_SECONDS)
        if self.publish.relay is not None:
            self.publish.relay.stop()

    def _listen(self, port: int, has_relay: bool) -> int:
        grpc_port = self._server.listen(f"127.0.0.1:{0 if has_relay else port}")
        self._server.start()
        if has_relay:
            self.publish.relay = TcpProxy(f"127.0.0.1:{grpc_port}", port=port)
            self.publish.relay.start()
        return self.publish.relay.port if self.publish.relay else grpc_port
