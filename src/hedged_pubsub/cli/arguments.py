"""What the command line accepts: every value is checked here, before any work starts."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from hedged_pubsub._version import __version__
from hedged_pubsub.cli.bench.arguments import BenchOptions, add_bench, bench_options
from hedged_pubsub.cli.plan.arguments import PlanOptions, add_plan, plan_options
from hedged_pubsub.cli.values import (
    PLOT_SUFFIXES,
    UsageError,
    number_between,
    plot_path,
    positive_number,
    whole_number,
)
from hedged_pubsub.settings import (
    MAX_HEDGE_DELAY,
    MAX_REFILL_RATIO,
    MAX_TOKENS,
    MIN_HEDGE_DELAY,
    MIN_REFILL_RATIO,
    MIN_TOKENS,
    HedgingSettings,
)

STALLS: Final = "stalls"
FROZEN_CONNECTION: Final = "frozen-connection"

MAX_PUBLISHES: Final = 1_000_000
# The official client needs about 1.1 ms of CPU for a publish request of its own; far above this
# rate the demo could only show how long its own queue is.
MAX_RATE: Final = 5_000.0
# Half the official client's RPC timeout of 60 s: a stall must not turn into a retry, which would
# be a second comparison in the same table.
MAX_STALL: Final = 30.0
MAX_LATENCY: Final = 10.0
MAX_PORT: Final = 65_535

_STALL_RATE: Final = 0.01
_STALL: Final = 2.0

# Broken by hand, to the width of a small terminal: argparse would join the paragraphs.
_DEMO_DESCRIPTION: Final = """\
Show what hedging does to the latency tail, on this machine and without a
Google account.

The demo starts a Pub/Sub server on loopback, publishes the same schedule
through the official PublisherClient and through HedgedPublisher, and prints
what both saw. By default a small share of the publish requests stall; with
--fault frozen-connection the TCP connection of each client freezes for good.

Each message is a request of its own. Send times are fixed in advance, and
latency counts from them: a stalled request cannot hide the ones behind it.
"""

_SERVE_DESCRIPTION: Final = """\
Run the test server in the foreground, for programs that use the official
clients.

It listens on loopback only, creates topics when they are first published to,
and keeps all messages in memory until Ctrl-C or SIGTERM ends it.
"""

_STALL_HELP: Final = """\
A stalled request stores its message at once and only answers late. That is
the worst case for duplicates: a hedge then stores the message once more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """What ``hedged-pubsub demo`` was asked to do.

    Attributes:
        fault: What goes wrong: ``STALLS`` or ``FROZEN_CONNECTION``.
        publishes: How many messages each client publishes; each is a request of its own.
        rate: Publishes per second of the open-loop schedule.
        stall_rate: The share of requests that stall, from 0 to 1.
        stall: How long a stalled request waits for its answer, in seconds.
        hedging: The hedged publisher's settings.
        seed: Where the server's draws of latencies and stalls start.
        json: Whether to print one JSON object instead of the table.
        plot: The file to draw both latency curves into, or None.
    """

    fault: str
    publishes: int
    rate: float
    stall_rate: float
    stall: float
    hedging: HedgingSettings
    seed: int
    json: bool
    plot: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """What ``hedged-pubsub serve`` was asked to do.

    Attributes:
        port: The port to listen on at 127.0.0.1; 0 picks a free one.
        latency: How long each request takes, in seconds.
        stall_rate: The share of publish requests that stall, from 0 to 1.
        stall: How long a stalled request waits for its answer, in seconds.
        seed: Where the draws of stalls start.
    """

    port: int
    latency: float
    stall_rate: float
    stall: float
    seed: int


