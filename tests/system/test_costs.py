"""What a publish costs, counted rather than timed: calls, signals, memory, threads, idle CPU."""

from __future__ import annotations

import gc
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from google.cloud import pubsub_v1

import hedged_pubsub.testing
from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub._sync import threads
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .conftest import MakePublisher, wait_until

DATA = b"x" * 100
# A batch that stays open while messages are added to it.
OPEN = pubsub_v1.types.BatchSettings(max_messages=1000, max_latency=600)


OURS = str(Path(hedged_pubsub.__file__).parent)
TESTING = str(Path(hedged_pubsub.testing.__file__).parent)


class Calls:
    """Counts the functions that are called, Python's and built in.

    Attributes:
        all: Of all functions.
        ours: Of those that are this library's.
    """

    def __init__(self) -> None:
        self.all = self.ours = 0

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take note of a call; for ``setprofile``."""
        if event in ("call", "c_call"):
            self.all += 1
            name = frame.f_code.co_filename
            self.ours += event == "call" and name.startswith(OURS) and TESTING not in name


def test_a_message_costs_few_calls(server: PubSubServer, make_publisher: MakePublisher) -> None:
    """From ``publish()`` into an open batch: at most 25 calls, and a third of officially."""
    topic = server.create_topic("open")
    ours = make_publisher(batch_settings=OPEN, tokens=0)
    official = pubsub_v1.PublisherClient(OPEN)
    counts = []
    for client in (ours, official):
        client.publish(topic, DATA)
        calls = Calls()
        sys.setprofile(calls.note)
        try:
            for _ in range(100):
                client.publish(topic, DATA)
        finally:
            sys.setprofile(None)
        counts.append(calls.all / 100)
    official.stop()
    assert counts[0] <= 25
    assert 3 * counts[0] <= counts[1]


def test_a_batch_costs_few_functions(make_publisher: MakePublisher, topic: str) -> None:
    """A message that is sent alone: at most 100 of our functions, and 300 with gRPC's.

    What grpcio's own futures would add is beyond that.
    """
    calls = Calls()
    threading.setprofile(calls.note)  # for the thread that gRPC starts with the first call
    try:
        publisher = make_publisher(tokens=0)
        publisher.publish(topic, DATA).result(10)
        ours, all_ = calls.ours, calls.all
        sys.setprofile(calls.note)
        for _ in range(100):
            publisher.publish(topic, DATA).result(10)
        sys.setprofile(None)
        publisher.flush()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # On this thread alone there are more than twenty, so that both are known to be counted.
    assert 30 <= (calls.ours - ours) / 100 <= 100
    assert (calls.all - all_) / 100 <= 300


def test_the_scheduler_is_left_alone_when_nothing_is_slow(
    make_publisher: MakePublisher, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred batches that are answered in time: one signal a delay, and few wake-ups."""
    publisher = make_publisher(hedging_settings=HedgingSettings(hedge_delay=10), tokens=0)
    publisher.publish(topic, DATA).result(10)  # starts the scheduler's thread
    signals: list[str] = []
    scheduler = threads.SCHEDULER
    notify = scheduler._changed.notify

    def counting_notify(count: int = 1) -> None:
        signals.append("signal")
        notify(count)

    monkeypatch.setattr(scheduler._changed, "notify", counting_notify)
    ticks: list[str] = []
    clock = scheduler._clock

    def counting_clock() -> float:
        if threading.current_thread() is scheduler._thread:
            ticks.append("wake-up")
        return clock()

    monkeypatch.setattr(scheduler, "_clock", counting_clock)
    for _ in range(300):
        publisher.publish(topic, DATA).result(10)
    # The first look of a delay is nearer than "never"; those after it are not.
    assert len(signals) <= 1
    # Earlier tests may have left a look or two of theirs.
    assert len(ticks) <= 10


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace allocations."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def other_process() -> Iterator[PubSubServer]:
    """A server whose memory and CPU time are not this process's."""
    with PubSubServer(process=True, set_emulator_host=True) as server:
        yield server


