"""The fault script's decisions, without a server."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.testing import (
    DropReply,
    Fault,
    FaultScript,
    Fixed,
    LogNormal,
    ResetConnection,
    Stall,
    Status,
    StoreThenStall,
    TooFewIds,
)
from hedged_pubsub.testing.faults import Call, Decision, FaultDecider

ORDERS = "projects/test/topics/orders"
AUDIT = "projects/test/topics/audit"


def decide(
    script: FaultScript,
    count: int,
    *,
    topic: str = ORDERS,
    attempt_number: int | None = None,
    elapsed: float = 0.0,
) -> list[Decision]:
    """Decide on ``count`` calls that are alike."""
    decider = FaultDecider(script)
    return [
        decider.decide(Call(number, topic, attempt_number, elapsed))
        for number in range(1, count + 1)
    ]


def struck(script: FaultScript, count: int, **call: Any) -> list[int]:
    """Return the numbers of the calls that met a fault."""
    decisions = decide(script, count, **call)
    return [number for number, d in enumerate(decisions, start=1) if d.fault is not None]


def test_without_a_fault_only_the_latency_applies() -> None:
    """A script without faults holds every call for its latency."""
    assert decide(FaultScript(latency=Fixed(0.25)), 2) == [Decision(None, 0.25)] * 2


def test_an_empty_script_answers_at_once() -> None:
    """The default script does nothing to a call."""
    assert decide(FaultScript(), 1) == [Decision(None, 0.0)]


def test_calls_selects_by_number() -> None:
    """``calls`` are 1-based numbers of calls."""
    assert struck(FaultScript(faults=[Stall(1, calls=[2, 4])]), 5) == [2, 4]


def test_times_limits_applications() -> None:
    """``times`` counts applications, not calls."""
    script = FaultScript(faults=[Status("UNAVAILABLE", times=2, calls=[2, 3, 5])])
    assert struck(script, 6) == [2, 3]


def test_attempts_selects_by_attempt_number() -> None:
    """``attempts`` are attempt numbers, 1 the first hedge."""
    script = FaultScript(faults=[Stall(1, attempts=[1])])
    assert struck(script, 1, attempt_number=1) == [1]
    assert struck(script, 1, attempt_number=0) == []


def test_a_call_without_attempt_number_is_an_original() -> None:
    """The official client sends no attempt number; what it sends are originals."""
    assert struck(FaultScript(faults=[Stall(1, attempts=[0])]), 1) == [1]


@pytest.mark.parametrize("topic", ["orders", ORDERS])
def test_topic_selects_by_name_or_path(topic: str) -> None:
    """``topic`` may be a short name or a path."""
    script = FaultScript(faults=[Stall(1, topic=topic)])
    assert struck(script, 1, topic=ORDERS) == [1]
    assert struck(script, 1, topic=AUDIT) == []


@pytest.mark.parametrize(
    ("elapsed", "applies"), [(0.9, False), (1.0, True), (1.9, True), (2.0, False)]
)
def test_between_is_a_half_open_window(elapsed: float, applies: bool) -> None:
    """``between`` includes its start and excludes its end, so windows can follow each other."""
    script = FaultScript(faults=[Stall(1, between=(1, 2))])
    assert bool(struck(script, 1, elapsed=elapsed)) is applies


def test_selectors_combine_with_and() -> None:
    """A fault applies only to a call that all its selectors match."""
    script = FaultScript(faults=[Stall(1, calls=[1, 2], topic="orders", attempts=[0])])
    assert struck(script, 3) == [1, 2]
    assert struck(script, 3, topic=AUDIT) == []
    assert struck(script, 3, attempt_number=1) == []


def test_the_first_fault_that_applies_wins() -> None:
    """Order in the list is precedence."""
    first, second = Stall(1, calls=[2]), Stall(2)
    faults = [d.fault for d in decide(FaultScript(faults=[first, second]), 3)]
    assert faults == [second, first, second]


def test_a_fault_that_does_not_win_keeps_its_times() -> None:
    """A fault is not used up by a call that an earlier one took."""
    script = FaultScript(faults=[Stall(1, calls=[1]), Status("INTERNAL", times=1)])
    kinds = [type(d.fault) for d in decide(script, 3)]
    assert kinds == [Stall, Status, type(None)]


def test_probability_is_met() -> None:
    """Over many calls a fault applies about as often as its probability says."""
    hits = len(struck(FaultScript(faults=[Stall(1, probability=0.1)], seed=1), 10_000))
    assert 900 < hits < 1_100


@pytest.mark.parametrize(("probability", "hits"), [(0, 0), (1, 100)])
def test_probability_bounds_are_certain(probability: float, hits: int) -> None:
    """0 never applies and 1 always does."""
    assert len(struck(FaultScript(faults=[Stall(1, probability=probability)]), 100)) == hits


@given(seed=st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_same_seed_same_decisions(seed: int) -> None:
    """Two deciders of one script agree, whatever the seed."""
    script = FaultScript(
        latency=LogNormal(median=0.01, sigma=1), faults=[Stall(1, probability=0.3)], seed=seed
    )
    assert decide(script, 20) == decide(script, 20)


def test_another_seed_decides_differently() -> None:
    """The seed matters."""
    one, other = (
        struck(FaultScript(faults=[Stall(1, probability=0.5)], seed=seed), 100) for seed in (1, 2)
    )
    assert one != other


def test_draws_do_not_depend_on_earlier_faults() -> None:
    """A fault in front takes calls away from the next, but does not move its draws."""
    wanted = StoreThenStall(1, probability=0.3)
    alone = set(struck(FaultScript(faults=[Status("INTERNAL", calls=[1000]), wanted], seed=3), 100))
    script = FaultScript(faults=[Status("INTERNAL", probability=0.5), wanted], seed=3)
    decisions = decide(script, 100)
    both = {n for n, d in enumerate(decisions, start=1) if isinstance(d.fault, StoreThenStall)}
    taken = {n for n, d in enumerate(decisions, start=1) if isinstance(d.fault, Status)}
    assert alone & taken
    assert both == alone - taken


def test_draws_do_not_depend_on_selectors() -> None:
    """A selector thins out the applications of a fault and leaves the rest where they were."""
    everywhere = struck(FaultScript(faults=[Stall(1, probability=0.3)], seed=3), 100)
    even = range(2, 101, 2)
    thinned = struck(FaultScript(faults=[Stall(1, probability=0.3, calls=even)], seed=3), 100)
    assert thinned == [number for number in everywhere if number % 2 == 0]


def test_latencies_do_not_depend_on_faults() -> None:
    """Adding a fault leaves the latency of every other call as it was."""
    latency = LogNormal(median=0.01, sigma=1)
    plain = decide(FaultScript(latency=latency), 50)
    faulty = decide(FaultScript(latency=latency, faults=[Stall(1, probability=0.5)]), 50)
    assert [d.latency for d in plain] == [d.latency for d in faulty]


def test_a_script_can_be_pickled() -> None:
    """A script reaches a server in a process of its own as it was."""
    script = FaultScript(
        latency=Fixed(1),
        faults=[
            Stall(1, calls=[1], attempts=range(2), times=3, topic="a", between=(0, 1)),
            Status("UNAVAILABLE"),
            DropReply(),
            ResetConnection(),
            TooFewIds(probability=0.5),
            StoreThenStall(2),
        ],
    )
    assert pickle.loads(pickle.dumps(script)) == script  # noqa: S301


def test_a_status_may_be_named() -> None:
    """A code may be given by its name."""
    assert Status("ABORTED") == Status(grpc.StatusCode.ABORTED)


def test_resets_connections_tells_whether_a_relay_is_needed() -> None:
    """Only a ResetConnection needs a relay."""
    assert FaultScript(faults=[Stall(1), ResetConnection()]).resets_connections
    assert not FaultScript(faults=[Stall(1)]).resets_connections


def test_the_kinds_of_faults_are_counted_apart() -> None:
    """Each fault in a list has draws of its own."""
    script = FaultScript(
        faults=[Stall(1, probability=0.1), StoreThenStall(1, probability=0.1)], seed=5
    )
    kinds = Counter(type(d.fault).__name__ for d in decide(script, 5_000))
    # 10 % of all, and 10 % of what is left.
    assert 430 < kinds["Stall"] < 570
    assert 380 < kinds["StoreThenStall"] < 520


@pytest.mark.parametrize(
    ("make", "arguments", "error", "words"),
    [
        (Stall, {"seconds": -1}, ValueError, "seconds=-1 .* at least 0"),
        (Stall, {"seconds": float("nan")}, ValueError, "seconds=nan"),
        (Stall, {"seconds": "2"}, TypeError, "seconds='2' must be a number"),
        (Stall, {"seconds": True}, TypeError, "seconds=True"),
        (StoreThenStall, {"seconds": float("inf")}, ValueError, "seconds=inf"),
        (
            Stall,
            {"seconds": 1, "probability": 1.5},
            ValueError,
            "probability=1.5 .* between 0 and 1",
        ),
        (Stall, {"seconds": 1, "calls": [0]}, ValueError, r"calls\[0\]=0 must be at least 1"),
        (Stall, {"seconds": 1, "calls": 1}, TypeError, "calls=1 must be a collection"),
        (Stall, {"seconds": 1, "calls": []}, ValueError, "calls is empty"),
        (Stall, {"seconds": 1, "calls": ["1"]}, TypeError, r"calls\[0\]='1' must be an int"),
        (
            Stall,
            {"seconds": 1, "attempts": [-1]},
            ValueError,
            r"attempts\[0\]=-1 must be at least 0",
        ),
        (Stall, {"seconds": 1, "times": 0}, ValueError, "times=0 must be at least 1"),
        (Stall, {"seconds": 1, "times": 1.5}, TypeError, "times=1.5 must be an int"),
        (Stall, {"seconds": 1, "topic": ""}, ValueError, "topic is empty"),
        (Stall, {"seconds": 1, "topic": 1}, TypeError, "topic=1 must be a string"),
        (
            Stall,
            {"seconds": 1, "between": (2, 1)},
            ValueError,
            "between=.* must end after it starts",
        ),
        (Stall, {"seconds": 1, "between": 3}, TypeError, "between=3 must be a pair"),
        (Stall, {"seconds": 1, "between": (-1, 1)}, ValueError, r"between\[0\]=-1"),
        (Status, {"code": "UNAVAILABEL"}, ValueError, "code='UNAVAILABEL' .* UNAVAILABLE"),
        (Status, {"code": "OK"}, ValueError, "code='OK'"),
        (Status, {"code": 14}, ValueError, "code=14"),
        (Status, {"code": "ABORTED", "after": -1}, ValueError, "after=-1"),
        (FaultScript, {"latency": 0.1}, TypeError, r"latency=0.1 .* Fixed\(0.005\)"),
        (FaultScript, {"faults": Stall(1)}, TypeError, "must be a list of faults"),
        (FaultScript, {"faults": [Fault()]}, TypeError, r"faults\[0\]"),
        (FaultScript, {"faults": ["Stall"]}, TypeError, r"faults\[0\]='Stall'"),
        (FaultScript, {"seed": 0.5}, TypeError, "seed=0.5 must be an int"),
        (FaultScript, {"seed": 2**63}, ValueError, "seed=.* must be between"),
    ],
)
def test_bad_values_are_refused(
    make: Any, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """An error names the argument, its value and what is allowed."""
    with pytest.raises(error, match=words):
        make(**arguments)
