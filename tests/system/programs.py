"""Programs in interpreters of their own, so that one that hangs cannot hang the tests."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest

from .conftest import complaints, run_python
from .interruptions.program import GRPC_FORKS

_PREAMBLE = """
    import atexit, concurrent.futures, faulthandler, gc, logging, os, random, signal, sys
    import threading, time
    from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings
    from google.cloud import pubsub_v1
    settings = pubsub_v1.types.BatchSettings
    topic, other = "projects/test/topics/orders", "projects/test/topics/other"
"""

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or not GRPC_FORKS,
    reason="before 1.82.1 gRPC closes every channel in a forked child",
)


def run_program(
    script: str, *, hangs: float | None = 40, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, which finds the server by the environment.

    After ``hangs`` seconds it ends with the stacks of all its threads. None is for programs that
    fork children which end by themselves: these would wait for the thread that watches.
    """
    watch = f"faulthandler.dump_traceback_later({hangs}, exit=True)\n" if hangs else ""
    program = textwrap.dedent(_PREAMBLE) + watch + textwrap.dedent(script)
    return run_python("-c", program, timeout=(hangs or 40) + 20, **environment)


def run(script: str, *, hangs: float | None = 40, noisy: bool = False) -> list[str]:
    """Return the lines that a program prints; fail unless it ends well, and complains of nothing.

    What is ``noisy`` may write to stderr.
    """
    process = run_program(script, hangs=hangs)
    assert process.returncode == 0, process.stdout + process.stderr
    complained = "" if noisy else complaints(process.stderr)
    assert complained == ""
    return process.stdout.splitlines()
