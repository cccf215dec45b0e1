"""The fault script's decisions, and what they are made from, without a server."""

from __future__ import annotations

import base64
import math
from collections import Counter
from functools import partial
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
    Latency,
    LogNormal,
    Pareto,
    PubSubServer,
    ResetConnection,
    Stall,
    Status,
    StoreThenStall,
    TcpProxy,
)
from hedged_pubsub.testing.faults import Call, FaultDecider
from hedged_pubsub.testing.publish import decode_telemetry

ORDERS = "projects/test/topics/orders"
FRACTIONS = st.floats(min_value=2.0**-54, max_value=1 - 2.0**-53)
AUDIT = "projects/test/topics/audit"
LOG_NORMAL = LogNormal(median=0.01, sigma=0.5)
PARETO = Pareto(minimum=0.01, alpha=1.5)


def decide(
    script: FaultScript, count: int, *, topic: str = ORDERS, **call: Any
) -> list[Fault | float]:
    """Decide on ``count`` calls that are alike."""
    decider = FaultDecider(script)
    call = {"attempt_number": None, "elapsed": 0.0, **call}
    return [decider.decide(Call(number, topic, **call)) for number in range(1, count + 1)]


def struck(*faults: Fault, count: int = 100, seed: int = 3, **call: Any) -> list[int]:
    """Return the numbers of the calls that met the last of the faults."""
    decisions = decide(FaultScript(faults=faults, seed=seed), count, **call)
    return [number for number, met in enumerate(decisions, start=1) if met is faults[-1]]


@pytest.mark.parametrize(
    ("selectors", "call", "numbers"),
    [
        ({}, {}, [1, 2, 3, 4, 5]),
        ({"calls": [2, 4]}, {}, [2, 4]),
        ({"calls": [2, 3, 5], "times": 2}, {}, [2, 3]),  # counts applications, not calls
        ({"attempts": [1], "times": 1}, {"attempt_number": 1}, [1]),
        ({"attempts": [1]}, {"attempt_number": 0}, []),
        ({"topic": ORDERS, "times": 1}, {}, [1]),
        ({"topic": "orders"}, {"topic": AUDIT}, []),
        ({"between": (1, 2)}, {"elapsed": 0.9}, []),
        ({"between": (1, 2), "times": 1}, {"elapsed": 1.0}, [1]),
        ({"between": (1, 2), "times": 1}, {"elapsed": 1.9}, [1]),
        ({"between": (1, 2)}, {"elapsed": 2.0}, []),  # so that windows can follow each other
        # The official client's calls have no number, and are originals.
        ({"calls": [1, 2], "topic": "orders", "attempts": [0]}, {"attempt_number": None}, [1, 2]),
        ({"calls": [1, 2], "topic": "orders", "attempts": [0]}, {"topic": AUDIT}, []),
        ({"calls": [1, 2], "topic": "orders", "attempts": [0]}, {"attempt_number": 1}, []),
        ({"probability": 0}, {}, []),
    ],
    ids=str,
)
def test_a_fault_applies_to_calls_that_match_all_its_selectors(
    selectors: dict[str, Any], call: dict[str, Any], numbers: list[int]
) -> None:
    """Each selector narrows down which calls meet the fault."""
    assert struck(Stall(1, **selectors), count=5, **call) == numbers


def test_the_first_fault_that_applies_wins() -> None:
    """Order in the list is precedence, and a call that an earlier fault took uses up no other.

    A call that meets none has the latency.
    """
    first, second = Stall(1, calls=[2]), Status("INTERNAL", times=2)
    for latency, seconds in ((None, 0.0), (Fixed(0.25), 0.25)):
        script = FaultScript(latency=latency, faults=[first, second])
        assert decide(script, 4) == [second, first, second, seconds]


def test_probability_is_met() -> None:
    """Over many calls each fault applies about as often as its probability says, by its own draws.

    The second one gets 10 % of what is left.
    """
    faults = [Stall(1, probability=0.1), StoreThenStall(1, probability=0.1)]
    decisions = decide(FaultScript(faults=faults, seed=5), 5_000)
    kinds = Counter(map(type, decisions))
    assert 430 < kinds[Stall] < 570
    assert 380 < kinds[StoreThenStall] < 520


def test_a_draw_depends_on_seed_and_call_only() -> None:
    """A fault in front takes calls away, a selector leaves some out, and neither moves a draw."""
    fault = StoreThenStall(1, probability=0.3)
    alone = struck(Status("INTERNAL", calls=[1000]), fault)
    taken = struck(Status("INTERNAL", probability=0.5))
    assert set(alone) & set(taken)
    after = struck(Status("INTERNAL", probability=0.5), fault)
    assert after == [number for number in alone if number not in taken]
    odd = StoreThenStall(1, probability=0.3, calls=range(1, 101, 2))
    assert struck(odd) == [number for number in struck(fault) if number % 2]
    assert struck(fault) != struck(fault, seed=4)
    plain, faulty = FaultScript(latency=LOG_NORMAL), FaultScript(latency=LOG_NORMAL, faults=[fault])
    pairs = zip(decide(plain, 50), decide(faulty, 50), strict=True)
    assert {met for latency, met in pairs if met != latency} == {fault}


