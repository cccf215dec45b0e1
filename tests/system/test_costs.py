"""What a publish costs, counted rather than timed: calls, signals, memory, threads, idle CPU."""

from __future__ import annotations

import asyncio
import concurrent.futures
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
from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings, _sync, aio
from hedged_pubsub._core import recent_topics
from hedged_pubsub._google import method
from hedged_pubsub._sync import threads
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .conftest import FAST, ONE_MESSAGE, TOPIC, Make, wait_until

DATA = b"x" * 100
# A batch that stays open while messages are added to it.
OPEN = pubsub_v1.types.BatchSettings(max_messages=1000, max_latency=600)

OURS = str(Path(hedged_pubsub.__file__).parent)
TESTING = str(Path(hedged_pubsub.testing.__file__).parent)


class Calls:
    """Counts the functions that are called, Python's and built in; and this library's ``ours``."""

    def __init__(self) -> None:
        self.all = self.ours = 0

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take note of a call; for ``setprofile``."""
        if event in ("call", "c_call"):
            self.all += 1
            name = frame.f_code.co_filename
            self.ours += event == "call" and name.startswith(OURS) and TESTING not in name


def test_a_message_costs_few_calls(server: PubSubServer, make: Make) -> None:
    """From ``publish()`` into an open batch: at most 25 calls, and a third of officially."""
    topic = server.create_topic("open")
    ours = make(batch_settings=OPEN)
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


def test_a_batch_costs_few_functions(make: Make) -> None:
    """A message that is sent alone: at most 100 of our functions, and 300 with gRPC's.

    What grpcio's own futures would add is beyond that.
    """
    calls = Calls()
    threads.LIBRARY.ask(sys.setprofile, calls.note)  # its thread may run since another test
    threading.setprofile(calls.note)  # for the thread that gRPC starts with the first call
    try:
        publisher = make()
        publisher.publish(TOPIC, DATA).result(10)
        ours, all_ = calls.ours, calls.all
        sys.setprofile(calls.note)
        for _ in range(100):
            publisher.publish(TOPIC, DATA).result(10)
        sys.setprofile(None)
        publisher.flush()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        threads.LIBRARY.ask(sys.setprofile, None)
    # Twenty are on this thread, so that they are known to be counted.
    assert 20 <= (calls.ours - ours) / 100 <= 100
    assert (calls.all - all_) / 100 <= 300


def test_the_thread_is_woken_once_a_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred batches that are answered in time: no timer of theirs comes to anything."""
    publisher = make(hedging_settings=HedgingSettings(hedge_delay=10))
    publisher.publish(TOPIC, DATA).result(10)
    waits: list[float] = []
    step = threads.LIBRARY._step

    def counting_step(timeout: float) -> bool:
        waits.append(timeout)
        return step(timeout)

    monkeypatch.setattr(threads.LIBRARY, "_step", counting_step)
    for _ in range(300):
        publisher.publish(TOPIC, DATA).result(10)
    # Some are of timers that earlier tests have left, or of checks of the connection.
    assert 290 <= len(waits) <= 400


def test_stalled_batches_take_few_objects_and_no_threads(other_process: PubSubServer) -> None:
    """Under way alone, a message costs the garbage collector sixteen objects at most.

    Five hundred of them take at most ten threads more than idle.
    """
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        publisher.publish(TOPIC, DATA).result(10)
        other_process.set_script(FaultScript(faults=[Stall(60)]))
        other_process.clear()
        gc.collect()
        before, idle = len(gc.get_objects()), threading.active_count()
        most = 0
        futures = []
        for _ in range(500):
            futures.append(publisher.publish(TOPIC, DATA))
            most = max(most, threading.active_count())
        wait_until(lambda: len(other_process.attempts(TOPIC)) >= 500, timeout=30)
        counts = []
        for _ in range(10):
            time.sleep(0.025)  # two hedge timers of each, in all; one that is due counts twice
            gc.collect()
            counts.append(len(gc.get_objects()) - before)
        tracked = min(counts) / len(futures)
        most = max(most, threading.active_count())
        with pytest.raises(concurrent.futures.TimeoutError):
            publisher.close(timeout=0)
    assert 4 <= tracked <= 16
    assert most <= idle + 10


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace allocations."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture(scope="module")
def shared_process() -> Iterator[PubSubServer]:
    """Run a server whose memory and CPU time are not this process's."""
    with PubSubServer(process=True) as server:
        server.create_topic(TOPIC)
        yield server


