"""The token bucket: exact to the token (R9)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub._core.token_bucket import TokenBucket


@pytest.mark.parametrize(("ratio", "successes"), [(0.1, 10), (0.001, 1000), (0.2, 5), (0.05, 20)])
def test_the_ratio_is_kept_exactly(ratio: float, successes: int) -> None:
    """As many successes as the ratio says buy one hedge, and one fewer do not."""
    bucket = TokenBucket(250, ratio)
    for _ in range(successes):
        assert not bucket.take()
        bucket.refill()
    assert bucket.tokens == 1
    assert bucket.take()
    assert bucket.tokens == 0


@given(
    max_tokens=st.integers(1, 250),
    micro_ratio=st.integers(1_000, 200_000),
    refills=st.lists(st.integers(-20, 300), max_size=30),
)
def test_it_counts_exactly(max_tokens: int, micro_ratio: int, refills: list[int]) -> None:
    """Refills, and takes where negative, give what exact fractions give, never above the most."""
    bucket = TokenBucket(max_tokens, micro_ratio / 1_000_000)
    level = Fraction(0)
    for count in refills:
        for _ in range(count):
            bucket.refill()
            level = min(level + Fraction(micro_ratio, 1_000_000), Fraction(max_tokens))
        for _ in range(-count):
            assert bucket.take() == (level >= 1)
            level -= level >= 1
        assert bucket.tokens == float(level)