def test_what_a_script_tells() -> None:
    """A code may be given by its name, and only a ResetConnection needs a relay."""
    assert Status("ABORTED") == Status(grpc.StatusCode.ABORTED)
    assert FaultScript(faults=[Stall(1), ResetConnection()]).resets_connections
    assert not FaultScript(faults=[Stall(1)]).resets_connections


@pytest.mark.parametrize(
    ("latency", "fraction", "seconds"),
    [
        (Fixed(0.2), 0.999, 0.2),
        (LOG_NORMAL, 0.5, 0.01),  # half of the calls exceed the median
        (LOG_NORMAL, 0.8413447, 0.01 * math.exp(0.5)),  # at one standard deviation
        (LOG_NORMAL, 0.99, 0.01 * math.exp(0.5 * 2.3263479)),
        (PARETO, 2.0**-54, 0.01),  # the chance to exceed x is (minimum / x) ** alpha
        *((PARETO, 1 - exceeded, 0.01 / exceeded ** (1 / 1.5)) for exceeded in (0.1, 0.01, 0.001)),
    ],
)
def test_distributions_have_their_middle_and_tail(
    latency: Latency, fraction: float, seconds: float
) -> None:
    """A quantile is what the distribution's formula says."""
    assert latency.quantile(fraction) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    "latency", [LogNormal(median=1e12, sigma=50), Pareto(minimum=0.01, alpha=1e-9), Fixed(1)]
)
@given(one=FRACTIONS, other=FRACTIONS)
def test_quantiles_are_finite_and_ordered(latency: Latency, one: float, other: float) -> None:
    """Whatever is drawn, the latency is a usable number, and a larger draw is not faster."""
    low, high = (latency.quantile(fraction) for fraction in sorted((one, other)))
    assert 0 <= low <= high < math.inf


@pytest.mark.parametrize(
    ("make", "argument", "error", "values"),
    [
        (Stall, "seconds", ValueError, [-1, math.nan, math.inf]),
        (Stall, "seconds", TypeError, ["2", True]),
        (DropReply, "probability", ValueError, [1.5]),
        (DropReply, "calls", ValueError, [[0], []]),
        (DropReply, "calls", TypeError, [1, ["1"]]),
        (DropReply, "attempts", ValueError, [[-1]]),
        (DropReply, "times", ValueError, [0]),
        (DropReply, "topic", ValueError, [""]),
        (DropReply, "topic", TypeError, [1]),
        (DropReply, "between", ValueError, [(2, 1), [-1, 1]]),
        (DropReply, "between", TypeError, [3]),
        (Status, "code", ValueError, ["UNAVAILABEL", "OK", 14]),
        (partial(Status, "ABORTED"), "after", ValueError, [-1]),
        (FaultScript, "latency", TypeError, [0.1]),
        (FaultScript, "faults", TypeError, [Stall(1), [Fault()], ["Stall"]]),
        (FaultScript, "seed", TypeError, [0.5]),
        (FaultScript, "seed", ValueError, [2**63]),
        (Fixed, "seconds", ValueError, [-0.1]),
        (partial(LogNormal, sigma=1), "median", ValueError, [0]),
        (partial(LogNormal, median=1), "sigma", ValueError, [-1, 51]),
        (partial(Pareto, alpha=1), "minimum", ValueError, [0.0]),
        (partial(Pareto, minimum=1), "alpha", ValueError, [0]),
        (PubSubServer, "script", TypeError, [Stall(1)]),
        (PubSubServer, "port", ValueError, [65_536]),
        (PubSubServer, "project", ValueError, ["", "projects/a"]),
        (partial(TcpProxy, "127.0.0.1:1"), "port", ValueError, [65_536]),
        (TcpProxy, "target", ValueError, ["localhost", "127.0.0.1:", ":1", "::http"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused(
    make: Any, argument: str, error: type[Exception], values: list[Any]
) -> None:
    """An error names the argument and its value, or the item of it that is wrong, at once."""
    for value in values:
        with pytest.raises(error, match=argument) as raised:
            make(**{argument: value})
        wrong = value[0] if isinstance(value, list) and value else value
        assert value == [] or repr(wrong) in str(raised.value)


@pytest.mark.parametrize(
    ("header", "decoded"),
    [
        ("CgA=", (0, None)),  # as other clients send them
        ("CgIIAQ==", (1, None)),
        (b"CgIIAQ==", (1, None)),
        ("Cg4SDAiA4s+qBhCAyrXuAQ==", (0, 1_700_000_000.5)),
        ("ChAIAhIMCIDiz6oGEIDKte4B", (2, 1_700_000_000.5)),
        ("Cg0IAhgHIQAAAAAAAAAAEAE=", (2, None)),  # with a varint and eight bytes of later versions
        ("CgoIAhIGCAMQgMq17gE=", (None, None)),  # cut short
        ("", (None, None)),
        ("not base64!", (None, None)),
        ("Cv////8P", (None, None)),
        ("/////////////////w==", (None, None)),
    ],
)
def test_headers_with_the_number_of_an_attempt(
    header: str | bytes, decoded: tuple[int | None, float | None]
) -> None:
    """A client's mistake does not break the server, and unknown fields hide no known ones."""
    assert decode_telemetry(header) == decoded


@given(st.binary(max_size=64).map(base64.b64encode))
def test_no_header_raises(header: bytes) -> None:
    """Whatever the header holds, decoding ends with a result or None."""
    decode_telemetry(header)