@pytest.fixture
def other_process(
    shared_process: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PubSubServer]:
    """Let clients that are made in the test use that server."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", shared_process.address)
    yield shared_process
    shared_process.set_script(FaultScript())


@pytest.mark.usefixtures("traced")
def test_a_decided_batch_keeps_no_payload(other_process: PubSubServer) -> None:
    """However far away its hedge timer is, its messages are let go of."""
    payload, batches = 100_000, 100
    settings = HedgingSettings(hedge_delay=10)
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=settings) as publisher:
        for _ in range(10):
            publisher.publish(TOPIC, b"x" * payload).result(10)
        gc.collect()
        before = _traced_memory()
        for number in range(batches):
            publisher.publish(TOPIC, bytes([number]) * payload).result(10)

        def kept() -> int:
            gc.collect()
            return _traced_memory() - before

        # What the timers remember of each until they are due, and not the messages; gRPC's
        # thread may need a moment to leave the last of them.
        wait_until(lambda: kept() < batches * 1000, timeout=2)


def _traced_memory() -> int:
    # Without what measures coverage: that keeps more than a kilobyte for each thread that ever ran,
    # and gRPC starts one whenever a call is the only one of its channel.
    snapshot = tracemalloc.take_snapshot()
    ours = snapshot.filter_traces([tracemalloc.Filter(False, "*/coverage/*")])
    return sum(trace.size for trace in ours.traces)


@pytest.mark.usefixtures("traced")
def test_a_stalled_message_takes_less_memory_than_officially(other_process: PubSubServer) -> None:
    """With a request for each message, the worst case."""
    messages = 100
    kept = []
    with HedgedPublisher(ONE_MESSAGE) as ours:
        official = pubsub_v1.PublisherClient(ONE_MESSAGE)
        for client in (ours, official):
            other_process.set_script(FaultScript())
            client.publish(TOPIC, DATA).result(10)
            other_process.set_script(FaultScript(faults=[Stall(3)]))
            other_process.clear()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            futures = [client.publish(TOPIC, DATA) for _ in range(messages)]
            wait_until(lambda: len(other_process.attempts(TOPIC)) >= messages, timeout=30)
            kept.append((tracemalloc.get_traced_memory()[0] - before) / messages)
            if client is ours:
                with pytest.raises(concurrent.futures.TimeoutError):
                    ours.close(timeout=0)
            del futures
        official.stop()
    assert kept[0] < kept[1]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", [HedgedPublisher, AsyncHedgedPublisher])
def test_a_topic_takes_little_memory(
    other_process: PubSubServer,
    kind: type[HedgedPublisher | AsyncHedgedPublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond those in use, two kilobytes at most are kept of each: less than two histograms."""
    for module in (recent_topics, method, _sync.sender, aio.sender):
        monkeypatch.setattr(module, "MAX_TOPICS", 10)
    names = [other_process.create_topic(f"{kind.__name__}-{number}") for number in range(400)]
    kept: list[int] = []

    async def publish() -> None:
        publisher = kind(ONE_MESSAGE, hedging_settings=HedgingSettings(hedge_delay=0.1))
        for part in (names[:100], names[100:]):
            futures: Any = [publisher.publish(name, DATA) for name in part]
            if isinstance(publisher, HedgedPublisher):
                futures = map(asyncio.wrap_future, futures)
            await asyncio.gather(*futures)
            await asyncio.sleep(0.3)  # beyond their hedge timers
            gc.collect()
            kept.append(_traced_memory())
        assert publisher.hedging_stats().result_latency.count == len(names)
        end: Any = publisher.close()
        if end is not None:
            await end

    asyncio.run(publish())
    assert (kept[1] - kept[0]) / 300 < 2000


def test_an_idle_publisher_uses_no_cpu(server: PubSubServer) -> None:
    """Once everything is decided, neither a timer nor a worker runs on."""
    # What earlier tests have left in the thread, decided or not, must not come due meanwhile.
    library = threads.LIBRARY
    wait_until(
        lambda: all(timer[0] > library._clock() + 4 for timer in library._timers.copy()), timeout=20
    )
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        for _ in range(200):
            publisher.publish(TOPIC, DATA).result(10)
        time.sleep(0.3)  # beyond their hedge timers
        cpu = _cpu_of(library.ident)
        process = time.process_time()
        time.sleep(0.5)
        assert _cpu_of(library.ident) == cpu
        # gRPC's own threads wake up now and then, the server's as well.
        assert time.process_time() - process < 0.05


def _cpu_of(ident: int | None) -> float | None:
    """Return a thread's CPU seconds; None where the system does not tell."""
    if ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.clock_gettime(time.pthread_getcpuclockid(ident))
