"""Event loops of all kinds: none, another one, uvloop, eager tasks, debug and development mode."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from ..conftest import ONE_MESSAGE, TOPIC, complaints
from ..programs import run_program
from .publishers import publishing, run, settled, until

NEW = pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before 3.12")


def test_another_loop_or_none(server: PubSubServer) -> None:
    """Neither the constructor nor a method works there, and says so; nothing is accepted."""
    with pytest.raises(RuntimeError, match="must be made in a running event loop"):
        AsyncHedgedPublisher()

    async def make() -> AsyncHedgedPublisher:
        return AsyncHedgedPublisher(ONE_MESSAGE)

    loop = asyncio.new_event_loop()
    publisher = loop.run_until_complete(make())

    def calls() -> list[Coroutine[Any, Any, object]]:
        publish = [publisher.publish(TOPIC, b"data"), publisher.enqueue(TOPIC, b"data")]
        return [*publish, publisher.flush(), publisher.close()]

    async def use() -> None:
        for call in calls():
            with pytest.raises(RuntimeError, match="belongs to another event loop: make one for"):
                await call

    run(use)
    for call in calls():
        with pytest.raises(RuntimeError, match="must be used in a running event loop"):
            call.send(None)
    assert loop.run_until_complete(publisher.publish(TOPIC, b"data"))
    assert publisher.hedging_stats().batches == 1
    loop.run_until_complete(publisher.close())
    loop.close()


def test_one_publisher_a_loop(server: PubSubServer) -> None:
    """Two loops on two threads publish at the same time, each with a publisher of its own."""
    ids: list[str] = []

    async def publish() -> None:
        async with publishing(server) as publisher:
            for _ in range(20):
                ids.append(await publisher.publish(TOPIC, b"data"))  # noqa: PERF401

    threads = [threading.Thread(target=run, args=(publish,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 40


async def exercise(server: PubSubServer, topic: str) -> None:
    """Batch, hedge, retry, fail and cancel once; gRPC has a thread that polls, we have none."""
    threads = {thread.name for thread in threading.enumerate()}
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
        threads = {thread.name for thread in threading.enumerate()} - threads
    assert not [name for name in threads if "hedged" in name or "Commit" in name]
    stats = publisher.hedging_stats(topic)
    assert stats.batches - before.batches >= 4 + 1
    outcomes = [attempt.outcome for attempt in server.attempts(topic)]
    assert outcomes.count("answered") >= 5
    assert outcomes.count("cancelled") >= 1
    assert outcomes.count("failed") == 1


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", pytest.param("eager tasks", marks=NEW)])
def test_loops_of_all_kinds(
    server: PubSubServer, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    """All works on each, and asyncio's debug mode finds nothing to complain about.

    Such as uvloop, whose timers count milliseconds, and tasks that begin as soon as they are made.
    """
    arguments: dict[str, Any] = {}
    if loop == "uvloop":
        arguments["new_loop"] = pytest.importorskip("uvloop").new_event_loop
    elif loop == "eager tasks":
        arguments["task_factory"] = getattr(asyncio, "eager_task_factory")  # noqa: B009
    with caplog.at_level(logging.WARNING):
        run(lambda: exercise(server, TOPIC), **arguments)
        gc.collect()
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "took" not in line] == []  # slow machine


@pytest.mark.parametrize("flush", [True, False])
def test_development_mode(server: PubSubServer, flush: bool) -> None:
    """In development mode a program is quiet, unless it ends with messages unsent."""
    done = run_program(
        f"""
        import asyncio, warnings
        warnings.simplefilter("error")  # from here on: Google's libraries warn at their import

        async def main():
            global publisher  # which, if it was dropped, would send what is open
            publisher = AsyncHedgedPublisher(
                (1000_000, 60, 100), hedging_settings=HedgingSettings(0.1)
            )
            message_ids = [await publisher.enqueue(topic, b"data") for _ in range(150)]
            if {flush}:
                await publisher.flush()
                missing = publisher.publish("projects/test/topics/missing", b"data")
                failed = asyncio.ensure_future(missing)
                await asyncio.sleep(0)
                await publisher.flush()
                try:
                    await failed
                except Exception as error:
                    print(type(error).__name__, len(set(await asyncio.gather(*message_ids))))
                await publisher.close()

        asyncio.run(main())
        """,
        PYTHONDEVMODE="1",
    )
    assert done.returncode == 0, done.stderr
    if flush:
        assert done.stdout == "NotFound 150\n"
        assert complaints(done.stderr) == ""
    else:
        assert "51 messages were not stored when their event loop ended" in done.stderr
