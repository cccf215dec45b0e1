"""Scenarios of one batch, told as data and replayed on a virtual clock.

A scenario says how each request would be answered; its story is what has to happen, one line an
action. The same scenarios are replayed through the engine alone and through the drivers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import (
    ORIGINAL,
    Cancel,
    Event,
    Fail,
    Failed,
    Order,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    WakeAt,
)
from hedged_pubsub._core.runs import Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import HedgingStats

from .replay import core_batch, run


class Transient(Exception):
    """An error that the retry policy calls transient."""


class Permanent(Exception):
    """An error that the retry policy calls permanent."""


class Reply(NamedTuple):
    """How a request is answered, and after how many seconds; without an error, with success."""

    after: float
    error: type[Exception] | None = None


_ERRORS = {"ok": None, "transient": Transient, "permanent": Permanent}


@dataclass(frozen=True)
class Scenario:
    """One batch: the settings, the answers to its requests in the order sent, and the story.

    Attributes:
        name: What it shows, with the rule in front.
        answers: ``ok``, ``transient`` or ``permanent`` and the seconds until then, or ``never``.
        story: What is done when: ``start <attempt>``, for a hedge with its timeout, ``cancel
            <attempt>``, ``suppressed``, ``resolve <attempt>`` or ``fail <error>``, with ``retry
            timed out`` if it did.
        tokens: Tokens in the bucket before and afterwards. It holds ten and earns 0.1 a success.
        backoffs: The waits before each resend; none for no retry.
        hedged: Whether it is, after a second.
    """

    name: str
    answers: str
    story: str
    tokens: tuple[int, float]
    backoffs: tuple[float, ...]
    total_timeout: float
    hedged: bool

    @property
    def replies(self) -> Iterator[Reply]:
        """The answers to its requests, without end."""
        for answer in self.answers.split(", "):
            kind, after = answer.split() if answer != "never" else ("ok", math.inf)
            yield Reply(float(after), _ERRORS[kind])
        yield from itertools.repeat(Reply(math.inf))

    @property
    def lines(self) -> list[str]:
        """The story, one line an action."""
        moments = (moment.split(maxsplit=1) for moment in self.story.split("; "))
        return [f"{time} {what}" for time, actions in moments for what in actions.split(", ")]

    @property
    def settings(self) -> HedgingSettings | None:
        return HedgingSettings(hedge_delay=1.0, max_tokens=10) if self.hedged else None

    @property
    def counts(self) -> dict[str, int]:
        """What the batch adds to the numbers."""
        words = [line.split()[1:] for line in self.lines]
        starts = [word[1] for word in words if word[0] == "start"]
        return {
            "batches": 1,
            "batches_failed": sum(word[0] == "fail" for word in words),
            "attempts": len(starts),
            "attempts_cancelled": sum(word[0] == "cancel" for word in words),
            "hedges_due": len(starts)
            - starts.count("0")
            + sum(word[0] == "suppressed" for word in words),
            "hedges_sent": len(starts) - starts.count("0"),
            "hedges_won": sum(word[0] == "resolve" and word[1] != "0" for word in words),
            "hedges_suppressed": sum(word[0] == "suppressed" for word in words),
        }

    def added(self, before: HedgingStats, after: HedgingStats) -> dict[str, int]:
        """Return what was added to the numbers, to be compared with ``counts``."""
        return {name: getattr(after, name) - getattr(before, name) for name in self.counts}


def line(seconds: float, what: str) -> str:
    """Return a line of a story."""
    return f"{round(seconds, 3):g} {what}"


def _read(table: str) -> Iterator[Scenario]:
    """Read scenarios of three lines: the name, what is given and the answers, and the story."""
    lines = iter(table.strip().splitlines())
    for name, line, story in zip(lines, lines, lines, strict=True):
        given, answers = line.split(": ")
        numbers = {
            word: tuple(map(float, values)) for word, *values in map(str.split, given.split(", "))
        }
        before, after = numbers["tokens"]
        backoffs = numbers.get("backoffs", (0.1, 0.4, 1.6))
        (timeout,) = numbers.get("timeout", (600.0,))
        tokens, hedged = (int(before), after), "unhedged" not in numbers
        yield Scenario(name, answers, story.strip(), tokens, backoffs, timeout, hedged)


SCENARIOS = tuple(
    _read("""