def parse(
    argv: Sequence[str] | None = None,
) -> DemoOptions | BenchOptions | PlanOptions | ServeOptions:
    """Read the command line.

    Args:
        argv: The arguments without the program's name; None takes ``sys.argv``.

    Raises:
        UsageError: If an argument is wrong. The message is one line.
        SystemExit: After ``--help`` or ``--version``, with code 0.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "serve":
        return _serve_options(arguments)
    if arguments.command == "bench":
        return bench_options(arguments)
    if arguments.command == "plan":
        return plan_options(arguments)
    return _demo_options(arguments)


def _demo_options(arguments: argparse.Namespace) -> DemoOptions:
    try:
        hedging = HedgingSettings(
            hedge_delay=arguments.hedge_delay,
            max_tokens=arguments.max_tokens,
            refill_ratio=arguments.refill_ratio,
        )
    except ValueError as error:
        raise UsageError(f"hedged-pubsub demo: error: {error}") from error
    frozen = arguments.fault == FROZEN_CONNECTION
    if frozen and (arguments.stall_rate, arguments.stall) != (_STALL_RATE, _STALL):
        raise UsageError(
            "hedged-pubsub demo: error: --stall-rate and --stall are of --fault stalls; leave them"
            " out, because a frozen connection has no other fault"
        )
    # Of a frozen connection the first seconds tell all.
    publishes, rate = (200, 20.0) if frozen else (4_000, 200.0)
    return DemoOptions(
        fault=arguments.fault,
        publishes=publishes if arguments.publishes is None else arguments.publishes,
        rate=rate if arguments.rate is None else arguments.rate,
        stall_rate=arguments.stall_rate,
        stall=arguments.stall,
        hedging=hedging,
        seed=arguments.seed,
        json=arguments.json,
        plot=arguments.plot,
    )


def _serve_options(arguments: argparse.Namespace) -> ServeOptions:
    return ServeOptions(
        port=arguments.port,
        latency=arguments.latency,
        stall_rate=arguments.stall_rate,
        stall=arguments.stall,
        seed=_fresh_seed() if arguments.seed is None else arguments.seed,
    )


def _fresh_seed() -> int:
    return random.SystemRandom().randrange(2**32)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse prints the usage block and exits here; one line is clearer, and main() decides
        # about exit codes.
        raise UsageError(f"{self.prog}: error: {message} (options: {self.prog} --help)")


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Room for each option and its metavar on the line of its help.
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hedged-pubsub",
        description="See publish hedging for Google Cloud Pub/Sub work, or run a server to try it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands)
    add_bench(commands)
    add_plan(commands)
    _add_serve(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="publish with and without hedging and compare the latency tails",
        description=_DEMO_DESCRIPTION,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    demo.add_argument(
        "--fault",
        choices=(STALLS, FROZEN_CONNECTION),
        default=STALLS,
        help="what goes wrong (default: %(default)s)",
    )
    load = demo.add_argument_group("load", "The same for both clients.")
    load.add_argument(
        "--publishes",
        type=whole_number(1, MAX_PUBLISHES),
        metavar="N",
        help=f"messages each client publishes, 1 to {MAX_PUBLISHES} (default: 4000); "
        "200 for a frozen connection",
    )
    load.add_argument(
        "--rate",
        type=positive_number(MAX_RATE, "per second"),
        metavar="N",
        help=f"publishes per second, above 0 and up to {MAX_RATE:g} (default: 200); "
        "20 for a frozen connection",
    )
    server = demo.add_argument_group("server", _STALL_HELP)
    _add_stall(server, default_rate=_STALL_RATE)
    server.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=1,
        metavar="N",
        help="where the server's random draws start, 0 or above (default: %(default)s)",
    )
    hedging = demo.add_argument_group("hedging", "The settings of HedgedPublisher.")
    hedging.add_argument(
        "--hedge-delay",
        type=float,
        # Twice the minimum: longer than a busy machine pauses a process for now and then.
        default=0.2,
        metavar="SECONDS",
        help="how long to wait for an answer before sending the message again, "
        f"{MIN_HEDGE_DELAY:g} to {MAX_HEDGE_DELAY:g} (default: %(default)g)",
    )
    hedging.add_argument(
        "--max-tokens",
        type=int,
        default=50,
        metavar="N",
        help="how many hedges can go out in a row, "
        f"{MIN_TOKENS} to {MAX_TOKENS} (default: %(default)s)",
    )
    hedging.add_argument(
        "--refill-ratio",
        type=float,
        default=0.1,
        metavar="RATIO",
        help="hedges that one successful publish earns, "
        f"{MIN_REFILL_RATIO:g} to {MAX_REFILL_RATIO:g} (default: %(default)g)",
    )
    output = demo.add_argument_group("output")
    output.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object and nothing else on stdout",
    )
    output.add_argument(
        "--plot",
        type=plot_path,
        metavar="FILE",
        help=f"draw both latency curves into FILE ({', '.join(PLOT_SUFFIXES)})",
    )


def _add_serve(commands: argparse._SubParsersAction[_Parser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="run a Pub/Sub server on loopback for the official clients",
        description=_SERVE_DESCRIPTION,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    serve.add_argument(
        "--port",
        type=whole_number(0, MAX_PORT),
        default=8085,
        metavar="N",
        help=f"port on 127.0.0.1, 1 to {MAX_PORT}, or 0 for a free one (default: %(default)s)",
    )
    faults = serve.add_argument_group("faults", _STALL_HELP)
    faults.add_argument(
        "--latency",
        type=number_between(0, MAX_LATENCY, "seconds"),
        default=0.0,
        metavar="SECONDS",
        help=f"time that each publish request takes, 0 to {MAX_LATENCY:g} (default: %(default)g)",
    )
    _add_stall(faults, default_rate=0.0)
    faults.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        metavar="N",
        help="where the draws of stalls start, 0 or above (default: another one each time)",
    )


def _add_stall(group: argparse._ArgumentGroup, *, default_rate: float) -> None:
    group.add_argument(
        "--stall-rate",
        type=number_between(0, 1),
        default=default_rate,
        metavar="SHARE",
        help="share of publish requests that stall, 0 to 1 (default: %(default)g)",
    )
    group.add_argument(
        "--stall",
        type=positive_number(MAX_STALL, "seconds"),
        default=_STALL,
        metavar="SECONDS",
        help=f"how long a stall lasts, above 0 and up to {MAX_STALL:g} (default: %(default)g)",
    )
