"""What is touched of the private parts of the asyncio transport; runs at all supported releases."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub.aio.rpc import AsyncPublishMethod

from .virtual_loop import VirtualLoop, virtual_run


class Interceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details, request)


@pytest.mark.parametrize("intercepted", [False, True])
def test_the_official_logging_is_passed_by(intercepted: bool) -> None:
    """Of the interceptors only the user's are left; with none of those requests are plain bytes."""
    the_users = [Interceptor()] if intercepted else []

    async def main(loop: VirtualLoop) -> None:
        channel = grpc.aio.insecure_channel("127.0.0.1:1", interceptors=list(the_users))
        transport = PublisherGrpcAsyncIOTransport(channel=channel)
        on_channel = list(channel._unary_unary_interceptors)
        method = AsyncPublishMethod(transport, with_telemetry=True)
        assert method.multicallable._interceptors == the_users
        assert method.is_plain is not intercepted
        request = types.PublishRequest(topic="topic", messages=[{"data": b"data"}])
        serialized = types.PublishRequest.serialize(request)
        assert method.prepare(serialized) == (request if intercepted else serialized)
        assert channel._unary_unary_interceptors == on_channel, "for the other methods"
        arguments = method.arguments("topic", 0, 1.0)
        assert "x-goog-pubsub-client-telemetry" in dict(arguments["metadata"])
        await transport.close()

    virtual_run(main)
