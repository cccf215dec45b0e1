"""``hedged-pubsub demo`` and ``serve``, small and real: output, exit codes, a clean end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub._version import __version__
from hedged_pubsub.testing import PubSubServer
from tests.system.cli.command import Command, Run, children, interrupt, linux_only

# A small bucket is filled sooner.
SMALL = ("demo", "--max-tokens", "10", "--rate", "200")


def test_json_is_all_of_stdout_and_shows_the_tail_go(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One object on stdout; the plain client waits for the stalls, the hedged one does not.

    The table has its tests in the documentation. gRPC does not ask a proxy for loopback.
    """
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    plot = tmp_path / "tail.png"
    stalls = ("--publishes", "100", "--stall-rate", "0.05", "--stall", "1", "--json")
    done = command.run(*SMALL, *stalls, "--plot", str(plot))
    result = done.data()
    plain, hedged = result["plain"], result["hedged"]
    assert plain["requests"] == 100
    assert plain["p99_ms"] >= 1000
    assert 200 <= hedged["p99_ms"] < 1000
    # About five of the 100 stall: stored, hedged, and stored again. On a busy machine some more
    # are hedged, and cancelled before the server sees or stores them.
    assert 2 <= hedged["hedges_won"] <= hedged["hedges_sent"]
    assert 2 <= hedged["duplicates"] <= hedged["requests"] - 100 <= hedged["hedges_sent"]
    assert hedged["extra_requests_pct"] == hedged["requests"] - 100
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "100/100" not in done.err, "progress is for terminals"


@pytest.mark.slow
def test_a_frozen_connection_stops_one_client_only(command: Command, tmp_path: Path) -> None:
    """The official client gets no answer any more, ours goes on; as JSON and as a picture."""
    plot = tmp_path / "frozen.png"
    frozen = ("--fault", "frozen-connection", "--publishes", "60", "--hedge-delay", "0.1")
    done = command.run("demo", *frozen, "--json", "--plot", str(plot))
    result = done.data()
    plain, hedged = result["plain"], result["hedged"]
    assert (plain["answered_before"], plain["answered_after"]) == (18, 0)
    assert (hedged["answered_before"], hedged["answered_after"]) == (18, 42)
    assert plain["settled_s"] is None
    assert hedged["settled_s"] < 2
    assert (plain["connections"], hedged["connections"]) == (1, 3)
    assert sum(period["sent"] for period in result["timeline"]) == 60
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_outage_ends_at_once_for_one_client(command: Command, tmp_path: Path) -> None:
    """All of ours are stored soon after the server is back; the official ones wait on."""
    plot = tmp_path / "outage.png"
    outage = ("--fault", "outage", "--publishes", "160", "--hedge-delay", "0.5")
    done = command.run("demo", *outage, "--json", "--plot", str(plot))
    result = done.data()
    plain, hedged = result["plain"], result["hedged"]
    assert (hedged["answered_before"], hedged["answered_after"]) == (48, 112)
    assert hedged["slowest_after_ms"] < 10_000
    assert plain["answered_after"] < 112
    assert plot.read_bytes().startswith(b"\x89PNG")


@linux_only
def test_ctrl_c_while_publishing_leaves_nothing_behind(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130 within seconds, no traceback, no child process, no half a result."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # or the bar would not show that publishing has begun
    process = command.start(*SMALL, "--publishes", "9999", "--json")
    shown = ""
    while not re.search(r"[1-9]\d*/9999", re.sub(r"\x1b\[[\d;]*m", "", shown)):
        assert process.stderr is not None
        shown += process.stderr.read(1)
        assert process.poll() is None, shown
    assert "Traceback" not in shown
    interrupt(process)


@linux_only
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_ends_while_its_server_starts_leaves_nothing_behind(
    command: Command, ending: signal.Signals
) -> None:
    """Not even SIGKILL leaves the server's process behind; Ctrl-C is told without a traceback."""
    process = command.start("demo")
    while not children(process.pid) and process.poll() is None:
        pass
    interrupt(process, ending)


def test_the_help_needs_no_grpc() -> None:
    """It is there at once, and Ctrl-C is told without a traceback while the rest is imported."""
    program = "from hedged_pubsub.__main__ import main; main(['demo', '--help']); import sys\n"
    program += "assert not {'grpc', 'google.cloud', 'rich', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def test_the_installed_script_is_the_same_command() -> None:
    """``hedged-pubsub`` and ``python -m hedged_pubsub`` are one, with the same exit codes."""
    script = Path(sysconfig.get_path("scripts")) / "hedged-pubsub"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"hedged-pubsub {__version__}\n"
    done = subprocess.run([script, "frob"], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


# --- The server in the foreground.


@pytest.mark.parametrize(
    ("options", "ending"),
    [("--stall-rate 1 --stall 0.3 --seed 3", signal.SIGINT), ("--latency 0.3", signal.SIGTERM)],
)
def test_serves_the_official_client_until_a_signal(
    command: Command, monkeypatch: pytest.MonkeyPatch, options: str, ending: signal.Signals
) -> None:
    """Topics appear when they are published to, faults on demand; the end says what was served."""
    process = command.start("serve", "--port", "0", *options.split())
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"export PUBSUB_EMULATOR_HOST=(127\.0\.0\.1:\d+)\n", line)
    assert found, line
    assert [process.stdout.readline() for _ in range(2)] == [
        f"set -gx PUBSUB_EMULATOR_HOST {found[1]}  # fish\n",
        f'$env:PUBSUB_EMULATOR_HOST = "{found[1]}"  # PowerShell\n',
    ]
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", found[1])
    with pubsub_v1.PublisherClient() as client:
        start = time.monotonic()
        assert client.publish("projects/test/topics/orders", b"one").result(timeout=10)
    assert time.monotonic() - start >= 0.3
    process.send_signal(ending)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "")
    assert err == "Served 1 publish request; 1 message was stored.\n"


def test_a_port_in_use_is_one_clear_line(run: Run) -> None:
    """The line names the port and what to do."""
    with PubSubServer() as server:
        port = server.address.rpartition(":")[2]
        done = run("serve", "--port", port)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert port in done.err
    assert "--port 0" in done.err
