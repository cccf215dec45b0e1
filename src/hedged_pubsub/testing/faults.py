"""The fault script: which Publish call meets which fault, decided without clock or server.

The same script and the same calls in the same order give the same decisions. Every fault has a
random stream of its own and takes one draw from it for every call, matching or not, so neither
another fault nor a selector moves the draws of the rest.
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
        """Check the values."""
        checks.number("probability", self.probability, high=1)
        for name in ("seconds", "after"):  # of the faults that hold a call
            checks.number(name, getattr(self, name, 0))
        for name, low in (("calls", 1), ("attempts", 0)):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, checks.integers(name, given, low))
        if self.times is not None:
            checks.integer("times", self.times, 1)
        if self.topic is not None:
            checks.text("topic", self.topic, "orders")
        if self.between is not None:
            object.__setattr__(self, "between", _window(self.between))

    def selects(self, call: Call, applied: int) -> bool:
        """Tell whether all selectors but ``probability`` match, after so many applications."""
        return (
            (self.times is None or applied < self.times)
            and (self.calls is None or call.number in self.calls)
            and (self.attempts is None or (call.attempt_number or 0) in self.attempts)
            and self.topic in (None, call.topic, call.topic.rpartition("/")[2])
            and (self.between is None or self.between[0] <= call.elapsed < self.between[1])
        )


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Hold the call, then store its messages and answer.

    Nothing is stored if the call was cancelled (or its deadline passed) meanwhile.

    Attributes:
        seconds: how long; at least 0.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreThenStall(Fault):
    """Store the messages at once, then hold the call and answer.

    If the call is cancelled meanwhile the messages stay stored: whoever sends them again makes a
    duplicate. The worst case for hedging.

    Attributes:
        seconds: how long; at least 0.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """Fail the call with a status code; nothing is stored.

    Attributes:
        code: a `grpc.StatusCode` or its name, such as ``"UNAVAILABLE"``; not OK.
        after: how long the call is held before, in seconds; at least 0.
        retry_after: seconds that a ``google.rpc.RetryInfo`` in the answer asks to wait; at least
            0. None for an answer without one.
    """

    code: grpc.StatusCode | str
    after: float = 0.0
    retry_after: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        Fault.__post_init__(self)
        if self.retry_after is not None:
            checks.number("retry_after", self.retry_after)
        code = grpc.StatusCode.__members__.get(self.code, self.code)
        if not isinstance(code, grpc.StatusCode) or code is grpc.StatusCode.OK:
            names = ", ".join(name for name in grpc.StatusCode.__members__ if name != "OK")
            raise ValueError(f"code={self.code!r} must be a status code, one of {names}")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class DropReply(Fault):
    """Store the messages and never answer: the client waits until its deadline or cancels."""


@dataclass(frozen=True, slots=True)
class ResetConnection(Fault):
    """Reset the TCP connection the call came on; nothing is stored, the server stays up.

    All other calls of that connection break as well. Needs a server started with a relay: see
    `PubSubServer`.
    """


@dataclass(frozen=True, slots=True)
class TooFewIds(Fault):
    """Store the messages and answer with one message id less than there are messages."""


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
        """Check the values."""
        if self.latency is not None and not hasattr(self.latency, "quantile"):
            raise TypeError(
                f"latency={self.latency!r} must be None or a distribution such as Fixed(0.005)"
            )
        faults: object = self.faults
        if not isinstance(faults, Iterable):
            raise TypeError(f"faults={faults!r} must be a list of faults, such as [Stall(2.0)]")
        checked = tuple(faults)
        object.__setattr__(self, "faults", checked)
        for index, fault in enumerate(checked):
            if type(fault) is Fault or not isinstance(fault, Fault):
                raise TypeError(f"faults[{index}]={fault!r} must be a fault, such as Stall(2.0)")
        checks.integer("seed", self.seed, -(2**63), 2**63 - 1)

    @property
    def resets_connections(self) -> bool:
        """Whether one of the faults is a `ResetConnection`."""
        return any(isinstance(fault, ResetConnection) for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Call:
    """What a decision depends on: `Attempt` has the same numbers."""

    number: int
    topic: str  # its path
    attempt_number: int | None
    elapsed: float  # seconds since the script was set


class FaultDecider:
    """Takes the script's decisions, call by call. Not thread-safe: the caller holds a lock."""

    def __init__(self, script: FaultScript) -> None:
        self._latency = script.latency
        self._draw_latency = random.Random(f"{script.seed}/latency").random  # noqa: S311
        self._draws = [
            (fault, random.Random(f"{script.seed}/fault {index}").random)  # noqa: S311
            for index, fault in enumerate(script.faults)
        ]
        self._applied = [0] * len(self._draws)

    def decide(self, call: Call) -> Fault | float:
        """Return the fault that the next call meets, or else its latency in seconds."""
        winner: Fault | None = None
        for index, (fault, draw) in enumerate(self._draws):
            # Draw even when an earlier fault has won, so that the draw depends on the call only.
            drawn = draw() < fault.probability
            if winner is None and drawn and fault.selects(call, self._applied[index]):
                winner = fault
                self._applied[index] += 1
        # random() may return 0.0, where the quantile of some distributions is undefined.
        fraction = self._draw_latency() or 2.0**-54
        latency = 0.0 if self._latency is None else float(self._latency.quantile(fraction))
        return winner or latency


def _window(between: object) -> tuple[float, float]:
    if not isinstance(between, (tuple, list)) or len(between) != 2:
        raise TypeError(f"between={between!r} must be a pair (start, end) of seconds")
    start, end = (checks.number(f"between[{i}]", moment) for i, moment in enumerate(between))
    if start >= end:
        raise ValueError(f"between={between!r} must end after it starts")
    return start, end
