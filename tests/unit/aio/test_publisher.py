"""The whole publisher on a virtual loop: closing, and cancellation wherever something waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import NoneType, SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub._core.batching import MAX_REQUEST_SIZE
from hedged_pubsub._core.connections import Connection
from hedged_pubsub.aio import publisher as publisher_module

from ..test_flow_control import limited
from .fakes import FakeRpc
from .virtual_loop import VirtualLoop, turns, virtual_run

TOPIC = "projects/test/topics/orders"

THROWN, CANCELLED = "thrown", "cancelled"
"""How: the error comes out of the wait, and what was waited for goes on; or a task is cancelled,
and with it what it waits for."""

Accepted = list[asyncio.Future[str]]


class Interrupted:
    """Awaits a coroutine and interrupts it where it waits for the n-th time, if it does, from 0."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], number: int, how: str) -> None:
        self._coroutine, self._number, self._how = coroutine, number, how
        self.happened = False

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until the coroutine ends."""
        step: Any = self._coroutine.send
        argument: Any = None
        for number in itertools.count():
            try:
                waits_for = step(argument)
            except StopIteration:
                return
            step, argument = self._coroutine.send, None
            if number == self._number:
                self.happened = True
                if self._how == THROWN:
                    step, argument = self._coroutine.throw, asyncio.CancelledError()
                    continue
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it goes on to the coroutine
                step, argument = self._coroutine.throw, error


class Bench:
    """A publisher whose requests are answered after a second, two messages at a time.

    Closing its channels takes a few turns of the loop, as an interceptor of the user's may.
    """

    def __init__(self, loop: VirtualLoop, *, latency: float = 1.0, limit: int = 2) -> None:
        self.loop = loop
        self.closed: list[str] = []
        transport = PublisherGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel("127.0.0.1:1"))
        close: Callable[[], Awaitable[None]] = transport.close
        transport.close = self._closing("the client's", close)  # type: ignore[method-assign]
        self.publisher = AsyncHedgedPublisher(
            BatchSettings(max_messages=1),
            PublisherOptions(flow_control=limited(messages=limit, size=2 * MAX_REQUEST_SIZE)),
            transport=transport,
        )
        rpc = FakeRpc(loop)
        self.method = rpc.method
        self.method.on_request = lambda request: loop.call_later(latency, request.succeed)
        hedges: Any = SimpleNamespace(channel=SimpleNamespace(close=self._closing("a hedge's")))
        rpc._connections.own = [Connection(hedges, own=True)]
        self.publisher._rpc = self.publisher._sender.driver.rpc = rpc

    def _closing(
        self, name: str, close: Callable[[], Awaitable[None]] = turns
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        async def closing() -> None:
            await turns(3)
            await close()
            self.closed.append(name)

        return closing

    async def enqueue(self, count: int) -> Accepted:
        return [await self.publisher.enqueue(TOPIC, b"%d" % number) for number in range(count)]

    async def interrupt(
        self, coroutine: Coroutine[Any, Any, object], place: int, how: str, *, may_end: bool = False
    ) -> bool:
        """Interrupt a coroutine at a place; return whether it has that place.

        It may end with a timeout of its own if it ``may_end`` so.
        """
        interrupted = Interrupted(coroutine, place, how)
        try:
            await interrupted
        except asyncio.CancelledError:
            assert interrupted.happened
            assert not self.publisher._closed or len(self.closed) == 2
        except asyncio.TimeoutError:
            assert may_end
        return interrupted.happened

    async def check(self, accepted: Accepted) -> None:
        """Whatever happened, accepted messages have an end, and there is an end to it all."""
        publisher = self.publisher
        if publisher._closed:
            assert all(future.done() for future in accepted), "pending after it was closed"
            with pytest.raises(RuntimeError, match="closed publisher"):
                await publisher.publish(TOPIC, b"again")
        else:
            await asyncio.wait(accepted, timeout=100)
            assert all(future.done() for future in accepted)
            assert await asyncio.wait_for(publisher.publish(TOPIC, b"again"), 100)
        for future in accepted:
            assert isinstance(future.exception(), (NoneType, RuntimeError))
        await asyncio.wait_for(publisher.close(), 100)
        assert sorted(self.closed) == ["a hedge's", "the client's"]
        count = publisher._flow_control._count
        assert (count.messages, count.bytes, list(count.pump())) == (0, 0, [])
        assert not publisher._sender._undecided
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def enqueue(publisher: AsyncHedgedPublisher, accepted: Accepted) -> None:
    """Enqueue, which waits for room."""
    accepted.append(await publisher.enqueue(TOPIC, b"data"))


async def enqueue_and_leave_block(publisher: AsyncHedgedPublisher, accepted: Accepted) -> None:
    """Leave a block with messages under way, after others."""
    async with publisher:
        await publisher.flush()
        for _ in range(2):
            await enqueue(publisher, accepted)


Operation = Callable[[AsyncHedgedPublisher, Accepted], Coroutine[Any, Any, object]]

OPERATIONS: dict[str, Operation] = {
    "publish": lambda publisher, _: publisher.publish(TOPIC, b"data"),
    "enqueue": enqueue,
    "flush": lambda publisher, _: publisher.flush(),
    "flush with a timeout": lambda publisher, _: publisher.flush(timeout=0.5),
    "close": lambda publisher, _: publisher.close(),
    "close with a timeout": lambda publisher, _: publisher.close(timeout=0.5),
    "leave the block": lambda publisher, _: publisher.__aexit__(None, None, None),
    "enqueue and leave the block": enqueue_and_leave_block,
}


def at_each_place(test: Callable[[Bench, int], Coroutine[Any, Any, bool]]) -> int:
    """Run a test, on a new loop, for each place from 0 until it says no; return how many it has."""
    places = itertools.count()

    async def main(loop: VirtualLoop) -> bool:
        return await test(Bench(loop), next(places))

    while virtual_run(main):
        pass
    return next(places) - 1


@pytest.mark.parametrize("how", [THROWN, CANCELLED])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_cancelled_wherever_it_waits(
    operation: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All accepted messages end, nothing stays counted, and closing closes everything."""
    monkeypatch.setattr(publisher_module, "_MAX_TURN", 0.0)  # every other publish waits for it

    async def test(bench: Bench, place: int) -> bool:
        accepted = await bench.enqueue(2)
        coroutine = OPERATIONS[operation](bench.publisher, accepted)
        may_end = "timeout" in operation
        running = bench.interrupt(coroutine, place, how, may_end=may_end)
        happened = await asyncio.ensure_future(running)
        await bench.check(accepted)
        return happened

    assert at_each_place(test) >= (1 if "flush" in operation or operation == "enqueue" else 2)


