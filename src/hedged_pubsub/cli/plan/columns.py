"""Which column, or which field, holds the latencies, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hedged_pubsub.cli.plan.samples import InputError

SECONDS: Final = {"s": 1.0, "ms": 1e-3}
"""The units that a column can be in, in seconds."""

_LATENCY_WORDS: Final = {"latency", "duration", "elapsed"}
_UNIT_WORDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
}
_OTHER_UNIT_WORDS: Final = {"us", "usec", "micros", "microseconds", "ns", "nanos", "nanoseconds"}
# Words of a name: letters between other characters, and between small letters and capitals.
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Column:
    """Where the latencies are.

    Attributes:
        name: Of the column or field; empty for a file that is one column without a name.
        unit: ``"s"`` or ``"ms"``.
    """

    name: str
    unit: str


def choose_column(names: Sequence[str], *, wanted: str | None, unit: str | None) -> Column:
    """Find the latencies by the names of the columns.

    Args:
        names: Of all columns that there are.
        wanted: The name that the user gave, if any.
        unit: The unit that the user gave, if any.

    Raises:
        InputError: If there is no such column, or name and unit do not say enough; nothing is
            guessed.
    """
    if wanted is not None:
        if wanted not in names:
            raise InputError(f"there is no column {wanted!r} among {_listed(names)}")
        name = wanted
    else:
        name = _only_latency(names)
    return Column(name, unit or _unit_of(name))


def _only_latency(names: Sequence[str]) -> str:
    found = [name for name in names if _is_latency(name)]
    if len(found) != 1:
        what = "several of the columns" if found else "none of the columns"
        raise InputError(
            f"{what} {_listed(found or names)} can be told to hold the latencies: name it with "
            "--column"
        )
    return found[0]


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
