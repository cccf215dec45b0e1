"""The command, in a process of its own or in this one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hedged_pubsub.__main__ import main
from tests.system.conftest import wait_until

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks for processes, threads, memory in /proc"
)


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    def refused(self, command: str, *parts: str) -> None:
        """Check that it was refused: exit code 2 and one line, which has the parts."""
        assert (self.code, self.out) == (2, "")
        assert self.err.count("\n") == 1
        assert self.err.startswith(f"{command}: error: ")
        for part in parts:
            assert part in self.err

    def data(self) -> Any:
        """Return the object that is all of stdout, after success: one line."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run the command in this process; what it does about signals is undone."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    yield run
    for one, handler in before.items():
        signal.signal(one, handler)


class Command:
    """Starts ``hedged-pubsub`` with some arguments, as the leader of its own process group."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **popen: Any) -> subprocess.Popen[str]:
        """Start the command; stdout and stderr are pipes unless the caller says otherwise."""
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        line = [sys.executable, "-m", "hedged_pubsub", *arguments]
        process = subprocess.Popen(line, text=True, start_new_session=True, **options)  # noqa: S603
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> Done:
        """Run the command to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err
        return Done(process.returncode, out, err)

    def end(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            with process:
                process.kill()  # does nothing if it has ended


@pytest.fixture
def command() -> Iterator[Command]:
    """The command in a process of its own, ended with the test; it does not ignore Ctrl-C.

    A shell starts background jobs with SIGINT ignored, and a process passes that on to its
    children; a handler of its own it does not pass on.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = Command()
    try:
        yield command
    finally:
        command.end()
        signal.signal(signal.SIGINT, before)


def children(pid: int) -> set[int]:
    """Return the processes that a process started and that still run (Linux only)."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            # After the command's name, which is in brackets and may hold spaces.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(stat.parent.name))
    return found


def interrupt(process: subprocess.Popen[str], signum: int = signal.SIGINT) -> None:
    """Send a signal to a command; check that it and its children end in time, with one line."""
    started = children(process.pid)
    assert started
    os.killpg(process.pid, signum)
    out, err = process.communicate(timeout=10)
    code = 130 if signum == signal.SIGINT else -signum
    assert (process.returncode, out) == (code, ""), err
    assert not re.search("Traceback|Error", err)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), timeout=30)
