"""Event loops of all kinds: none, another one, uvloop, eager tasks, debug and development mode."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from ..conftest import FAST, ONE_MESSAGE
from .publishers import publishing, run, settled, until


def test_outside_a_running_loop(server: PubSubServer, topic: str) -> None:
    """Neither the constructor nor ``publish`` work there, and say so."""
    with pytest.raises(RuntimeError, match="must be made in a running event loop"):
        AsyncHedgedPublisher()

    async def make() -> AsyncHedgedPublisher:
        return AsyncHedgedPublisher()

    loop = asyncio.new_event_loop()
    publisher = loop.run_until_complete(make())
    with pytest.raises(RuntimeError, match="must be used in a running event loop"):
        publisher.publish(topic, b"data").send(None)
    with pytest.raises(RuntimeError, match="must be used in a running event loop"):
        publisher.close().send(None)
    loop.run_until_complete(publisher.close())
    loop.close()


def test_in_another_loop(server: PubSubServer, topic: str) -> None:
    """Each method that waits refuses another loop; there nothing is accepted or closed."""

    async def make() -> AsyncHedgedPublisher:
        return AsyncHedgedPublisher(ONE_MESSAGE)

    loop = asyncio.new_event_loop()
    publisher = loop.run_until_complete(make())

    async def use() -> None:
        for call in (
            publisher.publish(topic, b"data"),
            publisher.enqueue(topic, b"data"),
            publisher.flush(),
            publisher.close(),
        ):
            with pytest.raises(RuntimeError, match="belongs to another event loop: make one for"):
                await call

    run(use)
    assert loop.run_until_complete(publisher.publish(topic, b"data"))
    loop.run_until_complete(publisher.close())
    loop.close()


def test_one_publisher_a_loop(server: PubSubServer, topic: str) -> None:
    """Two loops on two threads publish at the same time, each with a publisher of its own."""
    ids: list[str] = []

    async def publish() -> None:
        async with publishing(server) as publisher:
            for _ in range(20):
                ids.append(await publisher.publish(topic, b"data"))  # noqa: PERF401

    threads = [threading.Thread(target=run, args=(publish,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 40


async def test_after_close(server: PubSubServer, topic: str) -> None:
    """A closed publisher says so; flushing and closing it again do nothing."""
    async with publishing(server) as publisher:
        await publisher.publish(topic, b"data")
        await publisher.close()
        with pytest.raises(RuntimeError, match="closed publisher"):
            await publisher.publish(topic, b"data")
        with pytest.raises(RuntimeError, match="closed publisher"):
            await publisher.enqueue(topic, b"data")
        await publisher.flush()
        await publisher.close()
        assert publisher.hedging_stats(topic).batches == 1


async def exercise(server: PubSubServer, topic: str) -> None:
    """Batch, hedge, retry, fail and cancel once."""
    faults = [Stall(30, calls=[2], attempts=[0]), Status("UNAVAILABLE", calls=[4])]
    async with publishing(
        server,
        tokens=2,
        script=FaultScript(faults=faults),
        batch_settings=BatchSettings(max_messages=11, max_latency=0.01),
    ) as publisher:
        before = publisher.hedging_stats()
        ids = await asyncio.gather(*(publisher.publish(topic, b"%d" % n) for n in range(40)))
        assert len(set(ids)) == 40
        assert publisher.hedging_stats().hedges_won > before.hedges_won
        missing = asyncio.ensure_future(publisher.publish(server.topic_path("missing"), b"data"))
        with pytest.raises(Exception, match="404"):
            await missing
        left = asyncio.ensure_future(publisher.publish(topic, b"data"))
        await asyncio.sleep(0)
        left.cancel()
        await publisher.flush(timeout=5)
        await until(settled(server))
    stats = publisher.hedging_stats(topic)
    assert stats.batches - before.batches >= 4 + 1
    outcomes = [attempt.outcome for attempt in server.attempts(topic)]
    assert outcomes.count("answered") >= 5
    assert outcomes.count("cancelled") >= 1
    assert outcomes.count("failed") == 1


def test_debug_mode(server: PubSubServer, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """Asyncio's debug mode finds nothing to complain about."""
    with caplog.at_level(logging.WARNING):
        run(lambda: exercise(server, topic))
        gc.collect()
    complaints = [r for r in caplog.records if "took" not in r.getMessage()]  # slow machine
    assert complaints == []


def test_uvloop(server: PubSubServer, topic: str) -> None:
    """The same on uvloop, whose timers count milliseconds."""
    uvloop = pytest.importorskip("uvloop")
    run(lambda: exercise(server, topic), new_loop=uvloop.new_event_loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_hedge_is_forgotten(server: PubSubServer, topic: str, loop: str) -> None:
    """A timer that is early by a fraction of a millisecond costs no hedge."""
    new_loop: Any = asyncio.new_event_loop
    if loop == "uvloop":
        new_loop = pytest.importorskip("uvloop").new_event_loop

    async def hedge_often() -> None:
        async with publishing(
            server, tokens=5, script=FaultScript(faults=[Stall(0.4, attempts=[0])])
        ) as publisher:
            # Begun at different fractions of a millisecond.
            publishes = []
            for number in range(5):
                await asyncio.sleep(0.0003 * number)
                publishes.append(asyncio.ensure_future(publisher.publish(topic, b"data")))
            await asyncio.gather(*publishes)
            assert publisher.hedging_stats().hedges_won == 5

    run(hedge_often, new_loop=new_loop)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before 3.12")
def test_eager_tasks(server: PubSubServer, topic: str) -> None:
    """The same with tasks that begin as soon as they are made."""
    factory: Any = getattr(asyncio, "eager_task_factory")  # noqa: B009
    run(lambda: exercise(server, topic), task_factory=factory)


@pytest.mark.parametrize("flush", [True, False])
def test_development_mode(server: PubSubServer, topic: str, tmp_path: Path, flush: bool) -> None:
    """In development mode a program is quiet, unless it ends with messages unsent."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import asyncio
import warnings
from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings

warnings.simplefilter("error")  # from here on: Google's libraries warn when they are imported

async def main():
    publisher = AsyncHedgedPublisher((1000_000, 60, 100), hedging_settings=HedgingSettings(0.1))
    message_ids = [await publisher.enqueue({topic!r}, b"data") for _ in range(150)]
    if {flush}:
        await publisher.flush()
        failed = asyncio.ensure_future(publisher.publish("projects/test/topics/missing", b"data"))
        await asyncio.sleep(0)
        await publisher.flush()
        try:
            await failed
        except Exception as error:
            print(type(error).__name__, len(set(await asyncio.gather(*message_ids))))
        await publisher.close()

asyncio.run(main())
""",
        encoding="utf-8",
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-X", "dev", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if flush:
        assert done.stdout == "NotFound 150\n"
        assert done.stderr == ""
    else:
        assert "51 messages were not stored when their event loop ended" in done.stderr


def test_no_threads_of_ours(server: PubSubServer, topic: str) -> None:
    """Of the threads that appear, none is of this package; gRPC has one that polls."""
    before = {thread.name for thread in threading.enumerate()}
    names: set[str] = set()

    async def look() -> None:
        async with publishing(server, hedging_settings=FAST) as publisher:
            await publisher.publish(topic, b"data")
            names.update(thread.name for thread in threading.enumerate())

    run(look)
    assert not [name for name in names - before if "hedged" in name or "Commit" in name]
