"""The plan as JSON and as a table of text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from hedged_pubsub.cli.plan.recommendation import Plan, milliseconds, percent
from hedged_pubsub.cli.plan.samples import Samples
from hedged_pubsub.cli.plan.simulation import Latencies, Prediction, Trace
from hedged_pubsub.hedge_delay import HedgeDelay

_PERCENTILES: Final = {
    "p50": 5_000,
    "p90": 9_000,
    "p95": 9_500,
    "p99": 9_900,
    "p99.9": 9_990,
    "p99.99": 9_999,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyRow:
    """Percentiles in milliseconds, by nearest rank; field names are keys of the JSON object."""

    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p99_9_ms: float
    p99_99_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingRow(LatencyRow):
    """What one setting would have done.

    Attributes:
        hedge_delay_s: The hedge delay in seconds; the initial one if it is measured.
        percentile: The fraction of a measured hedge delay; else ``None``.
        max_tokens: The size of the token bucket.
        refill_ratio: The refill ratio.
        extra_requests_pct: Hedges sent, in percent of the requests.
        slower_pct: Requests not answered before the hedge delay, in percent.
        suppressed_pct: Hedges that were due with no token left, in percent of the requests.
    """

    hedge_delay_s: float
    percentile: float | None
    max_tokens: int
    refill_ratio: float
    extra_requests_pct: float
    slower_pct: float
    suppressed_pct: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that is printed with ``--json``.

    Attributes:
        source: What was replayed, in words.
        samples: How many requests.
        skipped: How many malformed lines were left out.
        rate: Requests per second in the replay.
        budget_pct: Extra requests that are allowed, in percent.
        without: The latencies as recorded.
        settings: A row for each setting.
        recommended: The best one, or ``None``.
        reason: Why that one, or why none.
        warnings: What to be wary of, in sentences.
    """

    source: str
    samples: int
    skipped: int
    rate: float
    budget_pct: float
    without: LatencyRow
    settings: tuple[SettingRow, ...]
    recommended: SettingRow | None
    reason: str
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        """All of it as one JSON object on one line."""
        return json.dumps(dataclasses.asdict(self))


def make_report(samples: Samples, trace: Trace, plan: Plan, *, budget: float) -> Report:
    """Put everything into rows."""
    return Report(
        source=samples.source,
        samples=len(trace),
        skipped=samples.skipped,
        rate=trace.rate,
        budget_pct=100 * budget,
        without=LatencyRow(**_percentiles(trace.recorded)),
        settings=tuple(map(_row, plan.predictions)),
        recommended=None if plan.recommended is None else _row(plan.recommended),
        reason=plan.reason,
        warnings=(*samples.notes, *plan.warnings),
    )


def table(
    trace: Trace, predictions: Sequence[Prediction]
) -> tuple[str, Sequence[str], Iterable[Sequence[str]]]:
    """Return the title, the header and the rows; ratios that make no difference share a row."""
    rows = [("none", "", *_cells(trace.recorded), "0 %", "")]
    # Predictions that are the same have their latencies in common.
    for _, same in groupby(predictions, key=lambda one: id(one.latencies)):
        group = list(same)
        first = group[0].settings
        # These are the largest ones: from some ratio on, none makes a difference any more.
        ratio = f"{'≥' if len(group) > 1 else ''}{first.refill_ratio:g}"
        delay = first.hedge_delay
        rows.append(
            (
                f"p{100 * delay.fraction:g}" if isinstance(delay, HedgeDelay) else f"{delay:g} s",
                ratio,
                *_cells(group[0].latencies),
                percent(group[0].extra_requests),
                percent(group[0].slower),
            )
        )
    header = ("delay", "refill ratio", *_PERCENTILES, "extra", "slower")
    return (f"{len(trace):,} requests, hedged: latency in milliseconds", header, rows)


def words(report: Report) -> str:
    """Return what follows the table: the recommendation, and what to be wary of."""
    return "\n".join((report.reason, *(f"Note: {warning}" for warning in report.warnings)))


def _row(prediction: Prediction) -> SettingRow:
    settings = prediction.settings
    delay = settings.hedge_delay
    return SettingRow(
        **_percentiles(prediction.latencies),
        hedge_delay_s=settings.initial_hedge_delay,
        percentile=delay.fraction if isinstance(delay, HedgeDelay) else None,
        max_tokens=settings.max_tokens,
        refill_ratio=settings.refill_ratio,
        extra_requests_pct=round(100 * prediction.extra_requests, 4),
        slower_pct=round(100 * prediction.slower, 4),
        suppressed_pct=round(100 * prediction.suppressed, 4),
    )


def _percentiles(latencies: Latencies) -> dict[str, float]:
    return {
        f"{name.replace('.', '_')}_ms": round(1000 * latencies.percentile(parts), 3)
        for name, parts in _PERCENTILES.items()
    }


def _cells(latencies: Latencies) -> list[str]:
    return [milliseconds(latencies.percentile(parts)) for parts in _PERCENTILES.values()]