R1 a fast answer: one request, no hedge
    tokens 5 5.1: ok 0.02
    0 start 0; 0.02 resolve 0
R2 an answer just before the hedge timer is due
    tokens 5 5.1: ok 0.999
    0 start 0; 0.999 resolve 0
R2 hedges go out one delay after another, and each is numbered
    tokens 5 3.1: ok 9, ok 9, ok 0.5
    0 start 0; 1 start 1 for 10 s; 2 start 2 for 10 s; 2.5 cancel 0, cancel 1, resolve 2
R3 a probe while the original is backing off
    tokens 5 4.1, backoffs 5: transient 0.9, ok 0.05
    0 start 0; 1 start 1 for 10 s; 1.05 resolve 1
R3 no token for a probe
    tokens 0 0.1, backoffs 0.5: transient 0.9, ok 0.05
    0 start 0; 1 suppressed; 1.4 start 0; 1.45 resolve 0
R3 the hedge timer goes on after a backoff and hedges the resent original
    tokens 5 4.1, backoffs 0.5: transient 0.3, never, ok 0.3
    0 start 0; 0.8 start 0; 1 start 1 for 10 s; 1.3 cancel 0, resolve 1
R3 a hedge in flight is hedged although the original is backing off
    tokens 5 3.1, backoffs 9: transient 1.5, never, ok 0.1
    0 start 0; 1 start 1 for 10 s; 2 start 2 for 10 s; 2.1 cancel 1, resolve 2
R3 no token: suppressed, and tried again
    tokens 0 0.1: ok 2.5
    0 start 0; 1 suppressed; 2 suppressed; 2.5 resolve 0
R3 one token: one hedge, then suppressed
    tokens 1 0.1: ok 2.5, never
    0 start 0; 1 start 1 for 10 s; 2 suppressed; 2.5 cancel 1, resolve 0
R3 a hedge's timeout is what is left of the total one
    tokens 5 3.1, timeout 3: never, never, ok 0.25
    0 start 0; 1 start 1 for 2 s; 2 start 2 for 1 s; 2.25 cancel 0, cancel 1, resolve 2
R3 hedging ends with the total timeout; the original may go on
    tokens 5 3.1, timeout 3: ok 4, never, never
    0 start 0; 1 start 1 for 2 s; 2 start 2 for 1 s; 4 cancel 1, cancel 2, resolve 0
R3 without a total timeout a hedge has ten seconds
    tokens 5 4.1, timeout inf: never, ok 0.25
    0 start 0; 1 start 1 for 10 s; 1.25 cancel 0, resolve 1
R4 the original wins over its hedge
    tokens 5 4.1: ok 1.2, ok 1
    0 start 0; 1 start 1 for 10 s; 1.2 cancel 1, resolve 0
R5 a hedge fails for good, the original succeeds
    tokens 5 4.1: ok 1.8, permanent 0.2
    0 start 0; 1 start 1 for 10 s; 1.8 resolve 0
R5 every hedge fails, and hedging goes on until one succeeds
    tokens 5 2.1: never, transient 0.2, permanent 0.2, ok 0.2
    0 start 0; 1 start 1 for 10 s; 2 start 2 for 10 s; 3 start 3 for 10 s; 3.2 cancel 0, resolve 3
R5 a hedge fails while the original is backing off
    tokens 2 0.1, backoffs 0.8: transient 1.1, permanent 0.3, ok 0.1
    0 start 0; 1 start 1 for 10 s; 1.9 start 0; 2 start 2 for 10 s, cancel 2, resolve 0
R6 the original fails for good at once: one request ever
    tokens 5 5: permanent 0.01
    0 start 0; 0.01 fail Permanent
R6 the original fails for good: fail now, although a hedge would succeed
    tokens 5 4: permanent 1.2, ok 0.5
    0 start 0; 1 start 1 for 10 s; 1.2 cancel 1, fail Permanent
R6 transient errors are retried in the same batch
    tokens 5 5.1: transient 0.1, transient 0.1, ok 0.1
    0 start 0; 0.2 start 0; 0.7 start 0; 0.8 resolve 0
