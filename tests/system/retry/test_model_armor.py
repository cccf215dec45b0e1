"""The strategy with a real client of Model Armor, and without, against a service that fails.

Each test runs over gRPC and REST, synchronously and with asyncio. The service and the requests are
real; only the waits between them take no time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from google.api_core import exceptions

from hedged_pubsub.server_errors import http_status, is_transient
from tests.fake_time import FakeTime

from .conftest import Sanitize
from .model_armor import Failure, ModelArmorServer


def test_a_service_that_recovers(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime
) -> None:
    """503, 503, 200: it succeeds after a wait of 1 to 2 and one of 2 to 3 seconds."""
    model_armor.fail([Failure(503), Failure(503)])
    assert sanitize() == "MATCH_FOUND"
    first, second = time.waits
    assert 1 <= first <= 2 <= second <= 3
    assert model_armor.calls == 3


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_every_transient_status(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime, status: int, times: int
) -> None:
    """However often the service fails with it, the call goes on."""
    model_armor.fail([Failure(status)] * times)
    assert sanitize() == "MATCH_FOUND"
    assert len(time.waits) == times
    assert model_armor.calls == times + 1


@pytest.mark.parametrize("status", [403, 429])
def test_other_statuses_are_raised_at_once(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime, status: int
) -> None:
    """A request that is refused is not sent again, nor is one of too many."""
    model_armor.fail([Failure(status)])
    with pytest.raises(Exception, match=r"told to fail|Client Error|Client error") as caught:
        sanitize()
    assert http_status(caught.value) == status
    assert not isinstance(caught.value, exceptions.RetryError)
    assert time.waits == []
    assert model_armor.calls == 1


def test_too_many_requests_are_retried_when_asked_for(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime
) -> None:
    """429 is like the rest then."""
    model_armor.fail([Failure(429), Failure(429)])
    assert sanitize(retry_too_many_requests=True) == "MATCH_FOUND"
    first, second = time.waits
    assert 1 <= first <= 2 <= second <= 3


def test_what_the_service_asks_for_is_waited(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime
) -> None:
    """``Retry-After`` over REST and ``RetryInfo`` over gRPC lengthen the wait."""
    model_armor.fail([Failure(503, wait=11), Failure(503)])
    assert sanitize() == "MATCH_FOUND"
    asked, formula = time.waits
    assert asked == 11
    assert 2 <= formula <= 3


def test_a_service_that_stays_down(
    sanitize: Sanitize, model_armor: ModelArmorServer, time: FakeTime
) -> None:
    """The call ends within the deadline, with the last error as the cause."""
    model_armor.fail([Failure(503)] * 100)
    start = time.now
    with pytest.raises(exceptions.RetryError) as caught:
        sanitize(deadline=60.0)
    assert http_status(caught.value.cause) == 503
    assert caught.value.__cause__ is caught.value.cause
    assert 60 - 33 < time.now - start <= 60
    assert model_armor.calls == len(time.waits) + 1 == 6


@pytest.fixture
def dead_address() -> Iterator[str]:
    """Reserve a port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


def test_a_dead_server(way: Callable[..., str], dead_address: str, time: FakeTime) -> None:
    """A server that refuses connections is one that may come back, until the deadline."""
    start = time.now
    with pytest.raises(exceptions.RetryError) as caught:
        way(dead_address, dead_address)
    assert is_transient(caught.value.cause)
    assert http_status(caught.value.cause) in {None, 503}
    assert len(time.waits) >= 10
    assert 300 - 33 < time.now - start <= 300
