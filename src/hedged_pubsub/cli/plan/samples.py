"""Recorded latencies, and how they are to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class InputError(Exception):
    """The input cannot be used; the message is one line that says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the input is to be read.

    Attributes:
        column: The name of the CSV column, the JSON field, or the benchmark's case; ``None`` to
            find it.
        unit: ``"s"``, ``"ms"``, or ``None`` to tell it from the name.
        skip_malformed: Whether malformed lines are left out; else they make the input refused.
        seed: Of the order of latencies whose own order is lost.
    """

    column: str | None = None
    unit: str | None = None
    skip_malformed: bool = False
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Latencies that were recorded.

    Attributes:
        latencies: Seconds; at least one.
        source: What they are, in words.
        in_order: Whether they are in the order in which the requests were sent.
        skipped: How many malformed lines were left out.
        notes: What one has to know about them, in sentences.
    """

    latencies: Sequence[float]
    source: str
    in_order: bool = True
    skipped: int = 0
    notes: tuple[str, ...] = ()