R6 a hedge that was in flight decides while the original backs off
    tokens 5 4.1, backoffs 5: transient 1.1, ok 0.3
    0 start 0; 1 start 1 for 10 s; 1.3 resolve 1
R6 no retry left, a hedge in flight: wait for it, it succeeds
    tokens 5 4.1, backoffs: transient 1.1, ok 0.5
    0 start 0; 1 start 1 for 10 s; 1.5 resolve 1
R6 no retry left, the hedge fails too: the original's error
    tokens 5 4, backoffs: transient 1.1, permanent 0.5
    0 start 0; 1 start 1 for 10 s; 1.5 fail Transient
R6 no retry left, the first of two hedges fails, the second succeeds
    tokens 3 0.1, backoffs: transient 2.1, permanent 1.5, ok 1
    0 start 0; 1 start 1 for 10 s; 2 start 2 for 10 s; 3 start 3 for 10 s, cancel 3, resolve 2
R6 no retry and no hedge in flight: fail
    tokens 5 5, backoffs: transient 0.3
    0 start 0; 0.3 fail Transient
R6 the retry timeout ends the batch, with no wait beyond it
    tokens 0 0, backoffs 0.5 2, timeout 3: transient 0.5, transient 0.5
    0 start 0; 1 suppressed, start 0; 1.5 fail Transient retry timed out
R6 the retry timeout is reached, a hedge in flight: wait for it
    tokens 1 0.1, backoffs 9, timeout 3: transient 1.5, ok 1
    0 start 0; 1 start 1 for 2 s; 2 suppressed, resolve 1
R6 the retry timeout is reached and the hedge fails: the original's retry error
    tokens 5 4, backoffs 9, timeout 3: transient 1.5, permanent 0.75
    0 start 0; 1 start 1 for 2 s; 1.75 fail Transient retry timed out
R9 a refill never overflows the bucket
    tokens 10 10: ok 0.1
    0 start 0; 0.1 resolve 0
hedging off: retries as ever, no hedge timer
    tokens 5 5.1, unhedged: transient 3, ok 9
    0 start 0; 3.1 start 0; 12.1 resolve 0
""")
)


def earn(runs: Runs[Batch], tokens: int) -> None:
    """Let batches succeed until the bucket holds ``tokens``."""
    for _ in range(tokens * 10):
        batch = core_batch()
        runs.commit(batch, 0.0)
        runs.handle(batch, Succeeded(ORIGINAL), 0.0)


def play(scenario: Scenario) -> tuple[Runs[Batch], list[str]]:
    """Play a scenario with nothing but the engine; return its runs and the story."""
    runs: Runs[Batch] = Runs(
        scenario.settings or HedgingSettings(max_tokens=10), hedged=scenario.hedged
    )
    earn(runs, scenario.tokens[0])
    replies, backoffs = scenario.replies, iter(scenario.backoffs)
    story: list[str] = []

    def answer(_: int, start: Start) -> tuple[float, Event]:
        reply, attempt = next(replies), start.attempt
        if reply.error is None:
            return reply.after, Succeeded(attempt)
        is_judged = reply.error is Transient and attempt == ORIGINAL
        backoff = next(backoffs, None) if is_judged else None
        return reply.after, Failed(attempt, reply.error(), is_judged, backoff)

    def note(_: int, order: Order, now: float) -> None:
        if not isinstance(order, WakeAt):
            story.append(line(now, _in_words(order)))

    run(runs, [(0.0, core_batch(scenario.total_timeout))], answer, note)
    return runs, story


def _in_words(order: Order) -> str:
    match order:
        case Start(attempt, None):
            return f"start {attempt}"
        case Start(attempt, timeout):
            return f"start {attempt} for {timeout:g} s"
        case Cancel(attempt):
            return f"cancel {attempt}"
        case Suppressed():
            return "suppressed"
        case Resolve(attempt):
            return f"resolve {attempt}"
        case Fail(error, retry_timed_out):
            return f"fail {type(error).__name__}" + " retry timed out" * retry_timed_out
    raise AssertionError(order)
