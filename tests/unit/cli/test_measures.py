"""What is measured and computed: the open loop, percentiles, ratios, the best possible."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.bench.jobs import TAIL_HEDGING, batch_settings, fits, window
from hedged_pubsub.cli.bench.results import Setup, this_setup
from hedged_pubsub.cli.bench.scenarios import best_possible, cases
from hedged_pubsub.cli.clients import run_open_loop, warm_up, warm_up_publishes
from hedged_pubsub.cli.measures import Spread, nearest_rank, ratios, survival
from hedged_pubsub.cli.report import MeasurementError
from hedged_pubsub.testing import FaultScript, Fixed, Pareto, Stall, Status


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(1, 10_000))
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(
    values: list[int], parts: int
) -> None:
    """At least the share lies at or below it, and less than the share lies strictly below it.

    This is exact where the share is whole: the p99.9 of 4,000 is the 3,996th.
    """
    assert nearest_rank(range(1, 4001), 9_990) == 3996
    share = Fraction(parts, 10_000)
    found = nearest_rank(sorted(values), parts)
    assert Fraction(sum(value <= found for value in values), len(values)) >= share
    assert Fraction(sum(value < found for value in values), len(values)) < share


@pytest.mark.parametrize(
    "compute",
    [
        lambda: nearest_rank([], 5_000),
        lambda: nearest_rank([1.0], 0),
        lambda: nearest_rank([1.0], 10_001),
        lambda: ratios([1.0], [1.0, 2.0]),
        # An error is for the retry policy, which the yardstick does not have.
        lambda: best_possible(
            FaultScript(faults=[Status("INTERNAL")]), publishes=1, rate=1, hedge_delay=0.1
        ),
    ],
    ids=["no values", "too low", "too high", "no pairs", "an error"],
)
def test_what_has_no_answer_is_refused(compute: Callable[[], object]) -> None:
    """No values, a share out of range, or other faults than stalls, is an error."""
    with pytest.raises(ValueError, match=r"must|argument 2"):
        compute()


def test_ratios_are_taken_pair_by_pair() -> None:
    """A machine that slows down halfway changes both of a pair, and no ratio."""
    assert ratios([50, 10, 5], [10, 2, 1]) == Spread(low=5.0, median=5.0, high=5.0)


def test_survival_is_the_share_at_least_that_slow() -> None:
    """All are at least as slow as the fastest; of many, the ends and the slowest ones are there."""
    assert survival([0.5, 0.001, 0.25, 0.002]) == ([1, 2, 250, 500], [1, 0.75, 0.5, 0.25])
    count = 100_000
    times, shares = survival([number / 1000 for number in range(count)])
    assert 500 < len(times) <= 1001
    assert (times[0], times[-3:]) == (0, [count - 3, count - 2, count - 1])
    assert shares == pytest.approx([(count - time) / count for time in times])


# --- The open loop, with a fake clock in place of time.


class FakeClient:
    """Publishes with a latency per message, on a clock that moves when somebody sleeps or works.

    A ``publish()`` call itself takes as long as it ``blocks``. The last latency must be zero.
    """

    def __init__(self, latencies: Sequence[float], *, blocks: float = 0.0) -> None:
        self.calls: list[float] = []
        self.progress: list[int] = []
        self._now = 0.0
        self._due: list[tuple[float, int, Future[str]]] = []
        self._latencies, self._blocks = latencies, blocks

    def publish(self, number: int) -> Future[str]:
        """Note the time, and return a future that ends after its latency."""
        self.calls.append(self._now)
        future: Future[str] = Future()
        heapq.heappush(self._due, (self._now + self._latencies[number], number, future))
        self.advance(self._blocks)
        return future

    def advance(self, seconds: float) -> None:
        """Let time pass, and complete on the way what falls due."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._now, _, future = heapq.heappop(self._due)
            future.set_result("id")
        self._now = end

    def run(self) -> tuple[list[float], list[float]]:
        """Publish eight messages a second, one for each latency."""
        return run_open_loop(
            self.publish,
            publishes=len(self._latencies),
            rate=8,
            timeout=0,
            on_progress=self.progress.append,
            clock=lambda: self._now,
            sleep=self.advance,
        )


EIGHTHS = [0.0, 0.125, 0.25, 0.375]


def test_latency_counts_from_the_scheduled_time() -> None:
    """Message n goes out at n / rate seconds, or as soon as the client lets it.

    The bar for what has ended never runs backwards and ends full.
    """
    for client, calls, measured, lateness in (
        # The loop is open: the schedule goes on while a publish waits for its answer. Latencies
        # belong to their message, whatever the order of completion.
        (FakeClient([0.375, 0.125, 0.0, 0.0]), EIGHTHS, [0.375, 0.125, 0.0, 0.0], [0.0] * 4),
        # A publish() that blocks takes time for its own message and for those it delays.
        (FakeClient([0.0] * 2, blocks=0.5), [0.0, 0.5], [0.5, 0.875], [0.0, 0.375]),
    ):
        assert client.run() == (measured, lateness)
        assert client.calls == calls
        assert client.progress == sorted(client.progress)
        assert client.progress[0] < len(calls) == client.progress[-1]


