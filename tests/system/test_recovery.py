"""Through errors, pauses and cold starts, over real gRPC: R3, R9 and R13 to R16."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.api_core.timeout import ConstantTimeout
from google.auth.credentials import Credentials
from google.cloud.pubsub_v1.types import PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import DropReply, FaultScript, Fixed, PubSubServer, Stall, Status

from .aio.publishers import run
from .conftest import ONE_MESSAGE, TOPIC, Make, both_kinds, wait_until
from .test_rules import numbers, stall_originals
from .tls_server import Authority, authority, tls_server

__all__ = ["authority"]  # a fixture

SLOW_RETRY = PublisherOptions(
    retry=Retry(
        if_exception_type(exceptions.ServiceUnavailable), initial=1e7, maximum=1e7, timeout=None
    )
)
"""Waits for months before anything is sent again; its waits are between 0 and these seconds."""


@both_kinds
def test_r16_proof_ends_the_backoff(server: PubSubServer, make: Make) -> None:
    """Forty batches wait for their retry; one that is stored brings all of them along."""
    settings = HedgingSettings(hedge_delay=10.0)
    down = FaultScript(faults=[Status("UNAVAILABLE", times=40)])
    publisher = make(ONE_MESSAGE, SLOW_RETRY, hedging_settings=settings, script=down)
    waiting = [publisher.publish(TOPIC, b"waits") for _ in range(40)]
    wait_until(lambda: len(server.attempts()) == 40)
    assert not any(future.done() for future in waiting)
    publisher.publish(TOPIC, b"proof").result(timeout=10)
    for future in waiting:
        future.result(timeout=10)
    assert len(server.attempts()) == 81
    assert publisher.hedging_stats().hedges_due == 0


@both_kinds
def test_r3_a_probe_finds_out(server: PubSubServer, make: Make) -> None:
    """Without other traffic one hedge a delay is the proof, and it costs a token."""
    down = FaultScript(faults=[Status("UNAVAILABLE", times=12)])
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=10)
    publisher = make(ONE_MESSAGE, SLOW_RETRY, hedging_settings=settings, script=down)
    waiting = [publisher.publish(TOPIC, b"waits") for _ in range(10)]
    for future in waiting:
        future.result(timeout=10)
    stats = publisher.hedging_stats()
    assert stats.hedges_won >= 1
    assert stats.hedges_sent >= 3, "two fail, as the originals did"


@both_kinds
def test_r15_pushback(server: PubSubServer, make: Make) -> None:
    """RetryInfo in the answer to a hedge: none is sent before that."""
    refused = Status("RESOURCE_EXHAUSTED", retry_after=0.75, attempts=[1])
    script = FaultScript(faults=[refused, Stall(30, attempts=[0])])
    publisher = make(tokens=5, script=script)
    publisher.publish(TOPIC, b"data").result(timeout=10)
    first, second, third = server.attempts()
    assert (first.attempt_number, second.attempt_number, third.attempt_number) == (0, 1, 2)
    assert third.arrival - second.arrival > 0.75


@both_kinds
def test_initial_tokens_and_max_hedges(server: PubSubServer, make: Make) -> None:
    """The first message of a topic is hedged, and one that stays stuck has no more copies."""
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=50, max_hedges=3)
    stuck = FaultScript(faults=[DropReply(calls=[1, 2, 3, 4])])
    publisher = make(hedging_settings=settings, script=stuck)
    future = publisher.publish(TOPIC, b"data", timeout=ConstantTimeout(1.0))
    wait_until(lambda: len(server.attempts()) == 4)
    time.sleep(0.3)
    assert numbers(server.attempts()) == [0, 1, 2, 3]
    future.result(timeout=10)


@both_kinds
def test_observing_sends_nothing(server: PubSubServer, make: Make) -> None:
    """One request a message, over one connection; the hedges that were due are counted."""
    settings = HedgingSettings(hedge_delay=0.1, observe_only=True, initial_tokens=3)
    publisher = make(hedging_settings=settings, script=FaultScript(latency=Fixed(0.35)))
    for future in [publisher.publish(TOPIC, b"data") for _ in range(4)]:
        future.result(timeout=10)
    assert numbers(server.attempts()) == [0] * 4
    assert len({attempt.peer for attempt in server.attempts()}) == 1
    stats = publisher.hedging_stats()
    assert (stats.hedges_due, stats.hedges_suppressed, stats.hedges_sent) == (4, 1, 0)


@both_kinds
def test_hedges_have_an_endpoint_of_their_own(server: PubSubServer, make: Make) -> None:
    """Originals arrive at one server, hedges at the other."""
    with PubSubServer(auto_create_topics=True) as other:
        settings = HedgingSettings(
            hedge_delay=0.1, initial_tokens=5, hedge_endpoint=f"localhost:{other.port}"
        )
        publisher = make(hedging_settings=settings, script=stall_originals())
        publisher.publish(TOPIC, b"data").result(timeout=10)
        assert numbers(server.attempts()) == [0]
        assert numbers(other.attempts())[:1] == [1]


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_an_endpoint_excludes_a_channel_of_ones_own(kind: str) -> None:
    """There is nothing to make the other channel like."""
    settings = HedgingSettings(hedge_endpoint="pubsub.googleapis.com")
    if kind == "sync":
        transport: Any = HedgedPublisher.get_transport_class("grpc")
        channel: Any = grpc.insecure_channel("127.0.0.1:1")
        with channel, pytest.raises(ValueError, match="hedge_endpoint='pubsub"):
            HedgedPublisher(hedging_settings=settings, transport=transport(channel=channel))
        return

    async def main() -> None:
        transport: Any = AsyncHedgedPublisher.get_transport_class("grpc_asyncio")
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(ValueError, match="hedge_endpoint='pubsub"):
                AsyncHedgedPublisher(
                    hedging_settings=settings, transport=transport(channel=channel)
                )

    asyncio.run(main())


# --- R13.


STOPPED = """
    import asyncio, sys, time
    from google.cloud.pubsub_v1.types import BatchSettings
    from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings

    one, topic = BatchSettings(max_messages=1), sys.argv[2]
    settings = HedgingSettings(hedge_delay=2.0, initial_tokens=50)

    def told():
        print("sent", flush=True)

    if sys.argv[1] == "sync":
        with HedgedPublisher(one, hedging_settings=settings) as publisher:
            publisher.publish(topic, b"first").result()
            futures = [publisher.publish(topic, b"data") for _ in range(50)]
            time.sleep(0.5)
            told()
            for future in futures:
                future.result()
            print(publisher.hedging_stats().hedges_due, flush=True)
    else:
        async def main():
            async with AsyncHedgedPublisher(one, hedging_settings=settings) as publisher:
                await publisher.publish(topic, b"first")
                tasks = [asyncio.ensure_future(publisher.publish(topic, b"data"))
                         for _ in range(50)]
                await asyncio.sleep(0.5)
                told()
                await asyncio.gather(*tasks)
                print(publisher.hedging_stats().hedges_due, flush=True)
        asyncio.run(main())
