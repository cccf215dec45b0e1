"""SIGTERM, as Kubernetes and Cloud Run send it: what was accepted is stored."""

from __future__ import annotations

import signal
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from hedged_pubsub import flush_on_sigterm
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from .programs import run_program

_PUBLISH = """
from hedged_pubsub import flush_on_sigterm
publisher = HedgedPublisher(settings(max_latency=60, max_messages=5), exit_timeout={exit_timeout})
for number in range(12):
    publisher.publish(topic, b"%d" % number)
"""

_PUBLISH_ASYNC = """
import asyncio
from hedged_pubsub import flush_on_sigterm
async def main():
    publisher = AsyncHedgedPublisher(settings(max_latency=60, max_messages=5))
    for number in range(12):
        await publisher.enqueue(topic, b"%d" % number)
    await wait_for_signal()
"""

# The handler there is, if any, and how the program ends with it.
_ENDINGS = {
    "by the signal": ("", -signal.SIGTERM),
    "by its handler": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7),
    "by itself": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0),
}


def terminate(server: PubSubServer, program: str, code: int, switch: str = "0") -> str:
    """Run a program, see that all its messages are stored, and return what it wrote to stderr."""
    process = run_program(textwrap.dedent(program), HEDGED_PUBSUB_DISABLE=switch)
    assert process.returncode == code, process.stderr
    assert len(server.messages()) == 12
    return process.stderr


@pytest.mark.parametrize("switch", ["0", "1"], ids=["hedged", "official"])
@pytest.mark.parametrize("ending", _ENDINGS)
def test_what_was_accepted_is_stored(server: PubSubServer, ending: str, switch: str) -> None:
    """The handler there was decides how the program ends; without one, the signal ends it."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    handler, code = _ENDINGS[ending]
    program = f"""
        {{publish}}
        {handler}
        flush_on_sigterm()
        flush_on_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)
    """
    program = textwrap.dedent(program).replace("{publish}", _PUBLISH.format(exit_timeout=10))
    terminate(server, program, code, switch)


@pytest.mark.parametrize("ending", _ENDINGS)
def test_what_was_accepted_on_a_loop_is_stored(server: PubSubServer, ending: str) -> None:
    """The signal comes while the loop sleeps, and finds it free to send."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    handler, code = _ENDINGS[ending]
    program = f"""
        {{publish}}
        async def wait_for_signal():
            {handler.replace("sys.exit(7)", "loop.call_later(1, sys.exit, 7)")}
            loop = asyncio.get_running_loop()
            flush_on_sigterm()
            loop.call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
            await asyncio.sleep(2)
        asyncio.run(main())
    """
    program = textwrap.dedent(program).replace("{publish}", _PUBLISH_ASYNC)
    terminate(server, program, code)


def test_a_loops_own_handler_is_called_too(server: PubSubServer) -> None:
    """It does not go through ``signal.signal``, so that ours does not take its place."""
    program = """
        {publish}
        async def wait_for_signal():
            told = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
            flush_on_sigterm()
            os.kill(os.getpid(), signal.SIGTERM)
            await told.wait()
            await asyncio.sleep(1)
        asyncio.run(main())
    """
    terminate(server, textwrap.dedent(program).replace("{publish}", _PUBLISH_ASYNC), 0)


@pytest.mark.parametrize("switch", ["0", "1"], ids=["hedged", "official"])
def test_the_wait_is_bounded_and_what_is_lost_is_counted(server: PubSubServer, switch: str) -> None:
    """A service that does not answer holds the end up as long as was set."""
    server.set_script(FaultScript(faults=[Stall(300)]))
    program = """
        flush_on_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
    """
    process = run_program(
        _PUBLISH.format(exit_timeout=0.5) + textwrap.dedent(program), HEDGED_PUBSUB_DISABLE=switch
    )
    assert process.returncode == -signal.SIGTERM
    if switch == "0":
        assert "12 messages were not stored" in process.stderr


def test_a_signal_that_comes_while_others_publish(server: PubSubServer) -> None:
    """Wherever it interrupts, what was accepted by then is stored."""
    program = """
        from hedged_pubsub import flush_on_sigterm
        accepted = 0
        publisher = HedgedPublisher()
        flush_on_sigterm()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            publisher.publish(topic, b"data")
            accepted += 1
            os.write(1, b".")
    """
    process = run_program(program)
    assert process.returncode == -signal.SIGTERM, process.stderr
    assert len(server.messages()) >= len(process.stdout) > 0


@pytest.mark.usefixtures("server")
def test_it_is_called_in_the_main_thread() -> None:
    """Only there a handler can be set."""
    with ThreadPoolExecutor() as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(flush_on_sigterm).result()
