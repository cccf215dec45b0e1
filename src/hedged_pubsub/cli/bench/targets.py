"""The servers that the clients are measured against."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hedged_pubsub.cli.bench.arguments import EMULATOR, SERVER
from hedged_pubsub.cli.bench.clients import create_topic
from hedged_pubsub.cli.values import UsageError
from hedged_pubsub.testing import PubSubServer
from hedged_pubsub.testing.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A server that runs.

    Attributes:
        name: As on the command line.
        address: ``host:port``.
        server: Ours, which tells what it got; None for any other.
    """

    name: str
    address: str
    server: PubSubServer | None = None

    def create_topic(self) -> str:
        """Create a topic that nobody else uses, and return its full name."""
        path = f"projects/bench/topics/bench-{uuid.uuid4().hex}"
        create_topic(self.address, path)
        return path

    def batch_sizes(self, topic: str) -> set[int]:
        """Return the numbers of messages that requests had; nothing where nobody can tell."""
        if self.server is None:
            return set()
        return {attempt.message_count for attempt in self.server.attempts(topic)}

    def clear(self) -> None:
        """Let the server forget what it got, or its memory would grow."""
        if self.server is not None:
            self.server.clear()


def emulator_is_installed() -> bool:
    """Tell whether Google's emulator can be run here."""
    try:
        find_emulator()
    except EmulatorNotInstalledError:
        return False
    return True


@contextmanager
def running_target(name: str) -> Iterator[Target]:
    """Run a server until the block ends, or use the one that runs at ``host:port``.

    Raises:
        UsageError: If the emulator is asked for and not installed.
    """
    if name == SERVER:
        with PubSubServer(process=True) as server:
            yield Target(name, server.address, server)
    elif name == EMULATOR:
        try:
            java, jar = find_emulator()
        except EmulatorNotInstalledError as error:
            raise UsageError(f"hedged-pubsub bench: error: no emulator: {error}") from error
        with running_emulator(java, jar) as address:
            yield Target(name, address)
    else:
        yield Target(name, name)
