"""The marker of the official tests, and their source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.official.source import SourceUnavailableError, fetch_source, unpack_tests


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker: ``-m "not official"`` leaves these tests out."""
    config.addinivalue_line("markers", "official: runs the official client's own tests")


@pytest.fixture(scope="session")
def official_tests(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tests that belong to the installed release of the official client.

    Where they cannot be had, these tests are skipped with the reason; in CI they fail.
    """
    try:
        archive = fetch_source(pytestconfig.cache.mkdir("official"))
        return unpack_tests(archive, tmp_path_factory.mktemp("official"))
    except SourceUnavailableError as error:
        reason = f"the official client's tests cannot be had: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
