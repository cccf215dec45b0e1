"""What a user can set about hedging, checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

MIN_HEDGE_DELAY: Final = 0.1
MAX_HEDGE_DELAY: Final = 10.0
MIN_TOKENS: Final = 1
MAX_TOKENS: Final = 250
MIN_REFILL_RATIO: Final = 0.001
MAX_REFILL_RATIO: Final = 0.2


@dataclass(frozen=True, init=False)
class HedgingSettings:
    """When to hedge a publish, and how much extra load hedging may cause.

    The bounds are those that Google documents for publish hedging in its other clients:
    https://cloud.google.com/pubsub/docs/publish-hedging

    Args:
        hedge_delay: How long to wait for an answer before the batch is sent once more, and
            again before each further hedge. Seconds as a number, or a ``timedelta``; from 0.1
            to 10 seconds.
        max_tokens: How many hedges can go out in a row when none is earned in between: the
            size of each topic's token bucket. A whole number from 1 to 250.
        refill_ratio: The part of a token that each successful publish request earns, from
            0.001 to 0.2. It bounds the extra requests in the long run: 0.1 means one hedge for
            every ten requests that succeed. It must exceed the share of requests slower than
            ``hedge_delay``, or the bucket runs dry and the tail comes back.

    Attributes:
        hedge_delay: The hedge delay in seconds.
        max_tokens: The size of each topic's token bucket.
        refill_ratio: Tokens that a success earns.

    Raises:
        TypeError: If a value is not of the type named above; ``bool`` is not a number here.
        ValueError: If a value is out of its range, NaN or infinite.
    """

    hedge_delay: float = 1.0
    max_tokens: int = 50
    refill_ratio: float = 0.1

    def __init__(
        self,
        hedge_delay: float | timedelta = 1.0,
        max_tokens: int = 50,
        refill_ratio: float = 0.1,
    ) -> None:
        # Written out, because the argument takes a timedelta and the attribute is always seconds.
        seconds = hedge_delay.total_seconds() if isinstance(hedge_delay, timedelta) else hedge_delay
        delay_bounds = f"from {MIN_HEDGE_DELAY:g} to {MAX_HEDGE_DELAY:g} seconds"
        _check_number("hedge_delay", seconds, delay_bounds, " or a timedelta")
        if not MIN_HEDGE_DELAY <= seconds <= MAX_HEDGE_DELAY:
            raise ValueError(f"hedge_delay must be {delay_bounds}; got {hedge_delay!r}")

        token_bounds = f"from {MIN_TOKENS} to {MAX_TOKENS}"
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int):
            raise TypeError(f"max_tokens must be a whole number {token_bounds}; got {max_tokens!r}")
        if not MIN_TOKENS <= max_tokens <= MAX_TOKENS:
            raise ValueError(f"max_tokens must be {token_bounds}; got {max_tokens!r}")

        ratio_bounds = f"from {MIN_REFILL_RATIO:g} to {MAX_REFILL_RATIO:g}"
        _check_number("refill_ratio", refill_ratio, ratio_bounds)
        if not MIN_REFILL_RATIO <= refill_ratio <= MAX_REFILL_RATIO:
            raise ValueError(f"refill_ratio must be {ratio_bounds}; got {refill_ratio!r}")

        object.__setattr__(self, "hedge_delay", float(seconds))
        object.__setattr__(self, "max_tokens", max_tokens)
        object.__setattr__(self, "refill_ratio", float(refill_ratio))


def _check_number(name: str, value: object, bounds: str, alternative: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number{alternative}, {bounds}; got {value!r}")
