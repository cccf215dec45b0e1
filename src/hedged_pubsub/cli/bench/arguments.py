"""What ``hedged-pubsub bench`` accepts on the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hedged_pubsub.cli.values import listed, positive_number, whole_number

EMULATOR: Final = "emulator"
SERVER: Final = "server"
WORKLOADS: Final = ("throughput", "latency", "memory", "tails")

# The service takes 1,000 messages and 10 MB in one request.
MAX_BATCH: Final = 1_000
MAX_SIZE: Final = 9_000_000
MAX_REPEATS: Final = 100
MAX_SECONDS: Final = 60.0

_DESCRIPTION: Final = """\
Measure HedgedPublisher, with hedging on, beside the official PublisherClient
without hedging: the same work in turns (A B A B ...), each client in a process
of its own. Ratios are taken pair by pair.

Throughput and latency are measured against each target; memory and tails
always against the project's own server, which can stall requests on demand.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOptions:
    """What ``hedged-pubsub bench`` was asked to do.

    Attributes:
        targets: ``"emulator"``, ``"server"`` or ``"host:port"``; None for the server, and for the
            emulator where it is installed.
        workloads: Names of what is measured, of `WORKLOADS`.
        batches: Messages a batch, each from 1 to 1,000.
        sizes: Bytes a message.
        repeats: Pairs of measurements.
        seconds: How long one measurement of throughput or latency takes.
        quick: Whether memory and tails are cut down too, to see that everything works.
        seed: Where the draws of latencies and stalls start.
        json: Whether to print one JSON object instead of tables.
        report: A Markdown page to write the tables into, and plots beside it; or None.
    """

    targets: tuple[str, ...] | None
    workloads: tuple[str, ...]
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    repeats: int
    seconds: float
    quick: bool
    seed: int
    json: bool
    report: Path | None


def bench_options(arguments: argparse.Namespace) -> BenchOptions:
    """Make the options of parsed arguments; ``--quick`` fills in what was not given."""
    quick: bool = arguments.quick
    return BenchOptions(
        targets=arguments.targets,
        workloads=arguments.workloads,
        batches=arguments.batches or ((1, 100) if quick else (1, 10, 100, 1000)),
        sizes=arguments.sizes or ((100,) if quick else (100, 10_000)),
        repeats=arguments.repeats or (2 if quick else 5),
        seconds=arguments.seconds or (0.2 if quick else 1.0),
        quick=quick,
        seed=arguments.seed,
        json=arguments.json,
        report=arguments.report,
    )


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the command line."""
    bench = commands.add_parser(
        "bench",
        help="measure speed, memory and tails beside the official client",
        description=_DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=30
        ),
        allow_abbrev=False,
    )
    what = bench.add_argument_group("what", "Lists are separated by commas.")
    what.add_argument(
        "--targets",
        type=listed(_target),
        metavar="LIST",
        help=f"'{EMULATOR}' (Google's), '{SERVER}' (the project's own) or HOST:PORT of one that "
        "runs (default: both, the emulator where it is installed)",
    )
    what.add_argument(
        "--workloads",
        type=listed(_workload),
        default=WORKLOADS,
        metavar="LIST",
        help=f"of {', '.join(WORKLOADS)} (default: all)",
    )
    what.add_argument(
        "--batches",
        type=listed(whole_number(1, MAX_BATCH)),
        metavar="LIST",
        help=f"messages a batch, each 1 to {MAX_BATCH} (default: 1,10,100,1000)",
    )
    what.add_argument(
        "--sizes",
        type=listed(whole_number(1, MAX_SIZE)),
        metavar="LIST",
        help=f"bytes a message, each 1 to {MAX_SIZE} (default: 100,10000)",
    )
    effort = bench.add_argument_group("effort")
    effort.add_argument(
        "--repeats",
        type=whole_number(1, MAX_REPEATS),
        metavar="N",
        help=f"pairs of measurements, 1 to {MAX_REPEATS} (default: 5)",
    )
    effort.add_argument(
        "--seconds",
        type=positive_number(MAX_SECONDS, "seconds"),
        metavar="SECONDS",
        help="how long one measurement of throughput or latency takes, "
        f"above 0 and up to {MAX_SECONDS:g} (default: 1)",
    )
    effort.add_argument(
        "--quick",
        action="store_true",
        help="a small run of everything, to see that it works; its numbers mean little",
    )
    effort.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=1,
        metavar="N",
        help="where the server's random draws start, 0 or above (default: %(default)s)",
    )
    output = bench.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    output.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the tables into the marked places of a Markdown page such as "
        "docs/benchmarks.md, and plots into 'images' beside it",
    )


def _workload(text: str) -> str:
    if text not in WORKLOADS:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(WORKLOADS)}; got {text!r}")
    return text


def _target(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text in (EMULATOR, SERVER) or (host and port.isdecimal() and 0 < int(port) < 2**16):
        return text
    raise argparse.ArgumentTypeError(
        f"must be {EMULATOR!r}, {SERVER!r} or HOST:PORT such as 127.0.0.1:8085; got {text!r}"
    )
