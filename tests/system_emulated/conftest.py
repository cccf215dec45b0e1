"""The two servers as fixtures; tests skip, with the reason, where the emulator is not installed."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from hedged_pubsub.testing import PubSubServer
from hedged_pubsub.testing.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)

# Set where the emulator is known to be installed, so that a test that is skipped all the same
# fails the run and does not go unseen.
_REQUIRE_VARIABLE = "HEDGED_PUBSUB_REQUIRE_EMULATOR"


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


@pytest.fixture(scope="session")
def own_server() -> Iterator[str]:
    """The address of a running ``PubSubServer``, which is in a process of its own."""
    with PubSubServer(process=True) as server:
        yield server.address
