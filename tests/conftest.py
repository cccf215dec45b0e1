"""What every test relies on: an environment without settings of the machine's own."""

from __future__ import annotations

import sys

import hypothesis
import pytest

# A slow machine is no failing property; and a failure in CI must print how to replay it.
hypothesis.settings.register_profile("project", deadline=None, print_blob=True)
hypothesis.settings.load_profile("project")

# Tests that measure the machine or count what is in the process run while no other test does.
_SERIAL = (
    "tests/system/cli/test_bench.py",  # the benchmark: latency, CPU, threads and memory
    "tests/system/cli/test_plan_command.py::test_the_prediction_is_what_is_then_measured",
    "tests/system/test_campaign.py",  # latencies
    "tests/system/test_recovery.py::test_r13_a_blocked_loop_sends_no_hedge",  # 50 ms
    "tests/system/test_dropped.py::test_many",  # sockets, threads and memory
    "tests/system/test_costs.py::test_an_idle_publisher_uses_no_cpu",  # what gRPC uses, too
    "tests/system/test_examples.py",  # how many hedges they send, which is of latencies
    "tests/system/telemetry/test_spans.py::test_what_hedging_adds",  # latencies
    "tests/system_emulated/test_connections.py",  # latencies below a tenth of a second
    "tests/system/testing/test_load.py",  # thousands of calls at once, in seconds
    "tests/system/test_costs.py::test_a_topic_takes_little_memory",
    "tests/unit/test_recent_topics.py::test_a_topic_takes_little_memory",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the serial tests."""
    for item in items:
        if item.nodeid.startswith(_SERIAL):
            item.add_marker(pytest.mark.serial)


# These change what the clients do; a test sets those it is about.
_VARIABLES = ("HEDGED_PUBSUB_DISABLE", "PUBSUB_EMULATOR_HOST", "PUBSUB_PROJECT_ID")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test, and what it starts, the same environment on every machine."""
    for variable in _VARIABLES:
        # Set first, or what the test sets would stay: the command names its server that way.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    # Where it is set, each interpreter that a test starts would compile all packages again.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    # As in pyproject.toml, for interpreters that a test starts: Google's libraries announce on
    # stderr when they will drop an old Python or an old gRPC.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed futures of earlier tests, which nobody asked for, write no line into this one."""
    module = sys.modules.get("hedged_pubsub._sync.threads")
    if module is not None:
        monkeypatch.setattr(module.UNASKED, "report", lambda *_: None)
