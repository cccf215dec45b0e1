"""Which settings are worth a try, which of them holds, what to expect of it and to be wary of."""

from __future__ import annotations

import dataclasses
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from hedged_pubsub._core.hedge_delay import MAX_HEDGE_DELAY, MIN_HEDGE_DELAY, HedgeDelay
from hedged_pubsub._core.settings import MAX_REFILL_RATIO, HedgingSettings
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.cli.plan.simulation import Prediction, Trace, predict

# Steps that a reader would try by hand, from bound to bound.
_DELAYS: Final = (MIN_HEDGE_DELAY, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, MAX_HEDGE_DELAY)
# And the percentiles at which a delay is commonly set, in ten-thousandths.
_DELAY_PERCENTILES: Final = (9_000, 9_500, 9_900)
REFILL_RATIOS: Final = (0.01, 0.02, 0.05, 0.1, 0.2)

DEFAULT: Final = HedgingSettings()
BUDGET: Final = 0.05
"""Allowed share of extra requests: half of what the default settings allow."""

# Or so much of what the default settings would send, if that is more: a shorter delay sends a few
# more for the same slow requests.
_MORE_THAN_DEFAULT: Final = 1.25

_P99_9: Final = 9_990

# What two replays differ by for no reason that would come again.
_AS_GOOD: Final = 1.02
# Below this share of what it was, the tail has become shorter.
_HELPS: Final = 0.95
# A percentile that rests on fewer samples than these is luck.
_FIRM: Final = 10
# When half of the slow requests follow a slow one, and there are enough to tell.
_BURSTS: Final = 0.5
_ENOUGH_SLOW: Final = 20

