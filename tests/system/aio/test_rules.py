"""The rules of one batch, R1 to R12, as for the synchronous publisher and by the same tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.retry import AsyncRetry, Retry
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, telemetry
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from .. import test_rules as shared
from ..test_rules import numbers, stall_originals
from .publishers import publishing, settled, until

# What is not shared, and where it is instead.
OWN = {
    "test_r7_a_cancel_by_the_server_is_retried": "below: without a token, as a resend may be slow",
    "test_r8_a_closed_channel": "below: grpc.aio has errors of its own",
    "test_r8_callbacks_that_raise_harm_nobody": "callbacks of asyncio's futures are the loop's",
    "test_r10_the_metadata_is_the_official_clients": "below: of the official asyncio client",
    "test_r11_stop_flushes_and_hedging_goes_on": "below: it is close() here",
}


def share(name: str) -> Callable[..., None]:
    """Return a test of the synchronous publisher; the fixture makes the other one here."""
    test: Callable[..., None] = getattr(shared, name)
    return test


_TESTS = [name for name in dir(shared) if name.startswith("test_r") and name not in OWN]
_TESTS.append("test_a_losers_failure_is_not_an_error_of_the_batch_under_load")
globals().update({name: share(name) for name in _TESTS})


def test_the_rules_are_shared() -> None:
    """All tests of the rules run here as well, but for those that are named."""
    assert len(_TESTS) > 20
    assert all(hasattr(shared, name) for name in OWN)


async def test_r7_a_cancel_by_the_server_is_retried(server: PubSubServer, topic: str) -> None:
    """``CANCELLED`` that comes from the service is an error like any other."""
    script = FaultScript(faults=[Status("CANCELLED", times=1)])
    async with publishing(server, script=script) as publisher:
        await publisher.publish(topic, b"data")
    assert numbers(server.attempts()) == [0, 0]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_r8_a_closed_channel(server: PubSubServer, topic: str, when: str) -> None:
    """A channel that the user closes ends the publish with an error; it is no cancellation."""
    async with publishing(server, script=FaultScript(faults=[Stall(30)])) as publisher:
        if when == "before":
            await publisher.transport.close()
        message_id = await publisher.enqueue(topic, b"data", retry=None)
        if when == "meanwhile":
            await until(server.attempts)
            await publisher.transport.close()
        with pytest.raises(Exception, match=r"[Cc]losed") as raised:
            await asyncio.wait_for(message_id, 1)
        assert when == "before" or isinstance(raised.value, exceptions.Cancelled)


async def test_r10_the_metadata_is_the_official_asyncio_clients(
    server: PubSubServer, topic: str
) -> None:
    """Header by header the same as the official client's, but for telemetry."""
    async with publishing(server) as publisher, PublisherAsyncClient() as official:
        await publisher.publish(topic, b"data")
        await official.publish(topic=topic, messages=[PubsubMessage(data=b"data")])
    ours, theirs = (dict(attempt.metadata) for attempt in server.attempts())
    assert ours.pop(telemetry.HEADER)
    assert ours == theirs
    assert ours["x-goog-request-params"] == "topic=projects/test/topics/orders"


async def test_r11_close_flushes_and_hedging_goes_on(server: PubSubServer, topic: str) -> None:
    """What is in flight when the publisher is closed is hedged until it is decided."""
    async with publishing(
        server,
        tokens=1,
        script=stall_originals(),
        batch_settings=BatchSettings(max_latency=30, max_messages=10),
    ) as publisher:
        message_id = await publisher.enqueue(topic, b"data")
        closing = asyncio.ensure_future(publisher.close())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="closed publisher"):
            await publisher.enqueue(topic, b"late")
        await closing
        assert message_id.done()
        assert await message_id
        await until(settled(server))
        assert numbers(server.attempts()) == [0, 1]
        assert server.attempts()[0].outcome == "cancelled"


