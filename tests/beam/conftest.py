"""Servers for pipelines, and how pipelines are run here."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.cloud import pubsub_v1

from hedged_pubsub.testing import PubSubServer
from tests.system_emulated.conftest import emulator

__all__ = ["emulator"]

PROJECT = "my-project"

RUNNERS = {
    "batch": "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "streaming": "BundleBasedDirectRunner",
}


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server, which clients made meanwhile use."""
    with PubSubServer(process=True, project=PROJECT, set_emulator_host=True) as running:
        yield running


@pytest.fixture
def topic(server: PubSubServer) -> str:
    """Return a topic of that server."""
    return server.create_topic("orders")


@pytest.fixture(params=["own server", "emulator"])
def either_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with our server, and with Google's emulator."""
    if request.param == "emulator":
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", request.getfixturevalue("emulator"))
    else:
        request.getfixturevalue("server")


def new_pipeline(**options: object) -> beam.Pipeline:
    """Return a pipeline for the runner that the DirectRunner has for its kind, batch or streaming.

    Not for the DirectRunner itself, which first tries to download another one.
    """
    runner = RUNNERS["streaming" if options.get("streaming") else "batch"]
    return beam.Pipeline(options=PipelineOptions([], runner=runner, **options))


class Subscription:
    """A topic of its own, and what arrives there."""

    def __init__(self, name: str) -> None:
        name = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self.topic = f"projects/{PROJECT}/topics/{name}"
        self.path = f"projects/{PROJECT}/subscriptions/{name}"
        with pubsub_v1.PublisherClient() as publisher:
            publisher.create_topic(name=self.topic)
        self._client = pubsub_v1.SubscriberClient()
        self._client.create_subscription(name=self.path, topic=self.topic)

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def receive(self, count: int, timeout: float = 30.0) -> list[bytes]:
        """Return the data of the next messages, and of those that are there besides."""
        received: list[bytes] = []
        end = time.monotonic() + timeout
        while len(received) < count:
            assert time.monotonic() < end, f"{len(received)} of {count} messages arrived"
            received += self._pull(wait=True)
        return received

    def receive_what_is_there(self) -> list[bytes]:
        """Return the data of messages that have arrived already."""
        return self._pull(wait=False)

    def _pull(self, *, wait: bool) -> list[bytes]:
        request = {
            "subscription": self.path,
            "max_messages": 1000,
            "return_immediately": not wait,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of return_immediately
            answer = self._client.pull(request, timeout=10)
        if ids := [one.ack_id for one in answer.received_messages]:
            self._client.acknowledge(subscription=self.path, ack_ids=ids)
        return [one.message.data for one in answer.received_messages]


@pytest.fixture
def new_subscription(either_server: None) -> Iterator[Callable[[str], Subscription]]:
    """Make topics with subscriptions, on either server."""
    made: list[Subscription] = []

    def make(name: str) -> Subscription:
        made.append(Subscription(name))
        return made[-1]

    yield make
    for one in made:
        one.close()
