"""What a user can set about hedging, checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from hedged_pubsub._core.hedge_delay import MAX_HEDGE_DELAY as MAX_HEDGE_DELAY
from hedged_pubsub._core.hedge_delay import MIN_HEDGE_DELAY as MIN_HEDGE_DELAY
from hedged_pubsub._core.hedge_delay import HedgeDelay, check_number, delay_in_seconds

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
            to 10 seconds. Or a `HedgeDelay`, for one that follows the service.
        max_tokens: How many hedges can go out in a row when none is earned in between: the
            size of each topic's token bucket. A whole number from 1 to 250.
        refill_ratio: The part of a token that each successful publish request earns, from
            0.001 to 0.2. It bounds the extra requests in the long run: 0.1 means one hedge for
            every ten requests that succeed. It must exceed the share of requests slower than
            ``hedge_delay``, or the bucket runs dry and the tail comes back.
        second_connection: Whether hedges are sent on a TCP connection of their own, which is what
            helps when the first one is stuck. ``False`` sends them on the same connection.

    The attributes are the same; ``hedge_delay`` is in seconds, or the `HedgeDelay` that was given.

    Raises:
        TypeError: If a value is not of the type named above; ``bool`` is not a number here.
        ValueError: If a value is out of its range, NaN or infinite.
    """

    hedge_delay: float | HedgeDelay = 1.0
    max_tokens: int = 50
    refill_ratio: float = 0.1
    second_connection: bool = True

    def __init__(
        self,
        hedge_delay: float | timedelta | HedgeDelay = 1.0,
        max_tokens: int = 50,
        refill_ratio: float = 0.1,
        second_connection: bool = True,
    ) -> None:
        # Written out, because the argument takes a timedelta and the attribute is always seconds.
        if not isinstance(hedge_delay, HedgeDelay):
            hedge_delay = delay_in_seconds("hedge_delay", hedge_delay, " or a HedgeDelay")
        kind = "a whole number"
        check_number("max_tokens", max_tokens, MIN_TOKENS, MAX_TOKENS, kind=kind, types=(int,))
        check_number("refill_ratio", refill_ratio, MIN_REFILL_RATIO, MAX_REFILL_RATIO)
        if not isinstance(second_connection, bool):
            raise TypeError(f"second_connection must be True or False; got {second_connection!r}")
        object.__setattr__(self, "hedge_delay", hedge_delay)
        object.__setattr__(self, "max_tokens", max_tokens)
        object.__setattr__(self, "refill_ratio", float(refill_ratio))
        object.__setattr__(self, "second_connection", second_connection)

    @property
    def initial_hedge_delay(self) -> float:
        """The hedge delay in seconds before anything was measured; a fixed one is always that."""
        delay = self.hedge_delay
        return delay.initial if isinstance(delay, HedgeDelay) else delay
