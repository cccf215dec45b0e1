"""``hedged-pubsub demo``, small and real: server, both clients, output, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from hedged_pubsub._version import __version__
from tests.system.cli.command import Command, children, is_running

SMALL = ("demo", "--publishes", "200", "--rate", "200", "--stall-rate", "0.05", "--stall", "1")

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks for child processes in /proc"
)


def test_json_is_all_of_stdout_and_shows_the_tail_go(command: Command, tmp_path: Path) -> None:
    """One object on stdout; the plain client waits for the stalls, the hedged one does not."""
    plot = tmp_path / "tail.png"
    done = command.run(*SMALL, "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    plain, hedged = result["plain"], result["hedged"]
    percentiles = ["p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms"]
    assert list(plain) == [*percentiles, "requests"]
    assert list(hedged) == [
        *percentiles,
        "requests",
        "hedges_sent",
        "hedges_won",
        "hedges_suppressed",
        "duplicates",
        "extra_requests_pct",
    ]

    assert plain["requests"] == 200
    assert plain["p99_ms"] >= 1000
    assert 200 <= hedged["p99_ms"] < 1000
    for client in (plain, hedged):
        assert [client[name] for name in percentiles] == sorted(
            client[name] for name in percentiles
        )
    # About ten of the 200 stall: stored, hedged, and stored again. On a busy machine some more
    # are hedged, and cancelled before the server sees or stores them.
    assert 3 <= hedged["hedges_won"] <= hedged["hedges_sent"]
    assert 3 <= hedged["duplicates"] <= hedged["requests"] - 200 <= hedged["hedges_sent"]
    assert hedged["extra_requests_pct"] == pytest.approx((hedged["requests"] - 200) / 2)

    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stderr


def test_without_json_a_table_and_a_sentence_are_printed(command: Command) -> None:
    """A reader sees both clients, each row, and in words what it means."""
    done = command.run(*SMALL)
    assert done.returncode == 0, done.stderr
    for words in ("PublisherClient", "HedgedPublisher", "p99.9", "RPCs sent", "extra requests"):
        assert words in done.stdout
    assert "p99.9 fell from" in done.stdout
    assert "200/200" in done.stderr
    assert "200/200" not in done.stdout


@pytest.mark.slow
def test_a_frozen_connection_stops_one_client_only(command: Command, tmp_path: Path) -> None:
    """The official client gets no answer any more, ours goes on; as JSON and as a picture."""
    plot = tmp_path / "frozen.png"
    frozen = ("--fault", "frozen-connection", "--publishes", "60", "--hedge-delay", "0.1")
    done = command.run("demo", *frozen, "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    plain, hedged = result["plain"], result["hedged"]
    assert (plain["answered_before"], plain["answered_after"]) == (18, 0)
    assert (hedged["answered_before"], hedged["answered_after"]) == (18, 42)
    assert plain["settled_s"] is None
    assert hedged["settled_s"] < 2
    assert (plain["connections"], hedged["connections"]) == (1, 3)
    assert sum(period["sent"] for period in result["timeline"]) == 60
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stderr


def test_a_frozen_connection_has_no_stalls(command: Command) -> None:
    """Options of the other fault are refused rather than ignored."""
    done = command.run("demo", "--fault", "frozen-connection", "--stall", "1")
    assert done.returncode == 2
    assert "--stall-rate and --stall are of --fault stalls" in done.stderr


@linux_only
def test_ctrl_c_while_publishing_leaves_nothing_behind(command: Command) -> None:
    """Exit code 130 within seconds, no traceback, no child process, no half a result."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    # A terminal for stderr, because only there the bar shows that publishing has begun.
    process = command.start("demo", "--publishes", "9999", "--json", stderr=theirs)
    os.close(theirs)
    shown = _read_until(ours, rb"[1-9]\d*/9999")
    started = children(process.pid)
    assert started

    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    shown += _read_rest(ours)

    assert process.returncode == 130
    assert out == ""
    assert b"Traceback" not in shown
    assert b"Error" not in shown
    _assert_all_end(started)


@linux_only
def test_ctrl_c_while_the_server_starts_leaves_nothing_behind(command: Command) -> None:
    """The same when the server's process has only just been started."""
    process = command.start("demo")
    started: set[int] = set()
    while not started and process.poll() is None:
        started = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    _assert_all_end(started)


@linux_only
def test_killing_the_demo_ends_its_server(command: Command) -> None:
    """Not even SIGKILL leaves the server's process behind."""
    process = command.start("demo")
    started: set[int] = set()
    while not started and process.poll() is None:
        started = children(process.pid)
    process.kill()
    process.communicate(timeout=10)
    _assert_all_end(started)


def test_wrong_arguments_exit_with_2_and_one_line(command: Command) -> None:
    """The same from a shell as from ``main()``."""
    done = command.run("demo", "--hedge-delay", "0.05")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "hedged-pubsub demo: error: hedge_delay must be from 0.1 to 10 seconds; got 0.05\n"
    )


def test_the_operators_switch_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hedging switched off the demo would compare the official client with itself."""
    monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")
    done = command.run("demo", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "HEDGED_PUBSUB_DISABLE is set" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_proxy_in_the_environment_is_left_out(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPC would send even loopback traffic to it, and the demo would wait in vain."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    done = command.run("demo", "--publishes", "10", "--stall-rate", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hedged"]["requests"] == 10


def test_the_installed_script_is_the_same_command() -> None:
    """``hedged-pubsub`` and ``python -m hedged_pubsub`` are one."""
    script = Path(sysconfig.get_path("scripts")) / "hedged-pubsub"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"hedged-pubsub {__version__}\n"


def _read_until(descriptor: int, pattern: bytes) -> bytes:
    shown = b""
    while not re.search(pattern, shown):
        try:
            shown += os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            pytest.fail(f"the command ended before it showed {pattern!r}; it showed {shown!r}")
    return shown


def _read_rest(descriptor: int) -> bytes:
    rest = b""
    try:
        while part := os.read(descriptor, 65536):
            rest += part
    except OSError:  # closed
        pass
    os.close(descriptor)
    return rest


def _assert_all_end(processes: set[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in processes if is_running(pid)]
