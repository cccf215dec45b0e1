"""Runs the cases through both classes, and compares."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.cloud.pubsub_v1 import PublisherClient

from hedged_pubsub import HedgedPublisher
from tests.system_emulated.parity import clients, differences, messages, sending
from tests.system_emulated.parity.case import Case
from tests.system_emulated.parity.scene import Observation, Scene

CASES: Final[tuple[Case, ...]] = (
    *messages.cases,
    *sending.cases,
    *clients.cases,
    *differences.cases,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What both classes did in one case.

    Attributes:
        case: The case.
        official: What the official client did.
        hedged: What ours did.
    """

    case: Case
    official: Observation
    hedged: Observation

    @property
    def same(self) -> bool:
        """Whether there was no difference."""
        return self.official == self.hedged

    @property
    def as_documented(self) -> bool:
        """Whether there is the documented difference, or none where none is documented."""
        if self.case.difference is None:
            return self.same
        return all(
            any(line.startswith(f"{sign} {expected}") for line in self.differing())
            for sign, expected in (
                ("-", self.case.difference.official),
                ("+", self.case.difference.hedged),
            )
        )

    def differing(self) -> list[str]:
        """The lines that differ: ``-`` is what only the official client did, ``+`` what ours."""
        return [
            line
            for line in difflib.ndiff(_lines(self.official), _lines(self.hedged))
            if line.startswith(("- ", "+ "))
        ]


def _lines(observation: Observation) -> list[str]:
    return [*observation.notes, *(f"stored: {message}" for message in observation.stored)]


def compare(case: Case, address: str) -> Comparison:
    """Run one case through both classes.

    Args:
        case: The case.
        address: The emulator's, which the environment names as well.
    """
    return Comparison(
        case=case,
        official=_observe(case, PublisherClient, address),
        hedged=_observe(case, HedgedPublisher, address),
    )


def compare_all(address: str) -> Iterator[Comparison]:
    """Run all cases, one after the other."""
    for case in CASES:
        yield compare(case, address)


def _observe(case: Case, publisher_class: type[PublisherClient], address: str) -> Observation:
    with Scene(publisher_class, address) as scene:
        case.run(scene)
        return scene.observe()
