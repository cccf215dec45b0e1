"""The real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Command:
    """Starts ``hedged-pubsub`` with some arguments, as the leader of its own process group."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **popen: Any) -> subprocess.Popen[str]:
        """Start the command; stdout and stderr are pipes unless the caller says otherwise."""
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process: subprocess.Popen[str] = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "hedged_pubsub", *arguments],
            text=True,
            start_new_session=True,
            **options,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            with process:
                pass


def children(pid: int) -> set[int]:
    """The processes that a process started and that still run (Linux only)."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name is in brackets and may hold spaces; the parent is 2nd after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
