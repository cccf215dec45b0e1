"""Recorded latencies, how they are to be read, and which column or field holds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# The units that a column can be in, in seconds.
SECONDS: Final = {"s": 1.0, "ms": 1e-3}

_LATENCY_WORDS: Final = {"latency", "duration", "elapsed"}
_UNIT_WORDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
}
_OTHER_UNIT_WORDS: Final = {"us", "usec", "micros", "microseconds", "ns", "nanos", "nanoseconds"}
# Words of a name: letters between other characters, and between small letters and capitals.
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class InputError(Exception):
    """The input cannot be used; the message is one line that says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the input is to be read; the seed is for latencies whose own order is lost."""

    column: str | None = None  # or the benchmark's case; None to find it
    unit: str | None = None  # "s", "ms", or None to tell it from the name
    skip_malformed: bool = False
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Latencies that were recorded, in seconds, at least one; and what one has to know of them."""

    latencies: Sequence[float]
    source: str
    in_order: bool = True  # in which the requests were sent
    skipped: int = 0  # malformed lines
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Where the latencies are, or an empty name, and whether in ``"s"`` or ``"ms"``."""

    name: str
    unit: str


def choose_column(names: Sequence[str], *, wanted: str | None, unit: str | None) -> Column:
    """Find the latencies by the names of the columns; raise InputError rather than guess."""
    if wanted is None:
        found = [name for name in names if _is_latency(name)]
        if len(found) != 1:
            what = "several of the columns" if found else "none of the columns"
            raise InputError(
                f"{what} {_listed(found or names)} can be told to hold the latencies: name it with"
                " --column"
            )
        wanted = found[0]
    elif wanted not in names:
        raise InputError(f"there is no column {wanted!r} among {_listed(names)}")
    return Column(name=wanted, unit=unit or _unit_of(wanted))


def _is_latency(name: str) -> bool:
    words = _words(name)
    # "seconds" alone is a column of latencies, "start seconds" is not.
    return bool(_LATENCY_WORDS & set(words)) or (len(words) == 1 and words[0] in _UNIT_WORDS)


def _unit_of(name: str) -> str:
    words = _words(name)
    units = {_UNIT_WORDS[word] for word in words if word in _UNIT_WORDS}
    if len(units) == 1 and not _OTHER_UNIT_WORDS & set(words):
        return units.pop()
    raise InputError(
        f"the name {name!r} does not tell the unit: give it with --unit s or --unit ms"
    )


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"{shown}, …" if len(names) > 8 else shown or "none at all"
