"""The open loop sends by the schedule and measures from it; a fake clock stands in for time."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from hedged_pubsub.cli.open_loop import MeasurementError, OpenLoopRun, run_open_loop, warm_up


class FakeTime:
    """A clock that moves only when somebody sleeps or works; futures end when it passes them."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[float, Future[str]]] = []

    def clock(self) -> float:
        """The seconds so far."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass, and complete on the way what falls due."""
        end = self.now + seconds
        for due, future in sorted(self._due, key=lambda entry: entry[0]):
            if due <= end:
                self.now = max(self.now, due)
                self._due.remove((due, future))
                future.set_result("id")
        self.now = end

    def complete_in(self, seconds: float) -> Future[str]:
        """A future that ends after some seconds; at once for zero."""
        future: Future[str] = Future()
        self._due.append((self.now + seconds, future))
        self.advance(0)
        return future


class FakeClient:
    """Publishes with a given latency per message; its publish() call itself may take time."""

    def __init__(self, time: FakeTime, latencies: list[float], *, blocks: float = 0.0) -> None:
        self.calls: list[float] = []
        self._time, self._latencies, self._blocks = time, latencies, blocks

    def publish(self, number: int) -> Future[str]:
        """Take the call's time down, and return a future that ends after its latency."""
        self.calls.append(self._time.now - 100.0)
        future = self._time.complete_in(self._latencies[number])
        self._time.advance(self._blocks)
        return future

    def run(self, *, rate: float) -> OpenLoopRun:
        """Run the loop with one publish for each latency; the last latency must be zero."""
        return run_open_loop(
            self.publish,
            publishes=len(self._latencies),
            rate=rate,
            timeout=0,
            on_progress=lambda ended: None,
            clock=self._time.clock,
            sleep=self._time.advance,
        )


def test_sends_follow_the_schedule() -> None:
    """Message n goes out at n / rate seconds."""
    client = FakeClient(FakeTime(), [0.0] * 4)
    client.run(rate=8)
    assert client.calls == [0.0, 0.125, 0.25, 0.375]


def test_a_stalled_publish_does_not_delay_the_next_ones() -> None:
    """The loop is open: the schedule goes on while a publish waits for its answer."""
    client = FakeClient(FakeTime(), [0.25, 0.0, 0.0, 0.0, 0.0])
    run = client.run(rate=8)
    assert client.calls == [0.0, 0.125, 0.25, 0.375, 0.5]
    assert run.latencies == (0.25, 0.0, 0.0, 0.0, 0.0)


def test_latency_counts_from_the_scheduled_time() -> None:
    """Time that a blocking publish() took counts, for its own message and for those it delayed."""
    client = FakeClient(FakeTime(), [0.0] * 3, blocks=0.5)
    run = client.run(rate=8)
    assert client.calls == [0.0, 0.5, 1.0]
    assert run.lateness == (0.0, 0.375, 0.75)
    assert run.latencies == (0.5, 0.875, 1.25)


def test_latencies_belong_to_their_message_whatever_the_order_of_completion() -> None:
    """The first message ends last and still gets the first place."""
    client = FakeClient(FakeTime(), [0.375, 0.125, 0.0, 0.0, 0.0])
    assert client.run(rate=8).latencies == (0.375, 0.125, 0.0, 0.0, 0.0)


def test_progress_reports_what_ended_and_reaches_the_total() -> None:
    """The bar never runs backwards and ends full."""
    seen: list[int] = []
    time = FakeTime()
    client = FakeClient(time, [0.5, *[0.0] * 9])
    run_open_loop(
        client.publish,
        publishes=10,
        rate=8,
        timeout=0,
        on_progress=seen.append,
        clock=time.clock,
        sleep=time.advance,
    )
    assert seen == sorted(seen)
    assert seen[0] < 10
    assert seen[-1] == 10


def test_a_failed_publish_ends_the_run_with_its_error() -> None:
    """A failure is no latency: the run names the error instead."""
    failed: Future[str] = Future()
    failed.set_exception(ValueError("no such topic"))
    with pytest.raises(MeasurementError, match="no such topic"):
        run_open_loop(
            lambda number: failed, publishes=1, rate=1, timeout=0, on_progress=lambda ended: None
        )


def test_a_publish_that_never_ends_is_given_up() -> None:
    """The run does not wait for ever, and says how many are missing."""
    time = FakeTime()
    with pytest.raises(MeasurementError, match="1 of 2 publishes"):
        FakeClient(time, [1000.0, 0.0]).run(rate=8)


def test_warm_up_publishes_all_with_a_few_in_flight() -> None:
    """The closed loop waits for the oldest before it sends another one."""
    numbers: list[int] = []
    in_flight: list[Future[str]] = []
    most = 0

    def publish(number: int) -> Future[str]:
        nonlocal most
        numbers.append(number)
        future: Future[str] = Future()
        in_flight.append(future)
        most = max(most, len(in_flight))
        if len(in_flight) == 8 or number == 19:
            while in_flight:
                in_flight.pop(0).set_result("id")
        return future

    warm_up(publish, 20, timeout=0)
    assert numbers == list(range(20))
    assert most == 8


def test_warm_up_stops_at_a_failure() -> None:
    """A server that refuses the warm-up refuses the measurement too."""
    failed: Future[str] = Future()
    failed.set_exception(ValueError("no such topic"))
    with pytest.raises(MeasurementError, match="no such topic"):
        warm_up(lambda number: failed, 3, timeout=0)


def test_warm_up_does_not_wait_for_ever() -> None:
    """A publish that never ends is named as such."""
    with pytest.raises(MeasurementError, match="did not end within 0 s"):
        warm_up(lambda number: Future(), 1, timeout=0)