# A recommendation has to hold when there are half as many slow requests again.
_DRIFT: Final = 1.5
_MARGIN: Final = 1.2  # for hedges of hedges, of which there are more then, and for bad luck
RESAMPLES: Final = 20  # half of them with the drift
_SHORTLIST: Final = 5  # settings that are tried on all of them
# Blocks keep bursts together. Fifty are enough for a range, and few enough for bursts to fit.
_BLOCKS: Final = 50
_RESAMPLED: Final = 20_000  # requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Predictions by delay and rising ratio; the best of them if it beats no hedging, and why.

    Attributes:
        budget: The allowed share of extra requests.
        p99_9_range: The lowest and the highest p99.9 of the recommended setting, in seconds.
        extra_range: Likewise, its share of extra requests.
        near_miss: The cheapest setting beyond the budget that has a much lower p99.9.
    """

    predictions: tuple[Prediction, ...]
    budget: float
    recommended: Prediction | None
    reason: str
    warnings: tuple[str, ...]
    p99_9_range: tuple[float, float] | None = None
    extra_range: tuple[float, float] | None = None
    near_miss: Prediction | None = None


def choose_delays(trace: Trace) -> tuple[float, ...]:
    """Return delays, in rising order, that some requests exceed, but no more than can be hedged."""
    percentiles = (_rounded_up(nearest_rank(trace.recorded, parts)) for parts in _DELAY_PERCENTILES)
    return tuple(
        delay
        for delay in sorted({*_DELAYS, *percentiles})
        if MIN_HEDGE_DELAY <= delay <= MAX_HEDGE_DELAY
        and 0 < _share_slower(trace, delay) < MAX_REFILL_RATIO
    )


def predict_all(
    trace: Trace,
    *,
    delays: Sequence[float | HedgeDelay],
    refill_ratios: Sequence[float],
    max_tokens: int,
    tick: Callable[[], object],
) -> tuple[Prediction, ...]:
    """Replay the trace with each delay and each ratio that suits it; call ``tick`` after each."""
    predictions = []
    for delay in delays:
        last: Prediction | None = None
        for ratio in sorted(refill_ratios):
            if not isinstance(delay, HedgeDelay) or delay.is_paid_by(ratio):
                settings = HedgingSettings(delay, max_tokens, ratio)
                # Once no hedge is suppressed, more tokens change nothing.
                if last is None or last.suppressed:
                    last = predict(trace, settings)
                predictions.append(dataclasses.replace(last, settings=settings))
            tick()
    return tuple(predictions)


def make_plan(
    trace: Trace,
    predictions: tuple[Prediction, ...],
    *,
    budget: float | None,
    in_order: bool,
    seed: int = 1,
    tick: Callable[[], object] = lambda: None,
) -> Plan:
    """Choose a setting; ``in_order`` tells whether the trace has the requests' own order.

    ``tick`` is called `RESAMPLES` times.

    Without a ``budget`` it is `BUDGET`, or a quarter more than the default settings would send.
    """
    if budget is None:
        by_default = [one.extra_requests for one in predictions if one.settings == DEFAULT]
        budget = max([BUDGET, *(_MORE_THAN_DEFAULT * extra for extra in by_default)])
    plan = Plan(predictions=predictions, budget=budget, recommended=None, reason="", warnings=())
    if not predictions:
        plan = dataclasses.replace(plan, reason=_no_delay(trace))
    else:
        plan = _choose(plan, trace, predictions, random.Random(seed), tick)  # noqa: S311
    warnings = tuple(_warnings(trace, predictions, plan.recommended, in_order=in_order))
    return dataclasses.replace(plan, warnings=warnings)


def _choose(
    plan: Plan,
    trace: Trace,
    predictions: Sequence[Prediction],
    draw: random.Random,
    tick: Callable[[], object],
) -> Plan:
    """Return the plan with the setting that holds best within the budget, if any helps, and why."""
    affordable = [one for one in predictions if one.extra_requests <= plan.budget]
    if not affordable:
        least = min(predictions, key=lambda one: one.extra_requests)
        return dataclasses.replace(
            plan,
            reason=f"No setting keeps within {percent(plan.budget)} extra requests; the fewest are"
            f" {percent(least.extra_requests)}, with {in_words(least.settings)}.",
        )
    lasting = [one for one in affordable if _lasts(one)]
    if not lasting:
        return dataclasses.replace(
            plan,
            reason="No refill ratio exceeds the share of requests slower than the delay by so much"
            " that it would last on a worse day, or no request is slower: with these settings"
            " hedging cannot help.",
        )
    shortlist = _shortlist(lasting)
    outcomes: list[list[Prediction]] = [[one] for one in shortlist]
    without = [nearest_rank(trace.recorded, _P99_9)]
    for number in range(RESAMPLES):
        resampled = _resampled(trace, draw, drift=number % 2 == 1)
        without.append(nearest_rank(resampled.recorded, _P99_9))
        for one, all_of_one in zip(shortlist, outcomes, strict=True):
            all_of_one.append(predict(resampled, one.settings))
        tick()
    tails = [[nearest_rank(one.latencies, _P99_9) for one in of_one] for of_one in outcomes]
    # What is worst decides, for that is what the tail is about. Among equals, the setting that
    # sends least, and could send least.
    lowest = min(map(max, tails))
    equals = [at for at, tail in enumerate(tails) if max(tail) <= _AS_GOOD * lowest]
    best = min(
        equals,
        key=lambda at: (
            round(shortlist[at].extra_requests, 4),
            shortlist[at].settings.refill_ratio,
        ),
    )
    chosen, tail = shortlist[best], tails[best]
    if max(tail) > _HELPS * max(without) and tail[0] > _HELPS * without[0]:
        return dataclasses.replace(
            plan,
            reason=f"Hedging cannot help: within {percent(plan.budget)} extra requests the p99.9"
            f" goes from {short_milliseconds(without[0])} ms to {short_milliseconds(tail[0])} ms"
            " at best.",
        )
    extra = [one.extra_requests for one in outcomes[best]]
    misses = [
        one
        for one in predictions
        if one.extra_requests > plan.budget
        and _lasts(one)
        and nearest_rank(one.latencies, _P99_9) < 0.9 * tail[0]
    ]
    return dataclasses.replace(
        plan,
        recommended=chosen,
        reason=_why(chosen, without[0], plan.budget),
        p99_9_range=(min(tail) / _AS_GOOD, max(tail) * _AS_GOOD),
        extra_range=(min(extra), max(extra)),
        near_miss=min(misses, key=lambda one: one.extra_requests, default=None),
    )


def _lasts(prediction: Prediction) -> bool:
    """Tell whether the bucket does not run dry in the long run, though requests become slower."""
    # A measured delay follows, so that its share stays.
    if isinstance(prediction.settings.hedge_delay, HedgeDelay):
        return 0 < prediction.slower < prediction.settings.refill_ratio
    wanted = _MARGIN * _DRIFT * max(prediction.slower, prediction.extra_requests)
    return 0 < wanted < prediction.settings.refill_ratio


def _shortlist(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the few with the lowest p99.9; of those that predict the same, the smallest ratio."""
    different = {id(one.latencies): one for one in reversed(predictions)}
    ordered = sorted(different.values(), key=lambda one: nearest_rank(one.latencies, _P99_9))
    chosen = ordered[:_SHORTLIST]
    # The default is what others are to be better than, whatever happens.
    return chosen + [one for one in predictions if one.settings == DEFAULT and one not in chosen]


