"""The end of the interpreter, and forks: nothing that was accepted is lost or sent twice."""

from __future__ import annotations

from typing import Any

import pytest

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from .programs import needs_fork, run, run_program


def stored(server: PubSubServer) -> list[bytes]:
    """Return what the server stored, sorted."""
    return sorted(message.data for message in server.messages())


@pytest.mark.parametrize(
    "ending", ["publisher.stop(); del publisher", "sys.exit(0)", "publisher.publish(topic, b'19')"]
)
def test_exit_right_after_publish(server: PubSubServer, ending: str) -> None:
    """A program that publishes and ends has published, however it ends."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    run(
        f"""
        publisher = HedgedPublisher(settings(max_latency=0.05, max_messages=7))
        for number in range(19):
            publisher.publish(topic, b"%02d" % number)
        {ending}
        """
    )
    assert stored(server) == [b"%02d" % number for number in range(20 if "19" in ending else 19)]


def test_exit_sends_what_is_open_and_retries(server: PubSubServer) -> None:
    """Open batches are sent at once, not after their latency; they are retried as ever.

    Done-callbacks are called; a message that is refused at the very end is no traceback; and a
    publisher that was never used holds nothing up.
    """
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2, topic="orders")]))
    lines = run(
        """
        unused = HedgedPublisher()
        publisher = HedgedPublisher(settings(max_latency=float("inf")))
        publisher.publish(topic, b"first").add_done_callback(lambda f: print("id", f.result()))
        other = HedgedPublisher(settings(max_latency=3600))
        other.publish(topic, b"second")
        refused = other.publish("projects/test/topics/missing", b"data")
        refused.add_done_callback(lambda f: print(type(f.exception()).__name__))
        """
    )
    assert sorted(line.partition(" ")[0] for line in lines) == ["NotFound", "id"]
    assert stored(server) == [b"first", b"second"]
    assert len(server.attempts("orders")) == 4


def test_what_fails_at_the_very_end_is_told(server: PubSubServer) -> None:
    """Nobody can ask for it any more: there is a line."""
    process = run_program(
        """
        publisher = HedgedPublisher(settings(max_latency=3600))
        publisher.publish("projects/test/topics/missing", b"data")
        """
    )
    assert process.returncode == 0
    assert "1 messages have failed, and nobody has asked" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(("latency", "exit_timeout"), [(0.0, 0.5), (60.0, 0)])
def test_exit_waits_a_bounded_time_and_counts_what_is_lost(
    server: PubSubServer, latency: float, exit_timeout: float
) -> None:
    """A service that does not answer holds the exit up as long as was set, and not longer."""
    server.set_script(FaultScript(faults=[Stall(300)]))
    process = run_program(
        f"""
        publisher = HedgedPublisher(settings(max_latency={latency}), exit_timeout={exit_timeout})
        for number in range(3):
            publisher.publish(topic, b"data")
        time.sleep(0.2)
        """
    )
    assert process.returncode == 0
    assert process.stderr.count("3 messages were not stored when the interpreter ended") == 1
    assert "Traceback" not in process.stderr


def test_publishing_during_shutdown_is_a_clear_error(server: PubSubServer) -> None:
    """After the last flush nothing is accepted; before it, exit handlers can publish."""
    lines = run(
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
    assert lines == ["Cannot publish while the interpreter shuts down."]
    assert stored(server) == [b"data", b"in time"]


@pytest.mark.parametrize("value", ["1", True, None, float("nan"), -1, float("inf")], ids=repr)
@pytest.mark.usefixtures("server")
def test_exit_timeout_is_checked(value: Any) -> None:
    """A value that is no number of seconds, or none that can be waited, is refused."""
    with pytest.raises((TypeError, ValueError), match="exit_timeout must be"):
        HedgedPublisher(exit_timeout=value)


@needs_fork
def test_fork_with_everything_under_way(server: PubSubServer) -> None:
    """Open batch, running timer, pending hedge: the parent sends its batches once, the child its.

    In the child the copies of the parent's futures fail at once and say why, and the room that the
    parent's messages take is not missing.
    """
    server.set_script(FaultScript(faults=[Stall(30, calls=[21])]))
    lines = run(
        """
        flow = pubsub_v1.types.PublishFlowControl(
            message_limit=1,
            limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
        )
        publisher = HedgedPublisher(
            settings(max_messages=1),
            pubsub_v1.types.PublisherOptions(flow_control=flow),
            hedging_settings=HedgingSettings(1.5),
        )
        for number in range(20):
            publisher.publish(topic, b"warm-up").result(timeout=10)
        slow = HedgedPublisher(settings(max_latency=1.5))
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
    assert lines == ["7"]
    once = [data for data in stored(server) if data != b"warm-up"]
    assert once == [b"child 1", b"child 2", b"stalled", b"waiting"]