@pytest.mark.parametrize("how", [THROWN, CANCELLED])
def test_cancelled_wherever_it_waits_for_flow_control(how: str) -> None:
    """A publish that has to wait for others first is taken back, or stored, and they go on."""

    async def test(bench: Bench, place: int) -> bool:
        accepted = await bench.enqueue(2)
        publish = bench.publisher.publish
        before = asyncio.ensure_future(publish(TOPIC, b"before"))
        await turns()
        running = asyncio.ensure_future(bench.interrupt(publish(TOPIC, b"data"), place, how))
        await turns()
        after = asyncio.ensure_future(publish(TOPIC, b"after"))
        assert await asyncio.wait_for(before, 100) == "before"
        assert await asyncio.wait_for(after, 100) == "after"
        happened = await running
        await bench.check(accepted)
        return happened

    assert at_each_place(test) == 2, "for flow control, and for the answer"


async def test_every_close_returns_when_all_is_closed(loop: VirtualLoop) -> None:
    """A second one, beside the first or after it, is as good as the first."""
    bench = Bench(loop)
    (future,) = await bench.enqueue(1)

    async def close() -> None:
        await bench.publisher.close()
        assert future.done()
        assert len(bench.closed) == 2

    closing = [asyncio.ensure_future(close()) for _ in range(3)]
    await turns()
    assert not any(task.done() for task in closing)
    await asyncio.gather(*closing)
    await close()
    assert loop.now == 1.0
    assert await future == "0"
    await bench.check([future])


