"""The two clients that are compared, made and closed by the same code."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub import HedgedPublisher, HedgingSettings

DEFAULT_HEDGING: Final = HedgingSettings()
_PATIENCE: Final = 30.0


class Client(enum.Enum):
    """A client to measure."""

    OFFICIAL = "PublisherClient"
    HEDGED = "HedgedPublisher"


@contextmanager
def publisher(
    client: Client,
    address: str,
    batch_settings: pubsub_v1.types.BatchSettings,
    hedging: HedgingSettings = DEFAULT_HEDGING,
) -> Iterator[pubsub_v1.PublisherClient]:
    """Make a client of a server on loopback; close its channel after the block.

    Args:
        client: Which one.
        address: ``host:port`` of the server.
        batch_settings: The same for both.
        hedging: The hedged publisher's settings.
    """
    use_server(address)
    made = (
        pubsub_v1.PublisherClient(batch_settings)
        if client is Client.OFFICIAL
        else HedgedPublisher(batch_settings, hedging_settings=hedging)
    )
    yield made
    # Not in a finally: with a failure the process is about to end, and closing the channel under
    # requests in flight would make the official client's threads fail aloud.
    made.transport.close()


def use_server(address: str) -> None:
    """Let the clients that are made from now on in this process talk to a server."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    # gRPC would ask the proxy that http_proxy names even for loopback.
    os.environ["no_grpc_proxy"] = address.rpartition(":")[0]  # noqa: SIM112 - as gRPC reads it


def create_topic(address: str, path: str) -> None:
    """Create a topic on a server."""
    use_server(address)
    client = pubsub_v1.PublisherClient()
    client.create_topic(name=path, timeout=_PATIENCE)
    client.transport.close()
