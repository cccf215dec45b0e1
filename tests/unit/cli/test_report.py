"""The report's numbers, their JSON and their words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.cli.report import (
    HedgedResult,
    Report,
    client_result,
    hedged_result,
    late_note,
    nearest_rank,
)

PLAIN_LATENCIES = [0.005] * 990 + [2.0] * 10
HEDGED_LATENCIES = [0.005] * 990 + [0.1] * 10


def report(
    *,
    plain: Sequence[float] = PLAIN_LATENCIES,
    hedged: Sequence[float] = HEDGED_LATENCIES,
    hedges_suppressed: int = 0,
    duplicates: int = 10,
) -> Report:
    """A report of 1,000 publishes with ten stalls."""
    return Report(
        plain=client_result(plain, requests=1000),
        hedged=hedged_result(
            hedged,
            requests=1011,
            plain_requests=1000,
            hedges_sent=11,
            hedges_won=10,
            hedges_suppressed=hedges_suppressed,
            duplicates=duplicates,
        ),
    )


@pytest.mark.parametrize(
    ("count", "per_mille", "rank"),
    [
        (1, 1, 1),
        (1, 1000, 1),
        (2, 500, 1),
        (3, 500, 2),
        (10, 900, 9),
        (10, 901, 10),
        (100, 999, 100),
        (4000, 999, 3996),
    ],
)
def test_nearest_rank(count: int, per_mille: int, rank: int) -> None:
    """The rank is the smallest that covers the share, exactly where the share is whole."""
    assert nearest_rank(range(1, count + 1), per_mille) == rank


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(1, 1000))
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(
    values: list[int], per_mille: int
) -> None:
    """At least the share lies at or below it, and less than the share lies strictly below it."""
    share = Fraction(per_mille, 1000)
    found = nearest_rank(sorted(values), per_mille)
    assert Fraction(sum(value <= found for value in values), len(values)) >= share
    assert Fraction(sum(value < found for value in values), len(values)) < share


@pytest.mark.parametrize(
    ("values", "per_mille", "words"),
    [([], 500, "at least one"), ([1.0], 0, "per_mille"), ([1.0], 1001, "per_mille")],
)
def test_nearest_rank_refuses_what_has_no_answer(
    values: list[float], per_mille: int, words: str
) -> None:
    """No values, or a share out of range, is an error that names it."""
    with pytest.raises(ValueError, match=words):
        nearest_rank(values, per_mille)


def test_json_has_the_documented_keys_and_nothing_else() -> None:
    """Programs read the object by these names."""
    parsed = json.loads(report().to_json())
    common = {"p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms", "requests"}
    assert set(parsed) == {"plain", "hedged"}
    assert set(parsed["plain"]) == common
    assert set(parsed["hedged"]) == common | {
        "hedges_sent",
        "hedges_won",
        "hedges_suppressed",
        "duplicates",
        "extra_requests_pct",
    }


def test_percentiles_are_in_milliseconds() -> None:
    """The last ten of a thousand latencies are the tail; order of arrival does not matter."""
    plain = client_result(list(reversed(PLAIN_LATENCIES)), requests=1000)
    assert (plain.p50_ms, plain.p90_ms, plain.p99_ms) == (5.0, 5.0, 5.0)
    assert (plain.p99_9_ms, plain.max_ms) == (2000.0, 2000.0)


def test_extra_requests_are_a_percentage_of_the_plain_clients() -> None:
    """1011 requests instead of 1000 are 1.1 % more."""
    assert report().hedged.extra_requests_pct == 1.1


def test_a_result_is_immutable() -> None:
    """A report cannot change between the table and the JSON."""
    result: HedgedResult = report().hedged
    with pytest.raises(AttributeError):
        result.duplicates = 0  # type: ignore[misc]


def test_words_say_what_fell_and_what_it_cost() -> None:
    """The sentence below the table holds the three numbers that matter."""
    assert report().in_words() == (
        "p99.9 fell from 2,000 ms to 100 ms for 1.1 % more requests; 10 duplicates were stored."
    )


@pytest.mark.parametrize(
    ("p99_9", "change"),
    [
        (1.9, "did not change much (2,000 ms without, 1,900 ms with hedging)"),
        (2.0, "did not change much (2,000 ms without, 2,000 ms with hedging)"),
        (2.5, "rose from 2,000 ms to 2,500 ms"),
    ],
)
def test_words_admit_when_nothing_fell(p99_9: float, change: str) -> None:
    """Hedging that did not help is not sold as help."""
    words = report(hedged=[0.005] * 990 + [p99_9] * 10, duplicates=0).in_words()
    assert words == f"p99.9 {change} for 1.1 % more requests; no duplicate was stored."


def test_words_name_suppressed_hedges() -> None:
    """An empty bucket is named, because a larger one or a higher ratio would change the result."""
    words = report(hedges_suppressed=1, duplicates=1).in_words()
    assert "1 duplicate was stored." in words
    assert words.endswith("1 hedge was suppressed because the token bucket was empty.")


def test_a_kept_schedule_needs_no_note() -> None:
    """Up to one late send in a hundred says nothing about the machine."""
    assert late_note([0.0] * 99 + [0.5]) is None


def test_a_late_schedule_is_noted() -> None:
    """More late sends than that put the machine's slowness into the latencies."""
    note = late_note([0.0] * 98 + [0.25] * 2)
    assert note is not None
    assert "250 ms late" in note
    assert "--rate" in note
