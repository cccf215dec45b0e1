"""What leaves a client: noted on its channel, whatever the server is."""

from __future__ import annotations

from typing import Any

import grpc
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport


class SentRequests(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Notes each publish request.

    Attributes:
        sizes: How many messages each has.
        headers: The names of the headers of each, sorted.
    """

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
    address: str, *interceptors: grpc.UnaryUnaryClientInterceptor
) -> PublisherGrpcTransport:
    """Make a transport for a publisher whose calls pass through interceptors.

    Args:
        address: The server's, ``host:port``.
        *interceptors: The first is the outermost.
    """
    channel = grpc.intercept_channel(grpc.insecure_channel(address), *interceptors)
    return PublisherGrpcTransport(channel=channel)