def failed() -> Future[str]:
    """Return a future that failed."""
    future: Future[str] = Future()
    future.set_exception(ValueError("no such topic"))
    return future


@pytest.mark.parametrize(("future", "match"), [(failed(), "no such topic"), (Future(), "0 s")])
def test_a_publish_that_fails_or_never_ends_ends_the_run(future: Future[str], match: str) -> None:
    """That is no latency: the run, or the warm-up, names the error instead."""
    with pytest.raises(MeasurementError, match=match):
        warm_up(lambda number: future, 3, timeout=0)
    with pytest.raises(MeasurementError, match=match):
        run_open_loop(
            lambda number: future, publishes=1, rate=1, timeout=0, on_progress=lambda ended: None
        )


def test_warm_up_publishes_all_with_a_few_in_flight() -> None:
    """Eight, and the next ones when these are stored; it would wait in vain if it sent fewer."""
    sent: list[Future[str]] = []

    def publish(number: int) -> Future[str]:
        assert all(future.done() for future in sent[: number // 8 * 8])
        sent.append(Future())
        if len(sent) % 8 == 0 or number == 19:
            for future in sent[number // 8 * 8 :]:
                future.set_result("id")
        return sent[number]

    warm_up(publish, 20, timeout=0)
    assert len(sent) == 20


def test_warm_up_fills_the_bucket_within_bounds() -> None:
    """Enough successes for a full bucket, at least 200, at most 1,000."""
    for tokens, ratio, enough in [(50, 0.1, 500), (1, 0.2, 200), (50, 0.07, 715), (9, 0.001, 1000)]:
        assert warm_up_publishes(HedgingSettings(max_tokens=tokens, refill_ratio=ratio)) == enough


# --- The benchmark.


def test_batches_are_what_is_asked_for_and_what_the_service_takes() -> None:
    """Both clients count the message that makes a batch full, but do not put it in.

    A request has at most 10 MB; 2,000 messages are in flight at most, but 20 batches at least.
    """
    assert [batch_settings(batch).max_messages for batch in (1, 2, 10, 1000)] == [1, 3, 11, 1001]
    assert [fits(1000, 100), fits(100, 10_000), fits(1000, 10_000)] == [True, True, False]
    assert [window(batch) for batch in (1, 10, 100, 1000)] == [2000, 200, 20, 20]


@pytest.mark.parametrize(
    ("latency", "stall", "publishes", "requests", "latencies"),
    [
        # A server that answers in time gets one request a message.
        (0.005, None, 10, 10, [0.005] * 10),
        # Call 1 and its first hedge, call 4, stall; the second hedge, call 5, answers.
        (0.01, Stall(9.0, calls=(1, 4)), 3, 5, [0.21, 0.01, 0.01]),
        # The earliest of all answers counts, the original's too.
        (0.5, Stall(0.15, calls=(1,)), 1, 2, [0.15]),
        # Nothing helps within a window of stalls; the first hedge after it does.
        (0.01, Stall(60.0, between=(0.0, 0.45)), 1, 6, [0.51]),
    ],
    ids=["no fault", "stalls", "original first", "window"],
)
def test_the_best_possible(
    latency: float, stall: Stall | None, publishes: int, requests: int, latencies: list[float]
) -> None:
    """A hedge goes out whenever it is due, and takes a draw of its own."""
    script = FaultScript(latency=Fixed(latency), faults=[stall] if stall else [])
    best, sent = best_possible(script, publishes=publishes, rate=100, hedge_delay=0.1)
    assert sent == requests
    assert best == pytest.approx(latencies)


@given(st.integers(0, 2**32), st.floats(0.05, 1.0))
def test_hedging_never_makes_a_message_later_than_its_own_latency(seed: int, delay: float) -> None:
    """With no hedge, or with one that is sent too late for any, each takes its own draw."""
    script = FaultScript(latency=Pareto(minimum=0.005, alpha=1.2), seed=seed)
    alone, requests = best_possible(script, publishes=50, rate=1e6, hedge_delay=math.inf)
    hedged, _ = best_possible(script, publishes=50, rate=1e6, hedge_delay=delay)
    assert requests == 50
    assert all(one <= without + 1e-9 for one, without in zip(hedged, alone, strict=True))


@pytest.mark.parametrize("duration", [2.0, 20.0])
def test_every_case_has_a_best_within_reach(duration: float) -> None:
    """In each case hedging helps: the slowest message is faster than without."""
    for script in cases(1, duration=duration).values():
        (best, requests), (plain, _) = (
            best_possible(script, publishes=400, rate=400 / duration, hedge_delay=delay)
            for delay in (TAIL_HEDGING.initial_hedge_delay, math.inf)
        )
        assert max(best) < max(plain)
        assert requests > 400


def test_the_setup_names_machine_versions_and_a_busy_machine() -> None:
    """Numbers without these are worth nothing."""
    words = this_setup().in_words()
    for part in ("grpcio ", "google-cloud-pubsub ", "hedged-pubsub ", "Python", "core"):
        assert part in words
    quiet, busy = (Setup(date="", machine="", versions="", load=load) for load in (0.1, 2.0))
    assert "load average" not in quiet.in_words()
    assert "load average 2.0" in busy.in_words()
