"""The servers that the clients are measured against."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub.cli.clients import use_server
from hedged_pubsub.cli.report import RefusedError
from hedged_pubsub.cli.values import EMULATOR, SERVER
from hedged_pubsub.testing import PubSubServer
from hedged_pubsub.testing.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)

_PATIENCE: Final = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server that runs; only ours tells what it got."""

    name: str
    address: str
    server: PubSubServer | None = None

    def create_topic(self) -> str:
        """Create a topic that nobody else uses, and return its full name."""
        path = f"projects/bench/topics/bench-{uuid.uuid4().hex}"
        use_server(self.address)
        client = pubsub_v1.PublisherClient()
        client.create_topic(name=path, timeout=_PATIENCE)
        client.transport.close()
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


@contextmanager
def running_target(name: str) -> Iterator[Target]:
    """Run a server until the block ends, or use the one that runs at ``host:port``."""
    if name == SERVER:
        with PubSubServer(process=True) as server:
            yield Target(name=name, address=server.address, server=server)
    elif name == EMULATOR:
        try:
            java, jar = find_emulator()
        except EmulatorNotInstalledError as error:
            raise RefusedError(f"no emulator: {error}") from error
        with running_emulator(java, jar) as address:
            yield Target(name=name, address=address)
    else:
        yield Target(name=name, address=name)
