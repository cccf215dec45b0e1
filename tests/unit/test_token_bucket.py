"""The token bucket: exact to the token (R9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.token_bucket import TokenBucket


def test_it_starts_empty() -> None:
    """A fresh publisher earns before it spends."""
    bucket = TokenBucket(50, 0.1)
    assert bucket.tokens == 0
    assert not bucket.take()


@pytest.mark.parametrize(("ratio", "successes"), [(0.1, 10), (0.001, 1000), (0.2, 5), (0.05, 20)])
def test_the_ratio_is_kept_exactly(ratio: float, successes: int) -> None:
    """As many successes as the ratio says buy one hedge, and one fewer do not."""
    bucket = TokenBucket(250, ratio)
    for _ in range(successes - 1):
        bucket.refill()
    assert not bucket.take()
    bucket.refill()
    assert bucket.tokens == 1
    assert bucket.take()
    assert bucket.tokens == 0


def test_part_of_a_token_buys_nothing_and_is_kept() -> None:
    """A token and a half is one hedge and a half to build on."""
    bucket = TokenBucket(50, 0.1)
    for _ in range(15):
        bucket.refill()
    assert bucket.take()
    assert not bucket.take()
    assert bucket.tokens == 0.5


def test_it_never_overflows() -> None:
    """A refill that would go past the maximum ends at the maximum."""
    bucket = TokenBucket(1, 0.15)
    for _ in range(7):
        bucket.refill()
    assert bucket.tokens == 1
    assert bucket.take()
    assert bucket.tokens == 0


@given(
    max_tokens=st.integers(1, 250),
    ratio=st.floats(0.001, 0.2),
    takes=st.lists(st.booleans(), max_size=300),
)
def test_it_stays_within_its_bounds(max_tokens: int, ratio: float, takes: list[bool]) -> None:
    """Whatever happens, the level is within 0 and the maximum, and no hedge is a gift."""
    bucket = TokenBucket(max_tokens, ratio)
    taken = refilled = 0
    for take in takes:
        if take:
            taken += bucket.take()
        else:
            bucket.refill()
            refilled += 1
        assert 0 <= bucket.tokens <= max_tokens
    assert taken <= refilled * ratio * (1 + 1e-3)
