"""A program with Sentry, whose interceptor waits for each answer."""

import asyncio
import sys

import sentry_sdk
from client import ALONE, IS_HEDGED, TOPIC, make
from google.pubsub_v1 import PublisherAsyncClient
from sentry_sdk.integrations.grpc import GRPCIntegration

sentry_sdk.init(integrations=[GRPCIntegration()], default_integrations=False)


async def publish():
    """Publish a message on the loop."""
    if IS_HEDGED:
        from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings

        impatient = HedgingSettings(hedge_delay=0.1, initial_tokens=10)
        async with AsyncHedgedPublisher(ALONE, hedging_settings=impatient) as publisher:
            await publisher.publish(TOPIC, b"data")
    else:
        import os

        import grpc.aio

        transport_class = PublisherAsyncClient.get_transport_class("grpc_asyncio")
        channel = grpc.aio.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        client = PublisherAsyncClient(transport=transport_class(channel=channel))
        await client.publish(topic=TOPIC, messages=[{"data": b"data"}])


if "asyncio" in sys.argv:
    asyncio.run(publish())
else:
    publisher = make(ALONE)
    publisher.publish(TOPIC, b"data").result(timeout=20)
    publisher.stop()
