"""Two servers that must behave alike, Google's emulator and ours."""

from __future__ import annotations

import pytest

# With the emulator comes the rule that its tests are not skipped where it is installed.
from tests.system_emulated.conftest import emulator, own_server, pytest_runtest_makereport

__all__ = ["emulator", "own_server", "pytest_runtest_makereport"]


@pytest.fixture(params=["own_server", "emulator"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of the server under test."""
    found: str = request.getfixturevalue(request.param)
    return found
