"""Latencies that were recorded, how they are to be read, and what names and numbers mean."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""The units that latencies can be in, in seconds."""

UNITS: Final = "--unit s, --unit ms or --unit us"

_LATENCY_WORDS: Final = {"latency", "latencies", "duration", "durations", "elapsed"}
_UNIT_WORDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "usecs", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
# Words of a name: letters between other characters, and between small letters and capitals.
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Thousands are set apart by commas, spaces or apostrophes.
_THOUSANDS: Final = re.compile(r"\d{1,3}([, '\u00a0\u2009\u202f])\d{3}(\1\d{3})*(\.\d*)?")
_DURATION: Final = re.compile(r"(.*?)\s*([a-z\u00b5\u03bc]*)", re.DOTALL | re.IGNORECASE)
_PERCENTILE: Final = re.compile(r"[pP](\d{1,2}(?:[._]\d+)?|100|999|9999)(?![\d.])")

# A median beyond these is hardly that of a publish request.
_PLAUSIBLE: Final = (100e-6, 100.0)


class InputError(Exception):
    """The input cannot be used; the message is one line that says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the input is to be read; the seed is for latencies whose own order is lost."""

    column: str | None = None  # or the benchmark's case, or the metric; None to find it
    unit: str | None = None  # one of SECONDS, or None to tell it from the name
    topic: str | None = None  # of a recording; None for the one with most requests
    skip_malformed: bool = False
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Latencies that were recorded, in seconds, at least one; and what one has to know of them."""

    latencies: Sequence[float]
    source: str
    in_order: bool = True  # in which the requests were sent
    rate: float | None = None  # requests a second, if that was recorded
    skipped: int = 0  # malformed lines
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Where the latencies are, or an empty name, and in which unit."""

    name: str
    unit: str


def choose_column(names: Sequence[str], *, wanted: str | None, unit: str | None) -> Column:
    """Find the latencies by the names of the columns; raise InputError rather than guess."""
    if wanted is None:
        found = [name for name in names if is_latency(name)]
        if len(found) != 1:
            what = "several of the columns" if found else "none of the columns"
            raise InputError(
                f"{what} {listed(found or names)} can be told to hold the latencies: name it with"
                " --column"
            )
        wanted = found[0]
    elif wanted not in names:
        raise InputError(f"there is no column {wanted!r} among {listed(names)}")
    return Column(name=wanted, unit=unit or unit_of(wanted))


def is_latency(name: str) -> bool:
    """Tell whether a column, a field or a metric of that name holds latencies."""
    words = _words(name)
    # "seconds" alone is a column of latencies, "start seconds" is not.
    return bool(_LATENCY_WORDS & set(words)) or (len(words) == 1 and words[0] in _UNIT_WORDS)


def unit_of(name: str, default: str | None = None) -> str:
    """Return the unit that a name tells, or raise InputError unless there is a default."""
    units = {_UNIT_WORDS[word] for word in _words(name) if word in _UNIT_WORDS}
    if len(units) == 1:
        return units.pop()
    if default is None:
        raise InputError(f"the name {name!r} does not tell the unit: give it with {UNITS}")
    return default


def percentile_of(name: str) -> float | None:
    """Return the share that a name such as ``p99``, ``p99.9``, ``p999`` or ``p99_9_ms`` tells."""
    found = _PERCENTILE.search(name)
    if found is None:
        return None
    digits = found[1].replace("_", ".")
    if digits in ("999", "9999"):  # as they are often called
        digits = f"99.{digits[2:]}"
    return float(digits) / 100


def number(text: str) -> float:
    """Return a number, whose thousands may be set apart; raise ValueError if it is none."""
    try:
        return float(text)
    except ValueError:
        text = text.strip()
        if not _THOUSANDS.fullmatch(text):
            raise
        return float(re.sub(r"[^\d.]", "", text))


def duration(text: str, unit: str | None) -> float:
    """Return the seconds of a time such as ``13ms``, or in a unit; raise ValueError for others."""
    found = _DURATION.fullmatch(text.strip())
    digits, name = (found[1], found[2].lower()) if found else (text, "")
    name = {"\u00b5s": "us", "\u03bcs": "us", "e": ""}.get(name, name)
    if name:
        unit = _UNIT_WORDS.get(name)
    if unit is None:
        raise ValueError(f"must be a time with its unit, such as 13ms or 0.5s; got {text!r}")
    try:
        seconds = SECONDS[unit] * number(digits)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"must be a time such as 13ms or 0.5s, 0 or above; got {text!r}")
    return seconds


def check_unit(samples: Samples) -> tuple[str, ...]:
    """Return a note if the median is hardly that of publish requests."""
    median = sorted(samples.latencies)[len(samples.latencies) // 2]
    low, high = _PLAUSIBLE
    if low <= median <= high or median == 0:
        return ()
    return (
        f"The median is {median:.3g} s, which is strange for a publish request: is the unit right?"
        f" {UNITS} sets it.",
    )


def mean_by_percentile(tables: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """Return the mean of each percentile over several tables, such as one a minute."""
    shares = sorted({share for table in tables for share in table})
    found = {share: [table[share] for table in tables if share in table] for share in shares}
    return {share: sum(values) / len(values) for share, values in found.items()}


def listed(names: Sequence[str]) -> str:
    """Return some names for a message."""
    shown = ", ".join(repr(shortened(name)) for name in names[:8])
    return f"{shown}, …" if len(names) > 8 else shown or "none at all"


def shortened(text: str, characters: int = 40) -> str:
    """Return a text that fits into a message."""
    text = text.strip()
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]
