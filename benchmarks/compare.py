"""Compare the speed of two checkouts of this project, with the official client in the same run.

    python benchmarks/compare.py --old /path/to/checkout [--new .]

Each round starts a fresh process for the official client, one for the old and one for the new
publisher, and lets them do the same work in turns of a tenth of a second or two, so that all three
meet the same mood of the machine. A ratio is taken turn by turn, and that of a round is their
median; the table shows the median of the rounds, and the smallest and the largest. Compare a
checkout with itself to learn how far a ratio is from 1 by chance.

CPU time is that of the client's process alone, gRPC's threads included. The server runs in another
process. With HEDGED_PUBSUB_DISABLE=1 in the environment, both checkouts run with hedging off.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

# The server, and nothing that is measured, comes from the checkout that this file is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from hedged_pubsub._google.options import is_switched_off
from hedged_pubsub.cli.bench.scenarios import Target, running_target
from hedged_pubsub.cli.report import CommandError, MeasurementError
from hedged_pubsub.cli.values import Value, listed
from hedged_pubsub.cli.values import number as number_in

_JOB: Final = Path(__file__).resolve().with_name("compare_job.py")
_SIDES: Final = ("official", "old", "new")
_SINGLE: Final = "one at a time"
# Google's emulator, on a virtual machine that compiles as it runs, takes that many to be at its
# fastest.
_WARM_UP_REQUESTS: Final = {"emulator": 20_000, "server": 500}
# Seconds. Long enough that filling and draining the pipe hardly counts.
_TURN: Final = 0.15
# For one job. The longest takes --seconds, and waits a minute for a lost answer.
_PATIENCE: Final = 150.0

Measured = dict[str, float]
Round = dict[str, list[Measured]]
"""What each turn of a round measured, by side."""


class MeasuringProcess:
    """A context manager: a process that measures a checkout, or ``None``: the official client."""

    def __init__(
        self, side: str, checkout: Path | None, address: str, transport: str = "grpc"
    ) -> None:
        environment = {
            **os.environ,
            "PUBSUB_EMULATOR_HOST": address,
            "HEDGED_PUBSUB_PUBLISH_TRANSPORT": transport,
            # gRPC would ask the proxy that http_proxy names even for loopback.
            "no_grpc_proxy": address.rpartition(":")[0],
        }
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout / "src")
        self._side = side
        self._process = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, str(_JOB), str(checkout or side)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )

    def __enter__(self) -> MeasuringProcess:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def run(self, name: str, **arguments: Any) -> Measured:
        """Run a job of ``compare_job.py`` and return what it measured."""
        jobs, results = self._process.stdin, self._process.stdout
        if jobs is None or results is None:
            raise MeasurementError(f"the process for {self._side} has no pipes")
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            print(json.dumps((name, arguments)), file=jobs, flush=True)
            reply = json.loads(results.readline())
        except (OSError, ValueError) as error:
            raise MeasurementError(
                f"{self._side}: {name} {arguments} died, or took more than {_PATIENCE:g} s"
            ) from error
        finally:
            watchdog.cancel()
        if "error" in reply:
            raise MeasurementError(f"{self._side}: {name} {arguments} failed: {reply['error']}")
        result: Measured = reply["result"]
        return result


def compare(
    target: Target,
    checkouts: dict[str, Path | None],
    jobs: dict[str, dict[str, Any]],
    *,
    pairs: int,
    seconds: float,
    report: Callable[[str], None],
    transport: str = "grpc",
) -> dict[str, list[Round]]:
    """Measure all sides in turns, each job for ``seconds``; return the rounds of each job.

    The new side publishes with ``transport``, the old one with gRPC.
    """
    topic = target.create_topic()
    rounds: dict[str, list[Round]] = {row: [] for row in jobs}
    for number in range(pairs):
        report(f"round {number + 1} of {pairs}")
        with ExitStack() as stack:
            running = {
                side: stack.enter_context(
                    MeasuringProcess(
                        side, checkout, target.address, transport if side == "new" else "grpc"
                    )
                )
                for side, checkout in checkouts.items()
            }
            if number == 0:
                requests = _WARM_UP_REQUESTS[target.name]
                running["official"].run("warm", topic=topic, requests=requests)
            target.clear()
            for row, job in jobs.items():
                rounds[row].append(measure(running, seconds, topic=topic, **job))
                wrong = target.batch_sizes(topic) - {job.get("batch", 1)}
                if wrong:
                    raise MeasurementError(f"{row}: requests of {sorted(wrong)} messages were sent")
                target.clear()
    return rounds


def measure(running: dict[str, MeasuringProcess], seconds: float, **job: Any) -> Round:
    """Let all sides do one job in turns; return what each turn measured, by side."""
    count = max(1, round(seconds / _TURN))
    measured: Round = {side: [] for side in running}
    for process in running.values():
        process.run("begin", seconds=seconds / 4, **job)
    for number in range(count):
        for side in order(number):
            measured[side].append(running[side].run("run", seconds=seconds / count))
    for process in running.values():
        process.run("end")
    return measured


def order(number: int) -> tuple[str, ...]:
    """Return the order of the sides in a turn: each comes first, and after each of the others."""
    shift = number // 2 % len(_SIDES)
    shifted = _SIDES[shift:] + _SIDES[:shift]
    return shifted[::-1] if number % 2 else shifted


def summary(rounds: list[Round]) -> dict[str, dict[str, Any]]:
    """Return, by what was measured, each side's median, and the rounds' ratios of the sides."""
    lines = {}
    for name in rounds[0]["new"][0]:
        line: dict[str, Any] = {
            side: statistics.median(turn[name] for one in rounds for turn in one[side])
            for side in _SIDES
        }
        for above, below in (("new", "old"), ("official", "new"), ("new", "official")):
            ratios = [
                statistics.median(
                    a[name] / b[name] for a, b in zip(one[above], one[below], strict=True)
                )
                for one in rounds
            ]
            median = statistics.median(ratios)
            line[f"{above}/{below}"] = {"min": min(ratios), "median": median, "max": max(ratios)}
        lines[name] = line
    return lines


_TABLES: Final = (
    ("cpu_us", "CPU time a message, us", "{:,.2f}", "official/new"),
    ("per_second", "messages a second", "{:,.0f}", "new/official"),
    ("latency_us", "median latency of publish().result(), us", "{:,.0f}", "official/new"),
)


def show(summaries: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print a table of each thing that was measured."""
    for name, title, number, other in _TABLES:
        rows = [(row, lines[name]) for row, lines in summaries.items() if name in lines]
        if not rows:
            continue
        print(f"\n{title}")
        heads = ("batch", *_SIDES, "new/old", "(min..max)", other, "(min..max)")
        print("{:>13} {:>10} {:>10} {:>10} {:>9}  {:<14} {:>13}  {:<14}".format(*heads).rstrip())
        for row, line in rows:
            cells = [f"{row:>13}", *(f"{number.format(line[side]):>10}" for side in _SIDES)]
            for width, ratio in ((9, line["new/old"]), (13, line[other])):
                spread = f"({ratio['min']:.3f}..{ratio['max']:.3f})"
                cells.append(f"{ratio['median']:>{width}.3f}  {spread:<14}")
            print(" ".join(cells).rstrip())


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "src" / "hedged_pubsub" / "__init__.py").is_file():
        raise ValueError(
            f"must be a checkout of this project, with src/hedged_pubsub in it; got {text!r}"
        )
    return path


