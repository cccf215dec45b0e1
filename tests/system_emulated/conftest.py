"""Google's emulator as a fixture; its tests skip, with the reason, where it is not installed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator

import pytest
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

from tests.system_emulated.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)

# Set where the emulator is known to be installed, so that a test that is skipped all the same
# fails the run and does not go unseen.
_REQUIRE_VARIABLE = "HEDGED_PUBSUB_REQUIRE_EMULATOR"
_PROJECT = "projects/emulated"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where the emulator is required."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(_REQUIRE_VARIABLE):
        report.outcome = "failed"
        report.longrepr = f"{_REQUIRE_VARIABLE} is set, but skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def emulator() -> Iterator[str]:
    """The address, ``host:port``, of a running emulator; one for the whole session."""
    try:
        java, jar = find_emulator()
    except EmulatorNotInstalledError as error:
        pytest.skip(f"Google's Pub/Sub emulator is not installed: {error}")
    with running_emulator(java, jar) as address:
        yield address


@pytest.fixture(autouse=True)
def _clients_use_the_emulator(emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point every client that a test creates at the emulator."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator)


@pytest.fixture
def subscriber() -> Iterator[SubscriberClient]:
    """An official subscriber client on the emulator."""
    with SubscriberClient() as client:
        yield client


@pytest.fixture
def topic(subscriber: SubscriberClient) -> str:
    """The full path of a new topic."""
    path = f"{_PROJECT}/topics/topic-{uuid.uuid4().hex}"
    publisher = PublisherClient()
    publisher.create_topic(name=path)
    publisher.transport.close()
    return path


@pytest.fixture
def subscription(subscriber: SubscriberClient, topic: str) -> str:
    """The full path of a new subscription to the topic, which gets all that is published to it."""
    path = f"{_PROJECT}/subscriptions/subscription-{uuid.uuid4().hex}"
    subscriber.create_subscription(name=path, topic=topic)
    return path