@pytest.mark.usefixtures("traced")
def test_a_decided_batch_keeps_no_payload(other_process: PubSubServer) -> None:
    """However far its next look is, its messages are let go of."""
    topic = other_process.create_topic("payload")
    payload, batches = 100_000, 100
    settings = HedgingSettings(hedge_delay=10)
    one = pubsub_v1.types.BatchSettings(max_messages=1)
    with HedgedPublisher(one, hedging_settings=settings) as publisher:
        for _ in range(10):
            publisher.publish(topic, b"x" * payload).result(10)
        gc.collect()
        before = _traced_memory()
        for number in range(batches):
            publisher.publish(topic, bytes([number]) * payload).result(10)

        def kept() -> int:
            gc.collect()
            return _traced_memory() - before

        # What the scheduler's heap remembers of each until its look, and not the messages; gRPC's
        # thread may need a moment to leave the last of them.
        wait_until(lambda: kept() < batches * 1000, timeout=2)


def _traced_memory() -> int:
    """Return the bytes that are allocated, but for those of a tool that measures coverage.

    It keeps more than a kilobyte for each thread that ever ran, and gRPC starts a thread whenever
    a call is the only one of its channel.
    """
    snapshot = tracemalloc.take_snapshot()
    ours = snapshot.filter_traces([tracemalloc.Filter(False, "*/coverage/*")])
    return sum(trace.size for trace in ours.traces)


@pytest.mark.usefixtures("traced")
def test_a_stalled_message_takes_less_memory_than_officially(other_process: PubSubServer) -> None:
    """With a request for each message, the worst case."""
    topic = other_process.create_topic("stalled")
    one = pubsub_v1.types.BatchSettings(max_messages=1)
    messages = 100
    kept = []
    with HedgedPublisher(one) as ours:
        official = pubsub_v1.PublisherClient(one)
        for client in (ours, official):
            other_process.set_script(FaultScript())
            client.publish(topic, DATA).result(10)
            other_process.set_script(FaultScript(faults=[Stall(1.5)]))
            other_process.clear()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            futures = [client.publish(topic, DATA) for _ in range(messages)]
            wait_until(lambda: len(other_process.attempts(topic)) >= messages, timeout=30)
            kept.append((tracemalloc.get_traced_memory()[0] - before) / messages)
            for future in futures:
                future.result(30)
            del futures
        official.stop()
    assert kept[0] < kept[1]


def test_stalled_batches_take_no_threads(other_process: PubSubServer) -> None:
    """Two thousand of them: at most ten threads more than idle."""
    topic = other_process.create_topic("threads")
    one = pubsub_v1.types.BatchSettings(max_messages=1)
    with HedgedPublisher(one) as publisher:
        publisher.publish(topic, DATA).result(10)
        idle = threading.active_count()
        other_process.set_script(FaultScript(faults=[Stall(2.0)]))
        most = idle
        futures = []
        for _ in range(2000):
            futures.append(publisher.publish(topic, DATA))
            most = max(most, threading.active_count())
        while not futures[-1].done():
            most = max(most, threading.active_count())
            time.sleep(0.05)
    assert most <= idle + 10


def test_an_idle_publisher_uses_no_cpu(other_process: PubSubServer) -> None:
    """Once everything is decided, neither a look nor a worker runs on."""
    topic = other_process.create_topic("idle")
    # What earlier tests have left in the scheduler, decided or not, must not come due meanwhile.
    scheduler = threads.SCHEDULER
    wait_until(
        lambda: all(when > scheduler._clock() + 4 for when, _, _ in scheduler._heap.copy()),
        timeout=20,
    )
    one = pubsub_v1.types.BatchSettings(max_messages=1)
    with HedgedPublisher(one, hedging_settings=HedgingSettings(hedge_delay=0.1)) as publisher:
        for _ in range(200):
            publisher.publish(topic, DATA).result(10)
        time.sleep(0.3)  # beyond their last look
        cpu = _cpu_of(threads.SCHEDULER._thread)
        process = time.process_time()
        time.sleep(1.0)
        assert _cpu_of(threads.SCHEDULER._thread) == cpu
        # gRPC's own threads look around now and then.
        assert time.process_time() - process < 0.1


def _cpu_of(thread: Any) -> float | None:
    """Return a thread's CPU seconds; None where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
