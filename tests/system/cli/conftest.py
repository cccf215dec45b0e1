"""Fixtures for tests of the command."""

from tests.system.cli.command import command as command
from tests.system.cli.command import run as run
