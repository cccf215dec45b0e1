"""What every test relies on: an environment without settings of the machine's own."""

from __future__ import annotations

import hypothesis
import pytest

# A slow machine is no failing property; and a failure in CI must print how to replay it.
hypothesis.settings.register_profile("project", deadline=None, print_blob=True)
hypothesis.settings.load_profile("project")

# These change what the clients do; a test sets those it is about.
_VARIABLES = ("HEDGED_PUBSUB_DISABLE", "PUBSUB_EMULATOR_HOST", "PUBSUB_PROJECT_ID")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test, and what it starts, the same environment on every machine."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    # As in pyproject.toml, for interpreters that a test starts: Google's libraries announce on
    # stderr when they will drop an old Python or an old gRPC.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::FutureWarning")
