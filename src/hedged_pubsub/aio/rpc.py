"""The publish RPC on gRPC's asyncio channels, past the official client's logging."""

from __future__ import annotations

from typing import Any, cast

from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._rpc import METHOD, PublishMethod


class AsyncPublishMethod(PublishMethod):
    """The publish method of one asyncio transport's channel.

    The synchronous transport keeps a channel without its logging interceptor; the asyncio one puts
    the interceptor on the only channel that there is. It costs a task for every request and a
    request object for it to look at, and at DEBUG level it logs every payload. So it is left out
    here; the other methods of the client keep it.

    Args:
        transport: Where requests go.
        with_telemetry: Whether attempts carry the telemetry header.
    """

    def __init__(self, transport: PublisherTransport, *, with_telemetry: bool) -> None:
        super().__init__(transport, with_telemetry=with_telemetry)
        channel: Any = cast("Any", transport).grpc_channel
        logging = getattr(transport, "_interceptor", None)
        interceptors = getattr(channel, "_unary_unary_interceptors", None)
        if logging is None or interceptors is None or logging not in interceptors:
            return
        the_users = [interceptor for interceptor in interceptors if interceptor is not logging]
        if not the_users:
            self.is_plain = True
            self.multicallable = channel.unary_unary(
                METHOD, response_deserializer=gapic_types.PublishResponse.pb().FromString
            )
        self.multicallable._interceptors = the_users
