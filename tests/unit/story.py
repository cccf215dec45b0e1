"""Scenarios of one batch, told as data and replayed on a virtual clock.

A scenario says how each request would be answered; its story is what has to happen, one line an
action. The same scenarios are replayed through the engine alone and through the drivers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class Transient(Exception):
    """An error that the retry policy calls transient."""


class Permanent(Exception):
    """An error that the retry policy calls permanent."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """How a request is answered: with an error or, without one, with success."""

    after: float
    error: type[Exception] | None = None


def ok(after: float) -> Reply:
    """Succeed after so many seconds."""
    return Reply(after=after)


def transient(after: float) -> Reply:
    """Fail after so many seconds in a way that may be retried."""
    return Reply(after=after, error=Transient)


def permanent(after: float) -> Reply:
    """Fail after so many seconds for good."""
    return Reply(after=after, error=Permanent)


NEVER = Reply(after=math.inf)
"""No answer at all."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One batch: the settings, the answers to its requests in the order sent, and the story.

    Attributes:
        name: What it shows, with the rule in front.
        replies: The answer to each request, in the order they are sent.
        story: What happens, one line an action: ``<seconds> start <attempt> [timeout <seconds>]``,
            ``<seconds> cancel <attempt>``, ``<seconds> suppressed``, ``<seconds> resolve
            <attempt>``, ``<seconds> fail <error> [retry timed out]``.
        tokens: Tokens in the bucket before.
        tokens_after: Tokens in the bucket afterwards.
        backoffs: The waits before each resend; ``None`` for no retry.
        total_timeout: Seconds.
        hedge_delay: Seconds; ``None`` for no hedging.
    """

    name: str
    replies: tuple[Reply, ...]
    story: tuple[str, ...]
    tokens: int = 5
    tokens_after: float
    backoffs: tuple[float, ...] | None = field(default=(0.1, 0.4, 1.6))
    total_timeout: float = 600.0
    hedge_delay: float | None = 1.0


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="R1 a fast answer: one request, no hedge",
        replies=(ok(0.02),),
        story=("0.000 start 0", "0.020 resolve 0"),
        tokens_after=5.1,
    ),
    Scenario(
        name="R2 an answer just before the first look",
        replies=(ok(0.999),),
        story=("0.000 start 0", "0.999 resolve 0"),
        tokens_after=5.1,
    ),
    Scenario(
        name="R2 hedges go out one delay after another, and each is numbered",
        replies=(ok(9.0), ok(9.0), ok(0.5)),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "2.000 start 2 timeout 10",
            "2.500 cancel 0",
            "2.500 cancel 1",
            "2.500 resolve 2",
        ),
        tokens_after=3.1,
    ),
    Scenario(
        name="R3 no hedge while the original is backing off, and no token for it",
        replies=(transient(0.9), ok(0.05)),
        backoffs=(0.5,),
        story=("0.000 start 0", "1.400 start 0", "1.450 resolve 0"),
        tokens_after=5.1,
    ),
    Scenario(
        name="R3 looks go on after a backoff and hedge the resent original",
        replies=(transient(0.9), NEVER, ok(0.1)),
        backoffs=(0.5,),
        story=(
            "0.000 start 0",
            "1.400 start 0",
            "2.000 start 1 timeout 10",
            "2.100 cancel 0",
            "2.100 resolve 1",
        ),
        tokens_after=4.1,
    ),
    Scenario(
        name="R3 a hedge in flight is hedged although the original is backing off",
        replies=(transient(1.5), NEVER, ok(0.1)),
        backoffs=(9.0,),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "2.000 start 2 timeout 10",
            "2.100 cancel 1",
            "2.100 resolve 2",
        ),
        tokens_after=3.1,
    ),
    Scenario(
        name="R3 no token: suppressed, and looked at again",
        replies=(ok(2.5),),
        tokens=0,
        story=("0.000 start 0", "1.000 suppressed", "2.000 suppressed", "2.500 resolve 0"),
        tokens_after=0.1,
    ),
    Scenario(
        name="R3 one token: one hedge, then suppressed",
        replies=(ok(2.5), NEVER),
        tokens=1,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "2.000 suppressed",
            "2.500 cancel 1",
            "2.500 resolve 0",
        ),
        tokens_after=0.1,
    ),
    Scenario(
        name="R3 a hedge's timeout is what is left of the total one",
        replies=(NEVER, NEVER, ok(0.25)),
        total_timeout=3.0,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 2",
            "2.000 start 2 timeout 1",
            "2.250 cancel 0",
            "2.250 cancel 1",
            "2.250 resolve 2",
        ),
        tokens_after=3.1,
    ),
    Scenario(
        name="R3 hedging ends with the total timeout; the original may go on",
        replies=(ok(4.0), NEVER, NEVER),
        total_timeout=3.0,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 2",
            "2.000 start 2 timeout 1",
            "4.000 cancel 1",
            "4.000 cancel 2",
            "4.000 resolve 0",
        ),
        tokens_after=3.1,
    ),
    Scenario(
        name="R3 without a total timeout a hedge has ten seconds",
        replies=(NEVER, ok(0.25)),
        total_timeout=math.inf,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "1.250 cancel 0",
            "1.250 resolve 1",
        ),
        tokens_after=4.1,
    ),
    Scenario(
        name="R4 the original wins over its hedge",
        replies=(ok(1.2), ok(1.0)),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "1.200 cancel 1",
            "1.200 resolve 0",
        ),
        tokens_after=4.1,
    ),
    Scenario(
        name="R5 a hedge fails for good, the original succeeds",
        replies=(ok(1.8), permanent(0.2)),
        story=("0.000 start 0", "1.000 start 1 timeout 10", "1.800 resolve 0"),
        tokens_after=4.1,
    ),
    Scenario(
        name="R5 every hedge fails, and hedging goes on until one succeeds",
        replies=(NEVER, transient(0.2), permanent(0.2), ok(0.2)),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "2.000 start 2 timeout 10",
            "3.000 start 3 timeout 10",
            "3.200 cancel 0",
            "3.200 resolve 3",
        ),
        tokens_after=2.1,
    ),
    Scenario(
        name="R5 a hedge fails while the original is backing off",
        replies=(transient(1.1), permanent(0.3), ok(0.1)),
        backoffs=(0.8,),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "1.900 start 0",
            "2.000 start 2 timeout 10",
            "2.000 cancel 2",
            "2.000 resolve 0",
        ),
        tokens=2,
        tokens_after=0.1,
    ),
    Scenario(
        name="R6 the original fails for good at once: one request ever",
        replies=(permanent(0.01),),
        story=("0.000 start 0", "0.010 fail Permanent"),
        tokens_after=5.0,
    ),
    Scenario(
        name="R6 the original fails for good: fail now, although a hedge would succeed",
        replies=(permanent(1.2), ok(0.5)),
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "1.200 cancel 1",
            "1.200 fail Permanent",
        ),
        tokens_after=4.0,
    ),
    Scenario(
        name="R6 transient errors are retried in the same batch",
        replies=(transient(0.1), transient(0.1), ok(0.1)),
        story=(
            "0.000 start 0",
            "0.200 start 0",
            "0.700 start 0",
            "0.800 resolve 0",
        ),
        tokens_after=5.1,
    ),
    Scenario(
        name="R6 a hedge that was in flight decides while the original backs off",
        replies=(transient(1.1), ok(0.3)),
        backoffs=(5.0,),
        story=("0.000 start 0", "1.000 start 1 timeout 10", "1.300 resolve 1"),
        tokens_after=4.1,
    ),
    Scenario(
        name="R6 no retry left, a hedge in flight: wait for it, it succeeds",
        replies=(transient(1.1), ok(0.5)),
        backoffs=None,
        story=("0.000 start 0", "1.000 start 1 timeout 10", "1.500 resolve 1"),
        tokens_after=4.1,
    ),
    Scenario(
        name="R6 no retry left, the hedge fails too: the original's error",
        replies=(transient(1.1), permanent(0.5)),
        backoffs=None,
        story=("0.000 start 0", "1.000 start 1 timeout 10", "1.500 fail Transient"),
        tokens_after=4.0,
    ),
    Scenario(
        name="R6 no retry left, the first of two hedges fails, the second succeeds",
        replies=(transient(2.1), permanent(1.5), ok(1.0)),
        backoffs=None,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 10",
            "2.000 start 2 timeout 10",
            "3.000 start 3 timeout 10",
            "3.000 cancel 3",
            "3.000 resolve 2",
        ),
        tokens=3,
        tokens_after=0.1,
    ),
    Scenario(
        name="R6 no retry and no hedge in flight: fail",
        replies=(transient(0.3),),
        backoffs=None,
        story=("0.000 start 0", "0.300 fail Transient"),
        tokens_after=5.0,
    ),
    Scenario(
        name="R6 the retry timeout ends the batch, with no wait beyond it",
        replies=(transient(0.5), transient(0.5)),
        backoffs=(0.5, 2.0),
        total_timeout=3.0,
        story=(
            "0.000 start 0",
            "1.000 start 0",
            "1.500 fail Transient retry timed out",
        ),
        tokens=0,
        tokens_after=0.0,
    ),
    Scenario(
        name="R6 the retry timeout is reached, a hedge in flight: wait for it",
        replies=(transient(1.5), ok(1.0)),
        backoffs=(9.0,),
        total_timeout=3.0,
        tokens=1,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 2",
            "2.000 suppressed",
            "2.000 resolve 1",
        ),
        tokens_after=0.1,
    ),
    Scenario(
        name="R6 the retry timeout is reached and the hedge fails: the original's retry error",
        replies=(transient(1.5), permanent(0.75)),
        backoffs=(9.0,),
        total_timeout=3.0,
        story=(
            "0.000 start 0",
            "1.000 start 1 timeout 2",
            "1.750 fail Transient retry timed out",
        ),
        tokens_after=4.0,
    ),
    Scenario(
        name="R9 a refill never overflows the bucket",
        replies=(ok(0.1),),
        tokens=10,
        story=("0.000 start 0", "0.100 resolve 0"),
        tokens_after=10.0,
    ),
    Scenario(
        name="hedging off: retries as ever, no look",
        replies=(transient(3.0), ok(9.0)),
        hedge_delay=None,
        story=("0.000 start 0", "3.100 start 0", "12.100 resolve 0"),
        tokens_after=5.1,
    ),
)
"""Each bucket holds ten tokens at most and earns 0.1 a success."""