@click.command(help=(__doc__ or "").replace("\n\n    python", "\n\n\b\n    python"))
@click.option(
    "--old",
    type=Value(_checkout),
    required=True,
    metavar="CHECKOUT",
    help="the folder of a checkout to compare with, such as a git worktree",
)
@click.option(
    "--new",
    type=Value(_checkout),
    default=".",
    metavar="CHECKOUT",
    help="the folder of the checkout to judge (default: the current folder)",
)
@click.option(
    "--new-transport",
    type=click.Choice(["grpc", "http2"]),
    default="grpc",
    help="what the checkout to judge publishes with; the other one uses gRPC (default: grpc)",
)
@click.option(
    "--batches",
    type=listed(number_in(1, 1000, whole=True)),
    default=(1, 10, 100, 1000),
    metavar="LIST",
    help="messages a batch, each 1 to 1000, separated by commas (default: 1,10,100,1000)",
)
@click.option(
    "--pairs",
    type=number_in(1, 100, whole=True),
    default=5,
    metavar="N",
    help="rounds, 1 to 100 (default: 5)",
)
@click.option(
    "--seconds",
    type=number_in(0, 60, above=True),
    default=1.0,
    metavar="SECONDS",
    help="how long a side is measured for each row of a round, above 0 and up to 60, after a "
    "quarter of that to warm up (default: 1)",
)
@click.option(
    "--in-flight",
    type=number_in(1, 100_000, whole=True),
    metavar="N",
    help="batches in flight at most, 1 or more (default: those of 2,000 messages, 20 or more)",
)
@click.option(
    "--target",
    type=click.Choice(list(_WARM_UP_REQUESTS)),
    default="server",
    help="the project's own server, or Google's emulator, which is faster and is sent 20,000 "
    "requests first (default: server)",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object, with each turn")
def main(
    *,
    old: Path,
    new: Path,
    new_transport: str,
    batches: tuple[int, ...],
    pairs: int,
    seconds: float,
    in_flight: int | None,
    target: str,
    as_json: bool,
) -> None:
    """Compare; the exit code is 0 for done, 1 for failed or interrupted, 2 for wrong arguments."""
    jobs: dict[str, dict[str, Any]] = {
        f"{batch}": {"batch": batch, "in_flight": in_flight} for batch in batches
    }
    jobs[_SINGLE] = {}
    checkouts = dict(zip(_SIDES, (None, old, new), strict=True))
    with running_target(target) as running:
        rounds = compare(
            running,
            checkouts,
            jobs,
            pairs=pairs,
            seconds=seconds,
            report=lambda text: print(text, file=sys.stderr),
            transport=new_transport,
        )
    summaries = {row: summary(of_row) for row, of_row in rounds.items()}
    hedging = "off" if is_switched_off() else "on"
    if as_json:
        paths = {name: str(path) for name, path in checkouts.items() if path is not None}
        setup = {**paths, "target": target, "pairs": pairs, "seconds": seconds}
        setup |= {"new_transport": new_transport, "in_flight": in_flight, "hedging": hedging}
        print(json.dumps({"setup": setup, "rows": summaries, "rounds": rounds}))
    else:
        print(f"old: {old}\nnew: {new}, {new_transport}")
        print(
            f"{target}, hedging {hedging}, {pairs} rounds of {seconds:g} s"
            f" each, in flight at most: {in_flight or 'as many as the benchmark has'}"
        )
        show(summaries)


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
