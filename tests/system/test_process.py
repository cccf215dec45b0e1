"""The end of the interpreter, and forks: nothing that was accepted is lost or sent twice."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import grpc
import pytest

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

_PREAMBLE = """
    import atexit, os, sys, threading, time
    from hedged_pubsub import HedgedPublisher, HedgingSettings
    from google.cloud import pubsub_v1
    settings = pubsub_v1.types.BatchSettings
    topic = "projects/test/topics/orders"
"""

_GRPC_FORKS = tuple(int(part) for part in grpc.__version__.split(".")[:3]) >= (1, 82, 1)

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or not _GRPC_FORKS,
    reason="before 1.82.1 gRPC closes every channel in a forked child",
)


def run(
    script: str, *, timeout: float = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own; it finds the server by the variable."""
    program = textwrap.dedent(_PREAMBLE) + textwrap.dedent(script)
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_clean(process: subprocess.CompletedProcess[str]) -> None:
    """Fail unless the program ended well and had nothing to complain about."""
    assert (process.returncode, process.stderr) == (0, "")


def stored(server: PubSubServer) -> list[bytes]:
    """Return what the server stored, sorted."""
    return sorted(message.data for message in server.messages())


@pytest.mark.parametrize(
    "ending",
    ["", "publisher.stop()", "del publisher", "sys.exit(0)", "publisher.publish(topic, b'19')"],
)
def test_exit_right_after_publish(server: PubSubServer, topic: str, ending: str) -> None:
    """A program that publishes and ends has published, however it ends."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    process = run(
        f"""
        publisher = HedgedPublisher(settings(max_latency=0.05, max_messages=7))
        for number in range(19):
            publisher.publish(topic, b"%02d" % number)
        {ending}
        """
    )
    assert_clean(process)
    assert len(stored(server)) == (20 if "19" in ending else 19)
    assert len(set(stored(server))) == len(stored(server))


def test_exit_with_a_batch_that_would_wait_long(server: PubSubServer, topic: str) -> None:
    """An open batch is sent at once, not after its latency."""
    start = time.monotonic()
    assert_clean(
        run(
            """
            publisher = HedgedPublisher(settings(max_latency=float("inf")))
            publisher.publish(topic, b"first")
            other = HedgedPublisher(settings(max_latency=3600))
            other.publish(topic, b"second")
            """
        )
    )
    assert time.monotonic() - start < 10
    assert stored(server) == [b"first", b"second"]


def test_exit_retries_and_hedges(server: PubSubServer, topic: str) -> None:
    """What is on its way when the program ends is still retried."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))
    assert_clean(
        run(
            """
            publisher = HedgedPublisher(settings(max_latency=60))
            publisher.publish(topic, b"data")
            """
        )
    )
    assert stored(server) == [b"data"]
    assert len(server.attempts()) == 3


def test_exit_runs_callbacks(server: PubSubServer, topic: str) -> None:
    """Done-callbacks of what is sent at the end are called."""
    process = run(
        """
        publisher = HedgedPublisher(settings(max_latency=60))
        publisher.publish(topic, b"data").add_done_callback(lambda f: print("id", f.result()))
        """
    )
    assert_clean(process)
    assert process.stdout.startswith("id ")


@pytest.mark.parametrize("latency", [0.0, 60.0])
def test_exit_waits_a_bounded_time_and_counts_what_is_lost(
    server: PubSubServer, topic: str, latency: float
) -> None:
    """A service that does not answer holds the exit up as long as was set, and not longer."""
    server.set_script(FaultScript(faults=[Stall(30)]))
    process = run(
        f"""
        publisher = HedgedPublisher(settings(max_latency={latency}), exit_timeout=0.5)
        for number in range(3):
            publisher.publish(topic, b"data")
        time.sleep(0.2)
        atexit.register(lambda: print(time.monotonic() - start))
        atexit.register(lambda: None)
        start = time.monotonic()
        """
    )
    assert process.returncode == 0
    assert process.stderr.count("3 messages were not stored when the interpreter ended") == 1
    assert "Traceback" not in process.stderr


def test_exit_timeout_zero_does_not_wait(server: PubSubServer, topic: str) -> None:
    """With 0 the batch is sent and nobody waits for the answer."""
    server.set_script(FaultScript(faults=[Stall(30)]))
    start = time.monotonic()
    process = run(
        """
        publisher = HedgedPublisher(settings(max_messages=1), exit_timeout=0)
        publisher.publish(topic, b"data")
        """
    )
    assert time.monotonic() - start < 10
    assert "1 messages were not stored" in process.stderr


