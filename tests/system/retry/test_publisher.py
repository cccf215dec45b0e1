"""The same object drives the publisher's retries, over real gRPC and in real time."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from google.api_core import exceptions, gapic_v1
from google.cloud import pubsub_v1

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings
from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status
from tests.system.conftest import FAST, MakePublisher

QUICK = TruncatedExponentialBackoff(maximum_backoff=0.15, deadline=5.0)
"""Every wait is cut to the maximum, so that a test takes little time."""


def options(strategy: TruncatedExponentialBackoff) -> pubsub_v1.types.PublisherOptions:
    """Make publisher options with a strategy."""
    return pubsub_v1.types.PublisherOptions(retry=strategy)


@pytest.mark.parametrize("hedging_settings", [FAST, None], ids=["hedging", "no hedging"])
@pytest.mark.parametrize("per_call", [False, True], ids=["options", "call"])
def test_it_drives_the_retries(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    hedging_settings: HedgingSettings | None,
    per_call: bool,
) -> None:
    """The original is sent again after the strategy's waits, from the options or from the call."""
    heard: list[Exception] = []
    strategy = TruncatedExponentialBackoff(0.15, 5.0, on_error=heard.append)
    arguments = {} if per_call else {"publisher_options": options(strategy)}
    publisher = make_publisher(hedging_settings=hedging_settings, tokens=0, **arguments)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))
    retry = strategy if per_call else gapic_v1.method.DEFAULT
    future = publisher.publish(topic, b"data", retry=retry)
    assert isinstance(future.result(timeout=5), str)
    attempts = server.attempts()
    assert len(attempts) == 3
    waits = [later.arrival - earlier.arrival for earlier, later in pairwise(attempts)]
    assert all(0.15 <= wait <= 0.6 for wait in waits)
    assert [type(error) for error in heard] == [exceptions.ServiceUnavailable] * 2


def test_the_formula_in_real_time(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """One failure costs a wait of 1 to 2 seconds."""
    publisher = make_publisher(publisher_options=options(TruncatedExponentialBackoff()), tokens=0)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    publisher.publish(topic, b"data").result(timeout=5)
    first, second = server.attempts()
    assert 1.0 <= second.arrival - first.arrival <= 2.5


def test_a_hedge_saves_a_batch_whose_original_waits(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The original fails late and waits at least a second; the hedge beside it is not held up."""
    strategy = TruncatedExponentialBackoff()
    publisher = make_publisher(publisher_options=options(strategy), tokens=1)
    faults = [Status("UNAVAILABLE", after=0.2, attempts=[0]), Stall(0.3, attempts=[1])]
    server.set_script(FaultScript(faults=faults))
    called = time.monotonic()
    publisher.publish(topic, b"data").result(timeout=5)
    assert time.monotonic() - called < 0.9
    assert publisher.hedging_stats().hedges_won == 1
    assert [attempt.attempt_number for attempt in server.attempts()] == [0, 1]


def test_the_deadline_ends_in_a_retry_error(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """With the last error as its cause, and no later than the deadline."""
    strategy = QUICK.with_deadline(0.5)
    publisher = make_publisher(publisher_options=options(strategy), tokens=0)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE")]))
    called = time.monotonic()
    error = publisher.publish(topic, b"data").exception(timeout=5)
    assert time.monotonic() - called < 0.9
    assert isinstance(error, exceptions.RetryError)
    assert isinstance(error.__cause__, exceptions.ServiceUnavailable)
    assert 2 <= len(server.attempts()) <= 4


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("PERMISSION_DENIED", exceptions.PermissionDenied),
        ("RESOURCE_EXHAUSTED", exceptions.ResourceExhausted),
        ("DATA_LOSS", exceptions.DataLoss),
        ("ABORTED", exceptions.Aborted),
    ],
)
def test_what_the_strategy_does_not_retry(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    code: str,
    expected: type[Exception],
) -> None:
    """It is raised at once, though the official default would retry some of these."""
    publisher = make_publisher(publisher_options=options(QUICK), tokens=0)
    server.set_script(FaultScript(faults=[Status(code)]))
    assert type(publisher.publish(topic, b"data").exception(timeout=5)) is expected
    assert len(server.attempts()) == 1


def test_too_many_requests_when_asked_for(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """RESOURCE_EXHAUSTED is retried then."""
    strategy = TruncatedExponentialBackoff(0.05, retry_too_many_requests=True)
    publisher = make_publisher(publisher_options=options(strategy), tokens=0)
    server.set_script(FaultScript(faults=[Status("RESOURCE_EXHAUSTED", times=2)]))
    assert isinstance(publisher.publish(topic, b"data").result(timeout=5), str)
    assert len(server.attempts()) == 3


@pytest.mark.usefixtures("server")
def test_the_constructor_looks_at_the_deadline(topic: str) -> None:
    """A hedge delay that is not below it is refused there, and by ``publish()``."""
    with pytest.raises(ValueError, match=r"hedge_delay \(1 s\) must be below .*\(0\.8 s\)"):
        HedgedPublisher(publisher_options=options(TruncatedExponentialBackoff(deadline=0.8)))
    with HedgedPublisher() as publisher:
        with pytest.raises(ValueError, match=r"hedge_delay \(1 s\) must be below .*\(0\.8 s\)"):
            publisher.publish(topic, b"data", retry=TruncatedExponentialBackoff(deadline=0.8))


@pytest.mark.parametrize(
    "strategy_class", [TruncatedExponentialBackoff, AsyncTruncatedExponentialBackoff]
)
def test_it_drives_the_asynchronous_publisher(
    server: PubSubServer,
    topic: str,
    strategy_class: type[TruncatedExponentialBackoff] | type[AsyncTruncatedExponentialBackoff],
) -> None:
    """Either class does, and the waits are the strategy's."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))

    async def main() -> str:
        async with AsyncHedgedPublisher(publisher_options=options(QUICK)) as publisher:
            strategy = strategy_class(maximum_backoff=0.15)
            return await publisher.publish(topic, b"data", retry=strategy)

    assert asyncio.run(main())
    attempts = server.attempts()
    assert len(attempts) == 3
    waits = [later.arrival - earlier.arrival for earlier, later in pairwise(attempts)]
    assert all(0.15 <= wait <= 0.6 for wait in waits)