@pytest.mark.parametrize("timeout", [0.5, None], ids=["by its timeout", "by a cancellation"])
async def test_whoever_waits_shortest_ends_the_wait_of_all(
    loop: VirtualLoop, timeout: float | None
) -> None:
    """The messages fail, as documented, their requests are cancelled, and the patient return."""
    bench = Bench(loop, latency=60.0)
    (future,) = await bench.enqueue(1)
    patient = asyncio.ensure_future(bench.publisher.close())
    await turns()
    impatient = asyncio.ensure_future(bench.publisher.close(timeout))
    await asyncio.sleep(0.5)
    if timeout is None:
        impatient.cancel()
    else:
        with pytest.raises(asyncio.TimeoutError, match="1 of 1 messages"):
            await impatient
    await patient
    assert len(bench.closed) == 2
    assert loop.now == 0.5
    with pytest.raises(RuntimeError, match="closed before the message was stored"):
        await future
    assert [request.cancelled for request in bench.method.requests] == [True]
    await asyncio.wait([impatient])
    await bench.check([future])


@pytest.mark.parametrize("order", [("flush", "close"), ("close", "flush")])
async def test_a_flush_beside_a_close_loses_nothing(
    loop: VirtualLoop, order: tuple[str, str]
) -> None:
    """Both return when all is stored, whichever begins first."""
    bench = Bench(loop, limit=10)
    futures = await bench.enqueue(10)
    await asyncio.gather(*(getattr(bench.publisher, name)() for name in order))
    assert [future.result() for future in futures] == [str(n) for n in range(10)]
    await bench.check(futures)


@pytest.mark.parametrize("number_of_turns", range(12))
async def test_closing_is_begun_again_if_its_task_is_cancelled(
    loop: VirtualLoop, number_of_turns: int
) -> None:
    """Cancelling all tasks of the loop, as ``asyncio.run`` does, leaves no channel open."""
    bench = Bench(loop, latency=60.0)
    (future,) = await bench.enqueue(1)
    closing = asyncio.ensure_future(bench.publisher.close(timeout=0.5))
    await asyncio.sleep(0.5)
    await turns(number_of_turns)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([closing])
    if not closing.cancelled():
        assert isinstance(closing.exception(), asyncio.TimeoutError)
    await bench.publisher.close()
    await asyncio.sleep(1)
    assert "the client's" in bench.closed
    assert isinstance(future.exception(), RuntimeError)


async def test_what_closing_a_channel_raises_is_told(loop: VirtualLoop) -> None:
    """The other channels are closed, and nothing stays pending."""
    bench = Bench(loop)
    (future,) = await bench.enqueue(1)
    close_transport: Callable[[], Awaitable[None]] = bench.publisher.transport.close

    async def fail() -> None:
        await close_transport()
        raise ZeroDivisionError

    bench.publisher.transport.close = fail  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await bench.publisher.close()
    assert await future == "0"
    assert sorted(bench.closed) == ["a hedge's", "the client's"]


async def test_a_message_that_is_too_large_leaves_the_open_batch_alone(loop: VirtualLoop) -> None:
    """It is refused before anything is sent or opened, and takes no room."""
    bench = Bench(loop)
    bench.publisher._sender._limits.max_messages = 100
    futures = await bench.enqueue(1)
    for _ in range(3):
        with pytest.raises(MessageTooLargeError):
            await bench.publisher.enqueue(TOPIC, b"x" * 9_999_970)
    await bench.publisher.flush()
    assert [request.messages for request in bench.method.requests] == [["0"]]
    await bench.check(futures)


async def test_a_user_publishes_from_the_middle_of_a_publish(loop: VirtualLoop) -> None:
    """Sending a full batch may run a user's code; what that publishes is not lost."""
    bench = Bench(loop, limit=100)
    publisher, prepare = bench.publisher, bench.method.prepare
    publisher._sender._limits.max_messages = 3
    inner: Accepted = []

    def publish_and_prepare(serialized: object) -> object:
        if len(inner) < 5:
            coroutine = publisher.enqueue(TOPIC, b"inner")
            with pytest.raises(StopIteration) as end:
                coroutine.send(None)
            inner.append(end.value.value)
        return prepare(serialized)

    bench.method.prepare = publish_and_prepare  # type: ignore[method-assign, assignment]
    futures = await bench.enqueue(10)
    await asyncio.wait_for(publisher.flush(), 100)
    assert [await future for future in futures] == [str(n) for n in range(10)]
    assert [await future for future in inner] == ["inner"] * 5
    await bench.check(futures)