def _resampled(trace: Trace, draw: random.Random, *, drift: bool) -> Trace:
    """Return a trace as another day might bring it: of blocks, with half as many slow ones again.

    Blocks are drawn twice. A sample of the trace differs from it by as much as the trace from what
    the service does, and so does another day: a sample of that sample differs by both.
    """
    count = min(len(trace), _RESAMPLED)
    size = max(1, count // _BLOCKS)
    starts = [draw.randrange(len(trace)) for _ in range(-(-count // size))]
    latencies: list[float] = []
    for start in draw.choices(starts, k=len(starts)):
        block = trace.latencies[start : start + size]
        latencies += [*block, *trace.latencies[: size - len(block)]]
    if drift:
        slow = [at for at, one in enumerate(latencies) if one > MIN_HEDGE_DELAY]
        for at in draw.sample(slow, round((_DRIFT - 1) * len(slow))):
            latencies[draw.randrange(at, min(at + size, len(latencies)))] = latencies[at]
    return Trace(latencies, rate=trace.rate, seed=draw.randrange(2**32))


def in_words(settings: HedgingSettings) -> str:
    """Return a setting as the arguments to ``HedgingSettings``."""
    delay = settings.hedge_delay
    if isinstance(delay, HedgeDelay):
        words = f"HedgeDelay.percentile({delay.fraction:g})"
    else:
        words = f"{delay:g}"
    words = f"hedge_delay={words}, refill_ratio={settings.refill_ratio:g}"
    if settings.max_tokens != DEFAULT.max_tokens:
        words += f", max_tokens={settings.max_tokens}"
    return words


def percent(share: float) -> str:
    """Return a share in percent, to two significant digits below ten."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def short_milliseconds(seconds: float) -> str:
    """Return a time in milliseconds without the unit, to what anybody reads of it."""
    return f"{1000 * seconds:.1f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"


def _why(recommended: Prediction, before: float, budget: float) -> str:
    p99_9 = nearest_rank(recommended.latencies, _P99_9)
    return (
        f"Recommended: HedgingSettings({in_words(recommended.settings)}). Of the settings within"
        f" {percent(budget)} extra requests its p99.9 holds best: {short_milliseconds(p99_9)} ms,"
        f" and {short_milliseconds(before)} ms without hedging."
    )


def expectations(
    plan: Plan, *, rate: float, request_bytes: int, price: float | None
) -> Iterator[str]:
    """Yield what to expect of the recommended setting, a sentence or two each."""
    chosen = plan.recommended
    if chosen is None or plan.p99_9_range is None or plan.extra_range is None:
        return
    settings, (low, high), (least, most) = chosen.settings, plan.p99_9_range, plan.extra_range
    ratio, tokens = settings.refill_ratio, settings.max_tokens
    yield (
        f"Range: a p99.9 of {short_milliseconds(low)} to {short_milliseconds(high)} ms, over"
        " resampled traces and with half as many slow requests again."
    )
    month = chosen.extra_requests * rate * 365 * 86_400 / 12
    cost = f"{month:,.0f} requests, {month * request_bytes / 2**30:,.1f} GiB"
    if price is not None:
        cost += f", {month * request_bytes / 2**40 * price:,.2f} in the currency of the price"
    yield (
        f"Extra requests: {percent(chosen.extra_requests)} ({percent(least)} to {percent(most)})."
        f" A month at {rate:g} requests a second of {request_bytes:,} bytes: {cost}."
    )
    if plan.near_miss is not None:
        p99_9 = nearest_rank(plan.near_miss.latencies, _P99_9)
        yield (
            f"Just above the budget: {in_words(plan.near_miss.settings)} would have a p99.9 of"
            f" {short_milliseconds(p99_9)} ms for {percent(plan.near_miss.extra_requests)} extra"
            " requests."
        )
    yield (
        f"Cold start: a topic earns its first hedge with {math.ceil(1 / ratio - 1e-9)} publish"
        " requests, and begins with no token. Where that is too late, set initial_tokens."
    )
    yield (
        f"An outage of an hour costs {tokens} extra requests a topic at most if none succeeds, and"
        f" {tokens + ratio * rate * 3600:,.0f} if all succeed, but slower than the delay."
    )


def _no_delay(trace: Trace) -> str:
    if nearest_rank(trace.recorded, 10_000) <= MIN_HEDGE_DELAY:
        return (
            f"Hedging cannot help: no request took longer than {MIN_HEDGE_DELAY:g} s, which is the"
            " shortest hedge delay."
        )
    if (slow := _share_slower(trace, MAX_HEDGE_DELAY)) >= MAX_REFILL_RATIO:
        return (
            f"Hedging cannot help: {percent(slow)} of the requests took longer than"
            f" {MAX_HEDGE_DELAY:g} s, the longest hedge delay. The service is slow as a whole; it"
            " has no tail to cut off."
        )
    return (
        "Hedging cannot help: the requests differ so little that no hedge delay tells a tail from"
        " the rest. Either so many are slower that no refill ratio pays for it, or none is."
    )


def _warnings(
    trace: Trace,
    predictions: tuple[Prediction, ...],
    recommended: Prediction | None,
    *,
    in_order: bool,
) -> Iterator[str]:
    slow = _share_slower(trace, MIN_HEDGE_DELAY)
    if slow > MAX_REFILL_RATIO:
        yield (
            f"{percent(slow)} of the requests took longer than {MIN_HEDGE_DELAY:g} s: much of the"
            " service is slow, not its tail alone. A delay that so many exceed is not affordable:"
            f" no refill ratio is above {MAX_REFILL_RATIO:g}."
        )
    if len(trace) * (10_000 - _P99_9) < _FIRM * 10_000:
        beyond = math.ceil(len(trace) * (10_000 - _P99_9) / 10_000)
        rest = "slowest one" if beyond == 1 else f"{beyond} slowest"
        yield (
            f"The p99.9 rests on the {rest} of {len(trace):,} requests; record 10,000 or more for"
            " numbers that hold, and ten times as many for the p99.99."
        )
    chosen = recommended or (predictions[0] if predictions else None)
    if in_order and chosen is not None and _comes_in_bursts(trace, chosen):
        yield (
            "Slow requests come in bursts: most follow right upon another one. A hedge that is"
            " sent in a burst may be slow as well, but takes any of the recorded latencies here:"
            " expect less than what is predicted."
        )


def _comes_in_bursts(trace: Trace, prediction: Prediction) -> bool:
    numbers = trace.slower_than(prediction.settings.initial_hedge_delay)
    after_another = sum(second == first + 1 for first, second in pairwise(numbers))
    return len(numbers) >= _ENOUGH_SLOW and after_another > max(
        _BURSTS, 2 * len(numbers) / len(trace)
    ) * len(numbers)


def _share_slower(trace: Trace, delay: float) -> float:
    return 1 - bisect_right(trace.recorded, delay) / len(trace)


def _rounded_up(seconds: float) -> float:
    """Round up to two significant digits, as people write a delay."""
    if seconds <= 0:
        return 0.0
    digits = 1 - math.floor(math.log10(seconds))
    return round(math.ceil(seconds * 10.0**digits - 1e-9) / 10.0**digits, 6)