def test_a_failed_publish_at_exit_is_no_traceback(server: PubSubServer, topic: str) -> None:
    """A message that the service refuses at the very end fails its future, quietly."""
    assert_clean(
        run(
            """
            publisher = HedgedPublisher(settings(max_latency=60))
            publisher.publish("projects/test/topics/missing", b"data")
            """
        )
    )


def test_publishing_during_shutdown_is_a_clear_error(server: PubSubServer, topic: str) -> None:
    """After the last flush nothing is accepted; before it, exit handlers can publish."""
    process = run(
        """
        def too_late():
            try:
                publisher.publish(topic, b"late")
            except RuntimeError as error:
                print(error)
        atexit.register(too_late)
        from hedged_pubsub._sync import process
        atexit.unregister(process.send_before_exit)
        atexit.register(process.send_before_exit)
        atexit.register(lambda: publisher.publish(topic, b"in time"))
        publisher = HedgedPublisher(settings(max_latency=60))
        publisher.publish(topic, b"data").add_done_callback(lambda _: None)
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "Cannot publish while the interpreter shuts down."
    assert stored(server) == [b"data", b"in time"]


def test_an_unused_publisher_does_not_hold_up_the_exit(server: PubSubServer, topic: str) -> None:
    """Nothing is sent and nothing waited for."""
    assert_clean(run("publisher = HedgedPublisher()"))
    assert server.attempts() == ()


@pytest.mark.parametrize("value", ["1", True, None, float("nan"), -1, float("inf")], ids=repr)
@pytest.mark.usefixtures("server")
def test_exit_timeout_is_checked(value: object) -> None:
    """A value that is no number of seconds, or none that can be waited, is refused."""
    from typing import cast

    from hedged_pubsub import HedgedPublisher

    with pytest.raises((TypeError, ValueError), match="exit_timeout must be"):
        HedgedPublisher(exit_timeout=cast("float", value))


@needs_fork
def test_fork_before_use(server: PubSubServer, topic: str) -> None:
    """A publisher made in the parent and first used in the children works in each."""
    process = run(
        """
        publisher = HedgedPublisher()
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                publisher.publish(topic, b"child %d" % number).result(timeout=10)
                os._exit(0)
            children.append(child)
        publisher.publish(topic, b"parent").result(timeout=10)
        print([os.waitpid(child, 0)[1] for child in children])
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "[0, 0, 0]"
    assert stored(server) == [b"child 0", b"child 1", b"child 2", b"parent"]


@needs_fork
def test_fork_with_everything_under_way(server: PubSubServer, topic: str) -> None:
    """Open batch, running timer, pending hedge: the parent sends its batches once, the child its.

    In the child the copies of the parent's futures fail at once and say why.
    """
    server.set_script(FaultScript(faults=[Stall(30, calls=[21])]))
    process = run(
        """
        publisher = HedgedPublisher(
            settings(max_messages=1), hedging_settings=HedgingSettings(3)
        )
        for number in range(20):
            publisher.publish(topic, b"warm-up").result(timeout=10)
        slow = HedgedPublisher(settings(max_latency=3))
        stalled = publisher.publish(topic, b"stalled")
        waiting = slow.publish(topic, b"waiting")
        time.sleep(0.05)
        child = os.fork()
        if not child:
            for future in (stalled, waiting):
                error = future.exception(timeout=1)
                assert "its parent sends it" in str(error), error
            assert publisher.hedging_stats().batches == 0
            first = publisher.publish(topic, b"child 1")
            second = slow.publish(topic, b"child 2")
            first.result(timeout=10), second.result(timeout=10)
            slow.flush(timeout=10)
            os._exit(7)
        stalled.result(timeout=10), waiting.result(timeout=10)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "7"
    once = [data for data in stored(server) if data != b"warm-up"]
    assert once == [b"child 1", b"child 2", b"stalled", b"waiting"]


@needs_fork
def test_fork_while_other_threads_publish(server: PubSubServer, topic: str) -> None:
    """Whatever locks other threads hold at the moment of the fork, the children can publish."""
    process = run(
        """
        publisher = HedgedPublisher(settings(max_messages=5, max_latency=0.001))
        stop = threading.Event()
        def publish():
            while not stop.is_set():
                publisher.publish(topic, b"parent").result(timeout=10)
        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        results = []
        for number in range(15):
            time.sleep(0.01)
            child = os.fork()
            if not child:
                publisher.publish(topic, b"child").result(timeout=10)
                os._exit(0)
            results.append(os.waitpid(child, 0)[1])
        stop.set()
        for thread in threads:
            thread.join()
        print(results)
        """,
        timeout=60,
    )
    assert_clean(process)
    assert process.stdout.strip() == str([0] * 15)
    assert stored(server).count(b"child") == 15


@needs_fork
def test_fork_with_flow_control(server: PubSubServer, topic: str) -> None:
    """Credit that the parent's messages hold is not missing in the child."""
    server.set_script(FaultScript(faults=[Stall(0.5, calls=[1])]))
    process = run(
        """
        flow = pubsub_v1.types.PublishFlowControl(
            message_limit=1,
            limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
        )
        publisher = HedgedPublisher(
            settings(max_messages=1), pubsub_v1.types.PublisherOptions(flow_control=flow)
        )
        future = publisher.publish(topic, b"parent")
        child = os.fork()
        if not child:
            publisher.publish(topic, b"child").result(timeout=0.4)
            os._exit(0)
        future.result(timeout=10)
        print(os.waitpid(child, 0)[1])
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "0"


@needs_fork
@pytest.mark.parametrize("make", ["before the fork", "in the child"])
def test_multiprocessing_children_send_what_they_accepted(
    server: PubSubServer, topic: str, make: str
) -> None:
    """A child of ``multiprocessing`` that returns right after publish has published."""
    process = run(
        f"""
        import multiprocessing
        publisher = HedgedPublisher(settings(max_latency=60)) if "fork" in {make!r} else None
        def work(number):
            own = publisher or HedgedPublisher(settings(max_latency=60))
            own.publish(topic, b"child %d" % number)
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print([child.exitcode for child in children])
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "[0, 0]"
    assert stored(server) == [b"child 0", b"child 1"]


@needs_fork
def test_process_pool(server: PubSubServer, topic: str) -> None:
    """A publisher works in the workers of a process pool, used before in the parent."""
    process = run(
        """
        import concurrent.futures, multiprocessing
        publisher = HedgedPublisher()
        publisher.publish(topic, b"parent").result(timeout=10)
        def work(number):
            return publisher.publish(topic, b"child").result(timeout=10)
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            print(len(set(pool.map(work, range(10)))))
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "10"
    assert stored(server).count(b"child") == 10


@needs_fork
def test_prefork_server(server: PubSubServer, topic: str) -> None:
    """As under gunicorn: made and used before the fork, then in workers that exit in the end."""
    process = run(
        """
        import signal
        publisher = HedgedPublisher(settings(max_latency=0.05))
        publisher.publish(topic, b"preload").result(timeout=10)
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                for request in range(5):
                    publisher.publish(topic, b"worker %d request %d" % (number, request))
                signal.pause()
            children.append(child)
        time.sleep(0.02)
        for child in children:
            time.sleep(0.5)
            os.kill(child, signal.SIGTERM)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        """
    )
    assert_clean(process)
    assert process.stdout.strip() == "[0, 0, 0]"
    assert len(stored(server)) == len(set(stored(server))) == 16


@needs_fork
def test_fork_with_two_connections(server: PubSubServer, topic: str) -> None:
    """Parent and child hedge on, each on two connections of its own."""
    server.set_script(FaultScript(faults=[Stall(5, calls=[11, 23, 35])]))
    process = run(
        """
        def hedged():
            # Ten successes are the token; then a request stalls, and its hedge does not.
            for _ in range(10):
                publisher.publish(topic, b"token").result(10)
            before = publisher.hedging_stats().hedges_won
            publisher.publish(topic, b"stall").result(10)
            assert publisher.hedging_stats().hedges_won == before + 1

        publisher = HedgedPublisher(settings(max_messages=1), hedging_settings=HedgingSettings(0.1))
        hedged()
        child = os.fork()
        if not child:
            hedged()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        hedged()
        """
    )
    assert_clean(process)
    by_peer: dict[str, set[int]] = {}
    for attempt in server.attempts():
        by_peer.setdefault(attempt.peer, set()).add(attempt.attempt_number or 0)
    assert sorted(sorted(numbers) for numbers in by_peer.values()) == [[0], [0], [1], [1]]