@needs_fork
def test_fork_while_other_threads_publish(server: PubSubServer) -> None:
    """Whatever locks other threads hold at the moment of the fork, the children can publish."""
    lines = run(
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
        """
    )
    assert lines == [str([0] * 15)]
    assert stored(server).count(b"child") == 15


@needs_fork
def test_multiprocessing(server: PubSubServer) -> None:
    """A child of ``multiprocessing`` that returns right after publish has published.

    So it does with a publisher of its own; and the parent's works in the workers of a pool.
    """
    lines = run(
        """
        import concurrent.futures, multiprocessing
        publisher = HedgedPublisher(settings(max_latency=60))
        def work(number):
            own = publisher if number else HedgedPublisher(settings(max_latency=60))
            own.publish(topic, b"child %d" % number)
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(number,)) for number in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print([child.exitcode for child in children])

        pooled = HedgedPublisher()
        pooled.publish(topic, b"parent").result(timeout=10)
        def work_in_pool(number):
            return pooled.publish(topic, b"pooled").result(timeout=10)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            print(len(set(pool.map(work_in_pool, range(10)))))
        """
    )
    assert lines == ["[0, 0, 0]", "10"]
    pooled = [b"parent"] + [b"pooled"] * 10
    assert stored(server) == [b"child 0", b"child 1", b"child 2", *pooled]


@needs_fork
def test_prefork_server(server: PubSubServer) -> None:
    """As under gunicorn: made before the fork, then used in workers that exit in the end.

    One publisher was used before, too, and another one is only now; both work in each process.
    """
    lines = run(
        """
        import signal
        publisher = HedgedPublisher(settings(max_latency=0.05))
        publisher.publish(topic, b"preload").result(timeout=10)
        unused = HedgedPublisher()
        ready, tell = os.pipe()
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                unused.publish(topic, b"first of worker %d" % number).result(timeout=10)
                for request in range(5):
                    publisher.publish(topic, b"worker %d request %d" % (number, request))
                os.write(tell, b"1")
                while True:  # signal.pause() would miss a signal that came just before it
                    time.sleep(0.01)
            children.append(child)
        unused.publish(topic, b"parent").result(timeout=10)
        for _ in children:
            os.read(ready, 1)
        for child in children:
            os.kill(child, signal.SIGTERM)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        """,
        hangs=None,
    )
    assert lines == ["[0, 0, 0]"]
    assert len(stored(server)) == len(set(stored(server))) == 20


@needs_fork
def test_fork_with_two_connections(server: PubSubServer) -> None:
    """Parent and child hedge on, each on two connections of its own."""
    server.set_script(FaultScript(faults=[Stall(60, attempts=[0], calls=[11, 23, 35])]))
    run(
        """
        def hedged():
            # Ten successes are the token; then a request stalls, and its hedge does not.
            for _ in range(10):
                publisher.publish(topic, b"token").result(10)
            before = publisher.hedging_stats().hedges_won
            publisher.publish(topic, b"stall").result(10)
            assert publisher.hedging_stats().hedges_won == before + 1

        publisher = HedgedPublisher(settings(max_messages=1), hedging_settings=HedgingSettings(0.5))
        hedged()
        child = os.fork()
        if not child:
            hedged()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        hedged()
        """,
        hangs=None,
    )
    by_peer: dict[str, set[int]] = {}
    for attempt in server.attempts():
        by_peer.setdefault(attempt.peer, set()).add(attempt.attempt_number or 0)
    assert sorted(sorted(numbers) for numbers in by_peer.values()) == [[0], [0], [1], [1]]


@needs_fork
def test_fork_again_and_again_with_requests_under_way(server: PubSubServer) -> None:
    """It waits for no request, and each child works, ends, and leaves the parent's alone.

    Other channels of the process are idle meanwhile; hedges are under way.
    """
    server.set_script(FaultScript(faults=[Stall(1.5, topic="other")]))
    server.create_topic("projects/test/topics/other")
    lines = run(
        """
        publisher = HedgedPublisher(
            settings(max_messages=1),
            hedging_settings=HedgingSettings(0.1, initial_tokens=3),
        )
        publisher.publish(topic, b"parent").result(timeout=10)
        official = pubsub_v1.PublisherClient()
        official.publish(topic, b"parent").result(timeout=10)
        futures, results, took = [], [], []
        for number in range(5):
            futures += [publisher.publish(other, b"%d %d" % (number, one)) for one in range(3)]
            time.sleep(0.15)
            start = time.monotonic()
            child = os.fork()
            if not child:
                publisher.publish(topic, b"child").result(timeout=10)
                if number == 0:
                    sys.exit(0)  # through all finalizers
                publisher.transport.close()
                os._exit(0)
            took.append(time.monotonic() - start)
            results.append(os.waitpid(child, 0)[1])
        print(results)
        assert sorted(took)[2] < 0.2, took  # gRPC's own way takes 0.9 s
        for future in futures:
            future.result(timeout=10)
        publisher.close(timeout=10)
        """,
        hangs=None,
    )
    assert lines == [str([0] * 5)]
    assert stored(server).count(b"child") == 5
    assert {data for data in stored(server) if b" " in data} == {
        b"%d %d" % (number, one) for number in range(5) for one in range(3)
    }


_UNDER_WAY = {
    "a channel of ours that was given": """
        publisher = HedgedPublisher(
            settings(max_messages=1), transport=PublisherGrpcTransport(channel=channel)
        )
        publisher.publish(other, b"parent")
    """,
    "a channel of others": """
        publisher = HedgedPublisher(settings(max_messages=1))
        method = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        request = types.PublishRequest(topic=other, messages=[types.PubsubMessage(data=b"data")])
        call = method.future(types.PublishRequest.serialize(request))
    """,
}


@needs_fork
@pytest.mark.parametrize("case", _UNDER_WAY)
@pytest.mark.parametrize("support", [{}, {"GRPC_ENABLE_FORK_SUPPORT": "1"}], ids=len)
def test_a_child_that_cannot_use_grpc_says_so(
    server: PubSubServer, case: str, support: dict[str, str]
) -> None:
    """It does not hang. With gRPC's own fork support, which a user may turn on, it can."""
    server.set_script(FaultScript(faults=[Stall(2, topic="other")]))
    server.create_topic("projects/test/topics/other")
    process = run_program(
        """
        import grpc
        from google.pubsub_v1 import types
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        """
        + _UNDER_WAY[case]
        + """
        time.sleep(0.3)
        child = os.fork()
        if not child:
            try:
                publisher.publish(topic, b"child").result(timeout=10)
            except RuntimeError as error:
                print(error, flush=True)
            publisher.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        publisher.publish(topic, b"later").result(timeout=10)
        publisher.close()
        """,
        hangs=None,
        **support,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert ("GRPC_ENABLE_FORK_SUPPORT=1" in process.stdout) is (not support)
    assert (b"child" in stored(server)) is bool(support)
