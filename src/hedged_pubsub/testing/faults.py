"""The fault script: which Publish call meets which fault, decided without clock or server.

`FaultDecider` is deterministic: the same script and the same calls in the same order give the same
decisions. Every fault has a random stream of its own and takes one draw from it for every call,
matching or not, so neither another fault nor a selector moves the draws of the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.latency import Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What all faults share: the selectors. A fault applies to a call that matches all of them.

    Attributes:
        probability: chance that it applies to a call that matches otherwise; 0 to 1.
        calls: numbers of Publish calls, 1 being the first since the script was set.
        attempts: numbers of attempts, 0 being the original and 1 the first hedge. A call that
            carries no attempt number counts as an original.
        times: at most so many applications; None for no limit.
        topic: short name or path of the topic; None for all.
        between: start and end of a window, in seconds since the script was set.
    """

    probability: float = 1.0
    calls: Iterable[int] | None = None
    attempts: Iterable[int] | None = None
    times: int | None = None
    topic: str | None = None
    between: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        checks.number("probability", self.probability, minimum=0, maximum=1)
        if self.calls is not None:
            object.__setattr__(self, "calls", checks.integers("calls", self.calls, minimum=1))
        if self.attempts is not None:
            attempts = checks.integers("attempts", self.attempts, minimum=0)
            object.__setattr__(self, "attempts", attempts)
        if self.times is not None:
            checks.integer("times", self.times, minimum=1)
        if self.topic is not None:
            checks.text("topic", self.topic, "orders")
        if self.between is not None:
            object.__setattr__(self, "between", _window(self.between))

    def selects(self, call: Call) -> bool:
        """Tells whether the call matches all selectors but ``probability`` and ``times``."""
        if self.calls is not None and call.number not in self.calls:
            return False
        if self.attempts is not None and (call.attempt_number or 0) not in self.attempts:
            return False
        if self.topic is not None and self.topic not in (call.topic, _short_name(call.topic)):
            return False
        return self.between is None or self.between[0] <= call.elapsed < self.between[1]


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Holds the call, then stores its messages and answers.

    Nothing is stored if the call was cancelled (or its deadline passed) meanwhile.

    Attributes:
        seconds: how long; at least 0.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Checks the values."""
        Fault.__post_init__(self)
        checks.number("seconds", self.seconds, minimum=0)


@dataclass(frozen=True, slots=True)
class StoreThenStall(Fault):
    """Stores the messages at once, then holds the call and answers.

    If the call is cancelled meanwhile the messages stay stored: whoever sends them again makes a
    duplicate. The worst case for hedging.

    Attributes:
        seconds: how long; at least 0.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Checks the values."""
        Fault.__post_init__(self)
        checks.number("seconds", self.seconds, minimum=0)


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """Fails the call with a status code; nothing is stored.

    Attributes:
        code: a `grpc.StatusCode` or its name, such as ``"UNAVAILABLE"``; not OK.
        after: how long the call is held before, in seconds; at least 0.
    """

    code: grpc.StatusCode | str
    after: float = 0.0

    def __post_init__(self) -> None:
        """Checks the values."""
        Fault.__post_init__(self)
        checks.number("after", self.after, minimum=0)
        code = self.code
        if isinstance(code, str):
            code = grpc.StatusCode.__members__.get(code, code)
        if not isinstance(code, grpc.StatusCode) or code is grpc.StatusCode.OK:
            names = ", ".join(name for name in grpc.StatusCode.__members__ if name != "OK")
            raise ValueError(f"code={self.code!r} must be a status code, one of {names}")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class DropReply(Fault):
    """Stores the messages and never answers: the client waits until its deadline or cancels."""


@dataclass(frozen=True, slots=True)
class ResetConnection(Fault):
    """Resets the TCP connection the call came on; nothing is stored, the server stays up.

    All other calls of that connection break as well. Needs a server started with a relay: see
    `PubSubServer`.
    """


@dataclass(frozen=True, slots=True)
class TooFewIds(Fault):
    """Stores the messages and answers with one message id less than there are messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScript:
    """What the server does to the Publish calls it gets.

    The first fault in the list that applies to a call wins and stands in for the latency.

    Attributes:
        latency: how long a call without a fault takes: the call is held, then stored and answered.
            None answers at once.
        faults: the faults, in order of precedence.
        seed: of all random draws.
    """

    latency: Latency | None = None
    faults: Iterable[Fault] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.latency is not None and not hasattr(self.latency, "quantile"):
            raise TypeError(
                f"latency={self.latency!r} must be None or a distribution such as Fixed(0.005)"
            )
        object.__setattr__(self, "faults", _checked_faults(self.faults))
        checks.integer("seed", self.seed, minimum=-(2**63), maximum=2**63 - 1)

    @property
    def resets_connections(self) -> bool:
        """Whether one of the faults is a `ResetConnection`."""
        return any(isinstance(fault, ResetConnection) for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Call:
    """What a decision depends on.

    Attributes:
        number: 1 for the first Publish call since the script was set.
        topic: the topic's path.
        attempt_number: 0 for an original, 1 and up for hedges, None if the call does not say.
        elapsed: seconds since the script was set.
    """

    number: int
    topic: str
    attempt_number: int | None
    elapsed: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one call: the fault, or else the latency in seconds."""

    fault: Fault | None
    latency: float


_ANSWER_AT_ONCE = Decision(None, 0.0)


class FaultDecider:
    """Takes the script's decisions, call by call. Not thread-safe: the caller holds a lock."""

    __slots__ = ("_draw_latency", "_faults", "_latency")

    def __init__(self, script: FaultScript) -> None:
        self._latency = script.latency
        self._draw_latency = random.Random(f"{script.seed}/latency").random  # noqa: S311
        self._faults = [_Rule(fault, script.seed, i) for i, fault in enumerate(script.faults)]

    def decide(self, call: Call) -> Decision:
        """Decides what happens to the next call."""
        winner: Fault | None = None
        for rule in self._faults:
            # Draw even when an earlier fault has won, so that the draw depends on the call only.
            draw = rule.draw()
            if winner is None and rule.applies(call, draw):
                winner = rule.fault
        if self._latency is None:
            return _ANSWER_AT_ONCE if winner is None else Decision(winner, 0.0)
        # random() may return 0.0, where the quantile of some distributions is undefined.
        latency = self._latency.quantile(self._draw_latency() or 2.0**-54)
        return Decision(winner, latency)


class _Rule:
    """A fault with its random stream and how often it may still apply."""

    __slots__ = ("draw", "fault", "remaining")

    def __init__(self, fault: Fault, seed: int, index: int) -> None:
        self.fault = fault
        self.draw = random.Random(f"{seed}/fault {index}").random  # noqa: S311
        self.remaining = fault.times

    def applies(self, call: Call, draw: float) -> bool:
        if self.remaining == 0 or draw >= self.fault.probability or not self.fault.selects(call):
            return False
        if self.remaining is not None:
            self.remaining -= 1
        return True


def _checked_faults(faults: object) -> tuple[Fault, ...]:
    if not isinstance(faults, Iterable):
        raise TypeError(f"faults={faults!r} must be a list of faults, such as [Stall(2.0)]")
    checked = tuple(faults)
    for index, fault in enumerate(checked):
        if not isinstance(fault, Fault) or type(fault) is Fault:
            raise TypeError(f"faults[{index}]={fault!r} must be a fault, such as Stall(2.0)")
    return checked


def _short_name(topic: str) -> str:
    return topic.rpartition("/")[2]


def _window(between: object) -> tuple[float, float]:
    if not isinstance(between, (tuple, list)) or len(between) != 2:
        raise TypeError(f"between={between!r} must be a pair (start, end) of seconds")
    start = checks.number("between[0]", between[0], minimum=0)
    end = checks.number("between[1]", between[1], minimum=0)
    if start >= end:
        raise ValueError(f"between={between!r} must end after it starts")
    return start, end