@pytest.mark.usefixtures("server")
class TestR12:
    """What cannot work together is refused when the publisher is made, or the call."""

    @pytest.mark.parametrize("hedging_settings", [HedgingSettings(), None], ids=repr)
    async def test_ordering(self, hedging_settings: HedgingSettings | None) -> None:
        """There is no ordering, not even without hedging."""
        options = PublisherOptions(enable_message_ordering=True)
        with pytest.raises(ValueError, match="enable_message_ordering=True and hedging exclude"):
            AsyncHedgedPublisher((), options, hedging_settings=hedging_settings)

    async def test_an_ordering_key(self, topic: str) -> None:
        """A message with an ordering key is refused, and nothing is accepted."""
        async with AsyncHedgedPublisher() as publisher:
            with pytest.raises(ValueError, match="ordering_key must be empty"):
                await publisher.publish(topic, b"data", ordering_key="key")
            assert publisher.hedging_stats().batches == 0

    @pytest.mark.parametrize("timeout", [1.0, 0.5])
    async def test_the_delay_must_be_below_both_timeouts(self, timeout: float) -> None:
        """A delay that is not strictly below a timeout names both values."""
        with pytest.raises(ValueError, match=rf"hedge_delay \(1 s\) .* request \({timeout:g} s\)"):
            AsyncHedgedPublisher((), PublisherOptions(timeout=timeout))
        for retry in (Retry(timeout=timeout), AsyncRetry(timeout=timeout)):
            with pytest.raises(ValueError, match=rf"hedge_delay .* retry timeout \({timeout:g} s"):
                AsyncHedgedPublisher((), PublisherOptions(retry=retry))

    @pytest.mark.parametrize(
        "arguments",
        [{"timeout": 1.0}, {"retry": Retry(timeout=1.0)}, {"retry": AsyncRetry(timeout=0.5)}],
        ids=repr,
    )
    async def test_a_call_that_breaks_it_raises(self, topic: str, arguments: Any) -> None:
        """A per-call timeout or retry is held against the delay too, and nothing is accepted."""
        async with AsyncHedgedPublisher() as publisher:
            with pytest.raises(ValueError, match=r"hedge_delay \(1 s\) must be below"):
                await publisher.publish(topic, b"data", **arguments)
            assert publisher.hedging_stats().batches == 0

    @pytest.mark.parametrize("transport", ["rest", "grpc"])
    async def test_transports_without_asyncio_calls(self, transport: str) -> None:
        """REST and synchronous transports are refused, with what to use instead."""
        with pytest.raises(ValueError, match=f"transport='{transport}' .* use 'grpc_asyncio'"):
            AsyncHedgedPublisher(transport=transport)

    @pytest.mark.parametrize(
        "arguments",
        [{"retry": "often"}, {"retry": 3}, {"timeout": "1"}, {"timeout": True}],
        ids=repr,
    )
    async def test_types_that_cannot_be_interpreted(self, topic: str, arguments: Any) -> None:
        """A retry or timeout of another type is a clear error of the call and of the options."""
        (name,) = arguments
        with pytest.raises(TypeError, match=f"^{name} must be"):
            AsyncHedgedPublisher((), PublisherOptions(**arguments))
        async with AsyncHedgedPublisher() as publisher:
            with pytest.raises(TypeError, match=f"^{name} must be"):
                await publisher.publish(topic, b"data", **arguments)

    async def test_a_refused_publisher_does_not_close_the_users_transport(
        self, server: PubSubServer, topic: str
    ) -> None:
        """After the constructor raised, the transport that was passed in still works."""
        channel = grpc.aio.insecure_channel(server.address)
        transport = PublisherGrpcAsyncIOTransport(channel=channel)
        with pytest.raises(ValueError, match="hedge_delay"):
            AsyncHedgedPublisher((), PublisherOptions(timeout=0.5), transport=transport)
        async with AsyncHedgedPublisher(transport=transport) as publisher:
            assert await publisher.publish(topic, b"data")


async def test_r1_the_request_leaves_in_the_turn_after_the_publish(
    server: PubSubServer, topic: str
) -> None:
    """Nothing waits for a timer: a full batch is sent before the next wait of the loop."""
    async with publishing(server) as publisher:
        called = time.monotonic()
        await publisher.publish(topic, b"data")
        (attempt,) = server.attempts()
        assert attempt.arrival - called < 0.08
