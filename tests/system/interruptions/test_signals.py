"""Real signals: time limits, Ctrl-C, and handlers that call the publisher they interrupt."""

from __future__ import annotations

import os

import pytest

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer

from ..conftest import run_python
from ..programs import run
from . import fuzz

_COUNT = os.environ.get("HEDGED_PUBSUB_INTERRUPTIONS", "60")
"""How many publishers are interrupted; 2,000 before a release."""


@pytest.mark.slow
def test_interrupted_publishers_are_not_broken() -> None:
    """After a signal at a random time the publisher works, and has stored what it accepted."""
    # 0.3 s each, and a start.
    process = run_python("-m", fuzz.__name__, _COUNT, timeout=30 + 0.3 * int(_COUNT))
    assert process.stdout == f"{_COUNT} interrupted, 0 broken\n", process.stderr
    assert process.returncode == 0


def test_a_time_limit_while_publish_waits_for_room(server: PubSubServer) -> None:
    """The limit comes out of ``publish()`` when it strikes, however often, and no room is lost."""
    server.set_script(FaultScript(latency=Fixed(0.4)))
    lines = run(
        """
        class TimeLimitError(Exception):
            pass
        def strike(*_):
            raise TimeLimitError
        signal.signal(signal.SIGALRM, strike)
        flow = pubsub_v1.types.PublishFlowControl(
            message_limit=2,
            limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
        )
        options = pubsub_v1.types.PublisherOptions(flow_control=flow)
        with HedgedPublisher(settings(max_messages=1), options) as publisher:
            futures = [publisher.publish(topic, b"data") for _ in range(2)]
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                try:
                    publisher.publish(topic, b"late")
                except TimeLimitError:
                    print("limit", any(future.done() for future in futures))
            futures += [publisher.publish(topic, b"data") for _ in range(2)]
            print(len({future.result(timeout=5) for future in futures}))
        """
    )
    assert lines == ["limit False"] * 5 + ["4"]
    assert [message.data for message in server.messages()] == [b"data"] * 4


def test_a_handler_that_drains_a_busy_publisher(server: PubSubServer) -> None:
    """The usual handler ends, wherever in a loop of publishes it was called."""
    lines = run(
        """
        def drain(*_):
            publisher.hedging_stats()
            call()
            ended.append(True)
            raise SystemExit
        signal.signal(signal.SIGALRM, drain)
        calls = {
            "close": lambda: publisher.close(),
            "flush": lambda: publisher.flush(),
            "publish": lambda: publisher.publish(topic, b"last"),
        }
        published = 0
        for number in range(30):
            gc.collect()  # Python drops what a handler raises in a finalizer: fewer of those.
            call = list(calls.values())[number % 3]
            accepted, ended = [], []
            publisher = HedgedPublisher(settings(max_messages=50, max_latency=0.005))
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.003))
            try:
                while not ended:
                    accepted.append(publisher.publish(topic, b"data"))
            except SystemExit:
                pass
            except RuntimeError:  # it was closed, and the handler's own exception was dropped
                assert ended
            publisher.close()
            assert {future.exception(timeout=5) for future in accepted} <= {None}
            published += len(accepted)
        print(published)
        """
    )
    (published,) = lines
    # Each time the handler may have struck between a publish and the noting of its future.
    assert int(published) <= len(server.messages()) <= int(published) + 30 + 10
