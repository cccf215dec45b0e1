"""Programs in processes of their own, with either client, against one server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

PROGRAMS = Path(__file__).parent / "programs"
TOPIC = "projects/test/topics/orders"
clients = pytest.mark.parametrize("client", ["official", "hedged"])
"""Run a test with a program that uses the official client, and with one that uses ours."""
# Lines about the machine: gRPC came, in a forked child, to a connection of its parent's.
_NOISE = re.compile(r"^(WARNING: All log messages before absl.*|.*fork.*)\n", re.MULTILINE)


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server in this process, with one topic; programs find it."""
    with PubSubServer(set_emulator_host=True) as running:
        running.create_topic(TOPIC)
        yield running


def stall_originals(server: PubSubServer, client: str) -> None:
    """Let each original be answered late, for as long as no busy machine makes a hedge wait.

    With the official client, which has no other requests, that is shorter.
    """
    seconds = 10.0 if client == "hedged" else 0.3
    server.set_script(FaultScript(faults=[Stall(seconds, attempts=[0])]))


def hedges_won(server: PubSubServer) -> bool:
    """Tell whether each original was cancelled, and hedges were answered."""
    outcomes = [(one.attempt_number == 0, one.outcome) for one in server.attempts()]
    return {outcome for is_original, outcome in outcomes if is_original} == {"cancelled"} and (
        (False, "answered") in outcomes
    )


@contextmanager
def started(client: str, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with a command; end it, and what it has started, after the block."""
    process = subprocess.Popen(  # noqa: S603 - our own programs
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, "CLIENT": client, "GRPC_VERBOSITY": "NONE", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROGRAMS,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(client: str, program: str, *arguments: str) -> tuple[list[str], str]:
    """Run a program to its end; return the lines that it printed, and what it logged."""
    with started(client, f"{program}.py", *arguments) as process:
        try:
            output, logged = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{program} hangs")
    assert process.returncode == 0, output + logged
    return output.splitlines(), _NOISE.sub("", logged)
