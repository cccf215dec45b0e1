"""What the demo found: the numbers, as JSON and in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Sends later than this are the machine's doing, not the clients': a tenth of the smallest hedge
# delay, so that what lies below cannot change what the table shows.
_LATE: Final = 0.01

# Two runs of one and the same client differ by several percent.
_CLEAR: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientResult:
    """One client's row of the report; field names are the keys of the JSON object.

    Attributes:
        p50_ms: Median latency in milliseconds; the other percentiles likewise, by nearest rank.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        p99_9_ms: 99.9th percentile.
        max_ms: The slowest publish.
        requests: Publish requests that the server saw.
    """

    p50_ms: float
    p90_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HedgedResult(ClientResult):
    """The hedged client's row.

    Attributes:
        hedges_sent: Hedges that went out.
        hedges_won: Hedges that answered before their original.
        hedges_suppressed: Looks at which no token was left for a hedge.
        duplicates: Messages stored beyond the first copy of each.
        extra_requests_pct: Requests beyond those of the plain client, in percent of these.
    """

    hedges_sent: int
    hedges_won: int
    hedges_suppressed: int
    duplicates: int
    extra_requests_pct: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Both clients' results for one schedule."""

    plain: ClientResult
    hedged: HedgedResult

    def to_json(self) -> str:
        """The report as one JSON object on one line."""
        return json.dumps(dataclasses.asdict(self))

    def in_words(self) -> str:
        """What a reader sees in the table, in one or two plain sentences."""
        hedged = self.hedged
        words = (
            f"p99.9 {self._change()} for {hedged.extra_requests_pct:.1f} % more requests;"
            f" {_duplicates_stored(hedged.duplicates)}."
        )
        if hedged.hedges_suppressed:
            words += (
                f" {_counted(hedged.hedges_suppressed, 'hedge was', 'hedges were')} suppressed"
                " because the token bucket was empty."
            )
        return words

    def _change(self) -> str:
        before, after = self.plain.p99_9_ms, self.hedged.p99_9_ms
        if abs(after - before) < _CLEAR * before:
            return f"did not change much ({before:,.0f} ms without, {after:,.0f} ms with hedging)"
        return f"{'fell' if after < before else 'rose'} from {before:,.0f} ms to {after:,.0f} ms"


def client_result(latencies: Sequence[float], *, requests: int) -> ClientResult:
    """The plain client's result from its latencies in seconds."""
    return ClientResult(**_milliseconds(latencies), requests=requests)


def hedged_result(
    latencies: Sequence[float],
    *,
    requests: int,
    plain_requests: int,
    hedges_sent: int,
    hedges_won: int,
    hedges_suppressed: int,
    duplicates: int,
) -> HedgedResult:
    """The hedged client's result from its latencies in seconds and the counts of its run."""
    return HedgedResult(
        **_milliseconds(latencies),
        requests=requests,
        hedges_sent=hedges_sent,
        hedges_won=hedges_won,
        hedges_suppressed=hedges_suppressed,
        duplicates=duplicates,
        extra_requests_pct=round(100 * (requests - plain_requests) / plain_requests, 3),
    )


def nearest_rank(ordered: Sequence[float], per_mille: int) -> float:
    """The smallest value that at least ``per_mille`` thousandths of all values do not exceed.

    Args:
        ordered: The values, smallest first.
        per_mille: From 1 to 1000; whole, because 99.9 % of a count in floating point can land
            on the next rank.

    Raises:
        ValueError: If there are no values, or ``per_mille`` is out of range.
    """
    if not ordered:
        raise ValueError("ordered must hold at least one value; got none")
    if not 1 <= per_mille <= 1000:
        raise ValueError(f"per_mille must be from 1 to 1000; got {per_mille!r}")
    rank = -(-per_mille * len(ordered) // 1000)
    return ordered[rank - 1]


def late_note(lateness: Sequence[float]) -> str | None:
    """A warning if more than one send in a hundred was late, else None.

    Args:
        lateness: Seconds between the scheduled and the actual send, one for each message.
    """
    p99 = nearest_rank(sorted(lateness), 990)
    if p99 <= _LATE:
        return None
    return (
        f"This machine did not keep the schedule: 1 % of the sends were {1000 * p99:,.0f} ms late"
        " or more, which is part of the latencies above. On a quieter machine, or with a lower"
        " --rate, only the clients' part remains."
    )


def _milliseconds(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    ranks = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99_9_ms": 999, "max_ms": 1000}
    return {
        name: round(1000 * nearest_rank(ordered, per_mille), 3) for name, per_mille in ranks.items()
    }


def _duplicates_stored(duplicates: int) -> str:
    if not duplicates:
        return "no duplicate was stored"
    return f"{_counted(duplicates, 'duplicate was', 'duplicates were')} stored"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
