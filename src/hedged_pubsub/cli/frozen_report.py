"""What both clients made of a frozen connection: the numbers, as JSON, in rows and in words."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hedged_pubsub.cli.report import nearest_rank

Answers = Sequence["float | None"]
"""Latencies in seconds by message, in the order of the schedule; ``None`` for no answer."""

# Few enough for a screen.
_PERIODS: Final = 10
_NO_ANSWER: Final = "no answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenRun:
    """The schedule that both clients followed.

    Attributes:
        publishes: Messages that each published.
        rate: Of them, so many a second.
        frozen_from: The number of the first message after the freeze.
        grace: Seconds after the last publish within which an answer still counts.
        hedge_delay: The hedge delay in seconds.
    """

    publishes: int
    rate: float
    frozen_from: int
    grace: float
    hedge_delay: float

    @property
    def end(self) -> float:
        """When answers cease to count, in seconds from the start."""
        return self.publishes / self.rate + self.grace

    def since_freeze(self, number: int) -> float:
        """Seconds from the freeze to the scheduled time of a message; negative before."""
        return (number - self.frozen_from) / self.rate

    def answers(self, latencies: Sequence[float]) -> Answers:
        """Leave out the answers that came after the end."""
        return tuple(
            latency if number / self.rate + latency <= self.end else None
            for number, latency in enumerate(latencies)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSummary:
    """One client's column of the table; field names are the keys of the JSON object.

    Attributes:
        answered_before: Publishes before the freeze that were answered.
        answered_after: Publishes after the freeze that were answered.
        unanswered: Publishes without an answer at the end.
        p50_before_ms: Median latency before the freeze, in milliseconds.
        first_after_ms: Latency of the first publish after the freeze; ``None`` for no answer.
        slowest_after_ms: The slowest publish after the freeze; ``None`` if one has no answer.
        settled_s: Seconds after the freeze from which all publishes were answered below the hedge
            delay; ``None`` for never.
        connections: The most connections that the client had open at the same time.
    """

    answered_before: int
    answered_after: int
    unanswered: int
    p50_before_ms: float | None
    first_after_ms: float | None
    slowest_after_ms: float | None
    settled_s: float | None
    connections: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """What became of the messages of one part of the schedule.

    Attributes:
        since_freeze_s: Seconds from the freeze to the first of them; negative before.
        sent: How many there were.
        plain_answered: How many of them the official client got an answer to.
        plain_slowest_ms: The slowest of these; ``None`` if there were none.
        hedged_answered: How many the hedged publisher got an answer to.
        hedged_slowest_ms: The slowest of these.
    """

    since_freeze_s: float
    sent: int
    plain_answered: int
    plain_slowest_ms: float | None
    hedged_answered: int
    hedged_slowest_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenReport:
    """Both clients' results, and how they came about in time."""

    run: FrozenRun
    plain: ClientSummary
    hedged: ClientSummary
    timeline: tuple[Period, ...]

    def to_json(self) -> str:
        """The report as one JSON object on one line."""
        return json.dumps(dataclasses.asdict(self))

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the table: a name, the official client, the hedged publisher."""
        before, after = self.run.frozen_from, self.run.publishes - self.run.frozen_from
        sides = (self.plain, self.hedged)
        return [
            ("answered before the freeze", *(f"{s.answered_before} of {before}" for s in sides)),
            ("median latency before", *(_milliseconds(s.p50_before_ms) for s in sides)),
            ("answered after the freeze", *(f"{s.answered_after} of {after}" for s in sides)),
            ("first publish after", *(_milliseconds(s.first_after_ms) for s in sides)),
            ("slowest publish after", *(_milliseconds(s.slowest_after_ms) for s in sides)),
            ("below the hedge delay again", *(_settled(s.settled_s) for s in sides)),
            ("connections at most", *(str(s.connections) for s in sides)),
        ]

    def timeline_rows(self) -> list[tuple[str, ...]]:
        """The time line: when messages were sent, and what became of them with either client."""
        return [
            (
                f"{period.since_freeze_s:+.1f} s",
                _answered(period.plain_answered, period.sent, period.plain_slowest_ms),
                _answered(period.hedged_answered, period.sent, period.hedged_slowest_ms),
            )
            for period in self.timeline
        ]

    def in_words(self) -> str:
        """What a reader sees in the tables, in two plain sentences."""
        after = self.run.publishes - self.run.frozen_from
        plain, hedged = self.plain, self.hedged
        words = (
            f"Of {after:,} publishes after the freeze, PublisherClient got"
            f" {_share(plain.answered_after, after)} answered within {self.run.grace:g} s of the"
            f" last one, and HedgedPublisher {_share(hedged.answered_after, after)}"
        )
        if hedged.settled_s is None:
            return words + "."
        return words + f", below the hedge delay from {hedged.settled_s:.1f} s after the freeze on."


def client_summary(run: FrozenRun, answers: Answers, *, connections: int) -> ClientSummary:
    """One client's summary."""
    before = sorted(answer for answer in answers[: run.frozen_from] if answer is not None)
    after = answers[run.frozen_from :]
    slow = [
        number for number, answer in enumerate(after) if answer is None or answer >= run.hedge_delay
    ]
    settled_at = slow[-1] + 1 if slow else 0
    return ClientSummary(
        answered_before=len(before),
        answered_after=sum(answer is not None for answer in after),
        unanswered=sum(answer is None for answer in answers),
        p50_before_ms=_in_ms(nearest_rank(before, 500)) if before else None,
        first_after_ms=_in_ms(after[0]) if after else None,
        slowest_after_ms=_slowest_ms(after) if None not in after else None,
        settled_s=round(settled_at / run.rate, 3) if settled_at < len(after) else None,
        connections=connections,
    )


def timeline(run: FrozenRun, plain: Answers, hedged: Answers) -> tuple[Period, ...]:
    """Divide the schedule into periods, one of which begins with the freeze."""
    length = max(1, math.ceil(run.publishes / _PERIODS))
    # The first one is shorter if the rest would not begin at the freeze.
    starts = range(run.frozen_from % length - length, run.publishes, length)
    periods = []
    for start in starts:
        part = slice(max(start, 0), start + length)
        if not plain[part]:
            continue
        periods.append(
            Period(
                since_freeze_s=round(run.since_freeze(part.start), 3),
                sent=len(plain[part]),
                plain_answered=sum(answer is not None for answer in plain[part]),
                plain_slowest_ms=_slowest_ms(plain[part]),
                hedged_answered=sum(answer is not None for answer in hedged[part]),
                hedged_slowest_ms=_slowest_ms(hedged[part]),
            )
        )
    return tuple(periods)


def _slowest_ms(answers: Answers) -> float | None:
    return _in_ms(max((answer for answer in answers if answer is not None), default=None))


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _milliseconds(value: float | None) -> str:
    return _NO_ANSWER if value is None else f"{value:,.1f} ms"


def _settled(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _answered(answered: int, sent: int, slowest_ms: float | None) -> str:
    if slowest_ms is None:
        return f"{answered} of {sent}"
    return f"{answered} of {sent}, max {slowest_ms:,.0f} ms"


def _share(answered: int, sent: int) -> str:
    if answered in (0, sent):
        return "all" if answered else "none"
    return f"{answered:,}"
