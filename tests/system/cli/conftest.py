"""Fixtures for tests of the real command."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.system.cli.command import Command


@pytest.fixture
def command() -> Iterator[Command]:
    """The command, ended with the test; a Ctrl-C sent to it is not ignored.

    A shell starts background jobs with SIGINT ignored, and a process passes that on to its
    children; a handler of its own it does not pass on.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = Command()
    try:
        yield command
    finally:
        command.end()
        signal.signal(signal.SIGINT, before)
