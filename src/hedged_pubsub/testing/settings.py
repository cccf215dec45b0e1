"""How a server is set up: what both ways of running it need to know."""

from __future__ import annotations

from dataclasses import dataclass

from hedged_pubsub.testing import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The part of `PubSubServer`'s arguments that does not depend on where the server runs.

    Attributes:
        port: the port to listen on; 0 for one that is free.
        auto_create_topics: whether publishing to an unknown topic creates it.
        relay: whether the connections pass through a relay that can reset them.
    """

    port: int
    auto_create_topics: bool
    relay: bool

    def __post_init__(self) -> None:
        """Checks the values."""
        checks.integer("port", self.port, minimum=0, maximum=65_535)