"""


@both_kinds
def test_r13_a_process_that_was_stopped_sends_no_hedge(server: PubSubServer, kind: str) -> None:
    """Fifty requests are answered while it is stopped by SIGSTOP; their timers are late."""
    server.set_script(FaultScript(faults=[Stall(1.0, calls=range(2, 52))]))
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(STOPPED), kind, TOPIC],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "sent\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "0\n"
        assert child.wait(20) == 0
    assert set(numbers(server.attempts())) == {0}


def test_r13_a_blocked_loop_sends_no_hedge(server: PubSubServer) -> None:
    """Half a second of somebody's computing; the answers have come long since."""
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=50)

    async def main() -> None:
        async with AsyncHedgedPublisher(ONE_MESSAGE, hedging_settings=settings) as publisher:
            await publisher.publish(TOPIC, b"first")
            before = publisher.hedging_stats().hedges_due
            tasks = [asyncio.ensure_future(publisher.publish(TOPIC, b"data")) for _ in range(10)]
            for _ in range(10):
                await asyncio.sleep(0)  # until they are sent
            wait_until(lambda: len(server.attempts()) >= 11)
            time.sleep(0.5)
            await asyncio.gather(*tasks)
            assert publisher.hedging_stats().hedges_due == before

    run(main)


# --- R14.


class SlowTokens(Credentials):
    """A token takes 1.2 seconds to fetch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refreshes = 0

    def refresh(self, _request: object) -> None:
        self.refreshes += 1
        time.sleep(1.2)
        self.token = "a-token"  # noqa: S105


def test_r14_a_token_that_takes_its_time(authority: Authority) -> None:
    """One refresh for both connections, no token of the bucket, one copy of the batch."""

    class Trusting(PublisherGrpcTransport):
        @classmethod
        def create_channel(cls, *args: Any, **kwargs: Any) -> Any:
            kwargs["ssl_credentials"] = grpc.ssl_channel_credentials(authority.root)
            return super().create_channel(*args, **kwargs)

    tokens = SlowTokens()
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=50)
    with PubSubServer(auto_create_topics=True) as server:
        with tls_server(server.address, authority) as endpoint:
            with HedgedPublisher(
                ONE_MESSAGE,
                hedging_settings=settings,
                credentials=tokens,
                transport=Trusting,
                client_options={"api_endpoint": endpoint},
            ) as publisher:
                publisher.publish(TOPIC, b"data").result(timeout=20)
                assert tokens.refreshes == 1
                assert publisher.hedging_stats().tokens == 50
                server.set_script(stall_originals())
                publisher.publish(TOPIC, b"hedged").result(timeout=20)
                assert tokens.refreshes == 1
        assert numbers(server.attempts()) == [0, 0, 1]
