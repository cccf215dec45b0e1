"""What the command line accepts: every value is checked here, before any work starts."""

# ruff: noqa: RUF009 - a field is made anew for each option

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import click

from hedged_pubsub._core import settings
from hedged_pubsub._core.hedge_delay import MAX_HEDGE_DELAY, MIN_HEDGE_DELAY, HedgeDelay
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._version import __version__
from hedged_pubsub.cli.plan.recommendation import REFILL_RATIOS
from hedged_pubsub.cli.plan.samples import SECONDS, Reading, duration
from hedged_pubsub.cli.values import (
    EMULATOR,
    PLOT,
    PLOT_SUFFIXES,
    SERVER,
    TARGET,
    WORKLOADS,
    Value,
    listed,
    number,
)

STALLS: Final = "stalls"
FROZEN_CONNECTION: Final = "frozen-connection"
OUTAGE: Final = "outage"

# Half the official client's RPC timeout of 60 s: a stall must not turn into a retry, which would
# be a second comparison in the same table.
_STALL_SECONDS: Final = number(0, 30, above=True)
_STALL_RATE: Final = 0.01
_STALL: Final = 2
# The service takes 1,000 messages and 10 MB in one request.
_BATCHES: Final = listed(number(1, 1_000, whole=True))
_SIZES: Final = listed(number(1, 9_000_000, whole=True))
_DELAY: Final = number(MIN_HEDGE_DELAY, MAX_HEDGE_DELAY)
_DELAYS: Final = listed(_DELAY)
_TOKENS: Final = number(settings.MIN_TOKENS, settings.MAX_TOKENS, whole=True)
_RATIO: Final = number(settings.MIN_REFILL_RATIO, settings.MAX_REFILL_RATIO)
_SHARE: Final = number(0, 1)
_SEED_NUMBER: Final = number(0, 2**63 - 1, whole=True)
_SEED_NUMBER.bounds = "0 or above"
_DRAW_SEED: Final = partial(random.SystemRandom().randrange, 2**32)
_PUBLISHES: Final = number(1, 1_000_000, whole=True)
_PLAN_RATE: Final = number(0, 100_000, above=True)
_PORT: Final = number(0, 65_535, whole=True)
_PERCENTILE: Final = Value(lambda text: HedgeDelay.percentile(float(text)))
_TIME: Final = Value(lambda text: duration(text, None))
_REQUEST_BYTES: Final = number(1, 10_000_000, whole=True)
_PRICE: Final = number(0, 1_000_000)
_WORKLOADS: Final = listed(click.Choice(WORKLOADS))
_FAULT: Final = click.Choice([STALLS, FROZEN_CONNECTION, OUTAGE])
_MALFORMED: Final = click.Choice(["refuse", "skip"])

_STALLS: Final = "share of publish requests that stall"
_SEEDS: Final = "where the random draws start"
_COUNTS: Final = "4000; 200 for another fault"
_RATES: Final = "200; 20 for another fault"
_HEDGE_DELAY: Final = "how long to wait for an answer before sending the message again"
_MEASUREMENT: Final = "how long one measurement of throughput or latency takes"
_TARGETS: Final = (
    f"{EMULATOR!r} (Google's, where it is installed), {SERVER!r} (the project's own) or HOST:PORT"
    " of one that runs"
)
_REPORT: Final = (
    "write the tables into the marked places of a Markdown page such as docs/benchmarks.md, and"
    " plots into 'images' beside it"
)
_BY_NAME: Final = "told by the name, such as latency_ms"
_ALL_BATCHES: Final = "1, 10, 100, 1000"
_FIRST_TWO: Final = "the first two"
_SOME: Final = "some that suit the latencies"
_COLUMN: Final = "the CSV column, the JSON field (a.b), the metric, or the case of bench"
_TOPIC: Final = "the topic of a recording"
_BUDGET: Final = "0.05, or a quarter more than by default"
_RECORDED: Final = "as recorded, or 100"
_MEASURED: Final = "try a measured delay too, HedgeDelay.percentile(P), such as 0.95"

_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99_9", "p99_99")

# Options that several commands have.
_SEED: Final = ("N", _SEED_NUMBER, _SEEDS, 1)
_STALL_OPTION: Final = ("SECONDS", _STALL_SECONDS, "how long a stall lasts", _STALL)
_JSON: Final = ("", None, "print one JSON object and nothing else on stdout")
_PLOT: Final = f"into FILE ({', '.join(PLOT_SUFFIXES)})"


def _option(metavar: str, kind: Any, text: str, default: object = None, shown: str = "") -> Any:
    """Return an option's field; one without a kind is a flag; ``shown`` is the default in words."""
    text = ", ".join(filter(None, (text, getattr(kind, "bounds", ""))))
    how: dict[str, Any] = {"is_flag": True} if kind is None else {"metavar": metavar or None}
    if default is not None:  # another None is no default at all
        how["default"] = default
    if shown:
        text += f"  [default: {shown}]"
    return field(metadata={"type": kind, "help": text, "show_default": not shown, **how})


# What each command was asked to do: its fields are the options, in the order of its help; `run`
# names the function that does it, `summary` is for the list of commands, and `sections` has titles
# that stand above some of the options.


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """What ``hedged-pubsub demo`` was asked to do."""

    run: ClassVar = "hedged_pubsub.cli.demo:run_demo"
    summary: ClassVar = "publish with and without hedging, and compare the latency tails"
    text: ClassVar = """
    Show what hedging does to the latency tail, on this machine and without a Google account.

    The demo starts a Pub/Sub server on loopback, publishes the same schedule through the
    official PublisherClient and through HedgedPublisher, and prints what both saw. By default
    a small share of the publish requests stall: the message is stored at once and only the
    answer is late, which is the worst case for duplicates. With --fault frozen-connection the
    TCP connection of each client freezes for good; with --fault outage the server is gone for
    five seconds.

    Each message is a request of its own. Send times are fixed in advance, and latency counts
    from them: a stalled request cannot hide the ones behind it.
    """
    sections: ClassVar = {
        "fault": "Load and faults, the same for both clients",
        "hedge_delay": "Settings of HedgedPublisher",
        "json": "Output",
    }

    fault: str = _option("", _FAULT, "what goes wrong", STALLS)
    publishes: int = _option("N", _PUBLISHES, "messages each client publishes", shown=_COUNTS)
    # The official client needs about 1.1 ms of CPU for a publish request of its own; far above this
    # rate the demo could only show how long its own queue is.
    rate: float = _option("N", number(0, 5_000, above=True), "publishes per second", shown=_RATES)
    stall_rate: float = _option("SHARE", _SHARE, _STALLS, _STALL_RATE)
    stall: float = _option(*_STALL_OPTION)
    seed: int = _option(*_SEED)
    # Twice the minimum: longer than a busy machine pauses a process for now and then.
    hedge_delay: float = _option("SECONDS", _DELAY, _HEDGE_DELAY, 0.2)
    max_tokens: int = _option("N", _TOKENS, "how many hedges can go out in a row", 50)
    refill_ratio: float = _option("RATIO", _RATIO, "hedges that one successful publish earns", 0.1)
    json: bool = _option(*_JSON)
    plot: Path | None = _option("FILE", PLOT, f"draw both clients' latencies {_PLOT}")

    @property
    def hedging(self) -> HedgingSettings:
        """The settings of HedgedPublisher."""
        return HedgingSettings(self.hedge_delay, self.max_tokens, self.refill_ratio)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOptions:
    """What ``hedged-pubsub bench`` was asked to do; ``targets`` None is for the default ones."""

    run: ClassVar = "hedged_pubsub.cli.bench.run:run_bench"
    summary: ClassVar = "measure speed, memory and tails beside the official client"
    text: ClassVar = """
    Measure HedgedPublisher, with hedging on, beside the official PublisherClient without
    hedging: the same work in turns (A B A B ...), each client in a process of its own. Ratios
    are taken pair by pair.

    Throughput and latency are measured against each target; memory and tails always against
    the project's own server, which can stall requests on demand.
    """
    sections: ClassVar = {
        "targets": "What; lists are separated by commas",
        "repeats": "Effort",
        "json": "Output",
    }

    targets: tuple[str, ...] | None = _option("LIST", listed(TARGET), _TARGETS, shown=_FIRST_TWO)
    workloads: tuple[str, ...] = _option("LIST", _WORKLOADS, "what to measure", WORKLOADS)
    batches: tuple[int, ...] = _option("LIST", _BATCHES, "messages a batch", shown=_ALL_BATCHES)
    sizes: tuple[int, ...] = _option("LIST", _SIZES, "bytes a message", shown="100, 10000")
    repeats: int = _option("N", number(1, 100, whole=True), "pairs of measurements", shown="5")
    seconds: float = _option("SECONDS", number(0, 60, above=True), _MEASUREMENT, shown="1")
    quick: bool = _option("", None, "less of everything, to see that it works")
    seed: int = _option(*_SEED)
    json: bool = _option(*_JSON)
    report: Path | None = _option("FILE", Value(Path), _REPORT)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """What ``hedged-pubsub plan`` was asked to do; a ``source`` of ``-`` is the standard input."""

    run: ClassVar = "hedged_pubsub.cli.plan.run:run_plan"
    summary: ClassVar = "choose the hedge delay from recorded latencies"
    text: ClassVar = """
    Choose the hedge delay and the refill ratio from recorded latencies.

    Replays what was recorded through the publisher's own engine and token bucket, on a virtual
    clock, once for each setting, and says what the latencies and the extra requests would have
    been. Hedges take a random draw from the recorded latencies.

    FILE, or - for the standard input, is what publisher.record_latencies() wrote; any CSV or
    JSON with the latency of each publish request; a histogram or percentiles, from Cloud
    Monitoring, Prometheus or OpenTelemetry; or the output of 'hedged-pubsub bench --json'.
    Percentiles alone will do: --p50 13ms --p99 300ms --p99.9 5s
    """
    sections: ClassVar = {
        "p50": "Input",
        "rate": "Replay",
        "hedge_delays": "Settings; lists are separated by commas",
        "json": "Output",
    }

    source: Path | None = field(
        metadata={"type": Value(Path), "metavar": "[FILE]", "required": False}
    )
    p50: float | None = _option("TIME", _TIME, "what half of the requests took, such as 13ms")
    p90: float | None = _option("TIME", _TIME, "likewise, and so on:")
    p95: float | None = _option("TIME", _TIME, "")
    p99: float | None = _option("TIME", _TIME, "")
    p99_9: float | None = _option("TIME", _TIME, "")
    p99_99: float | None = _option("TIME", _TIME, "")
    column: str | None = _option("NAME", click.STRING, _COLUMN, shown="found by its name")
    unit: str | None = _option("", click.Choice(list(SECONDS)), "of the latencies", shown=_BY_NAME)
    malformed: str = _option("", _MALFORMED, "what to do about a malformed line", "refuse")
    topic: str | None = _option("NAME", click.STRING, _TOPIC, shown="the busiest")
    rate: float | None = _option("N", _PLAN_RATE, "publish requests per second", shown=_RECORDED)
    seed: int = _option(*_SEED)
    hedge_delays: tuple[float, ...] | None = _option("LIST", _DELAYS, "in seconds", shown=_SOME)
    percentile_delay: HedgeDelay | None = _option("P", _PERCENTILE, _MEASURED)
    refill_ratios: tuple[float, ...] = _option("LIST", listed(_RATIO), "", REFILL_RATIOS)
    max_tokens: int = _option("N", _TOKENS, "", HedgingSettings().max_tokens)
    budget: float | None = _option("SHARE", _SHARE, "allowed extra requests", shown=_BUDGET)
    request_bytes: int = _option("N", _REQUEST_BYTES, "size of a publish request", 10_000)
    price: float | None = _option("N", _PRICE, "of a TiB published, in any currency")
    json: bool = _option(*_JSON)
    plot: Path | None = _option("FILE", PLOT, f"draw latencies and costs {_PLOT}")

    @property
    def reading(self) -> Reading:
        """How the input is to be read."""
        return Reading(
            column=self.column,
            unit=self.unit,
            topic=self.topic,
            skip_malformed=self.malformed == "skip",
            seed=self.seed,
        )

    @property
    def percentiles(self) -> dict[float, float]:
        """The percentiles that were given, in seconds, by share."""
        given = {name: getattr(self, name) for name in _PERCENTILES}
        return {
            float(name[1:].replace("_", ".")) / 100: value
            for name, value in given.items()
            if value is not None
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """What ``hedged-pubsub serve`` was asked to do."""

    run: ClassVar = "hedged_pubsub.cli.serve:run_serve"
    summary: ClassVar = "run a Pub/Sub server on loopback for the official clients"
    text: ClassVar = """
    Run the test server in the foreground, for programs that use the official clients.

    It listens on loopback only, creates topics when they are first published to, and keeps all
    messages in memory until Ctrl-C or SIGTERM ends it. A stalled request stores its message at
    once and only answers late.
    """
    sections: ClassVar = {"port": "Server and faults"}

    port: int = _option("N", _PORT, "port on 127.0.0.1; 0 for a free one", 8085)
    latency: float = _option("SECONDS", number(0, 10), "time each publish request takes", 0)
    stall_rate: float = _option("SHARE", _SHARE, _STALLS, 0)
    stall: float = _option(*_STALL_OPTION)
    seed: int = _option("N", _SEED_NUMBER, _SEEDS, _DRAW_SEED, "another one each time")


Options = DemoOptions | BenchOptions | PlanOptions | ServeOptions


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line; raise what click does, such as UsageError, or Exit after --help."""
    with COMMAND.make_context("hedged-pubsub", list(arguments)) as context:
        options: Options = COMMAND.invoke(context)
    return options


def _demo(**values: Any) -> DemoOptions:
    publishes, rate = 4_000, 200.0
    if values["fault"] != STALLS:
        publishes, rate = 200, 20.0  # the first seconds tell all
        for name, default in (("stall-rate", _STALL_RATE), ("stall", _STALL)):
            if values[name.replace("-", "_")] != default:
                raise click.UsageError(
                    f"--{name} belongs to --fault {STALLS}: leave it out, --fault"
                    f" {values['fault']} has no other fault",
                    click.get_current_context(),
                )
    values["publishes"] = values["publishes"] or publishes
    values["rate"] = values["rate"] or rate
    return DemoOptions(**values)


def _plan(**values: Any) -> PlanOptions:
    options = PlanOptions(**values)
    if (options.source is None) is not bool(options.percentiles):
        raise click.UsageError(
            "FILE is missing: give a file, or percentiles such as --p50 13ms --p99.9 5s"
            if options.source is None
            else "FILE and percentiles such as --p50 exclude each other: leave out one of them",
            click.get_current_context(),
        )
    return options


def _bench(*, quick: bool, **values: Any) -> BenchOptions:
    full = {"batches": (1, 10, 100, 1000), "sizes": (100, 10_000), "repeats": 5, "seconds": 1.0}
    small = {"batches": (1, 100), "sizes": (100,), "repeats": 2, "seconds": 0.2}
    given = {name: value for name, value in values.items() if value is not None}
    return BenchOptions(quick=quick, **{**values, **(small if quick else full), **given})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '.' if name in _PERCENTILES else '-')}"


class _Command(click.Command):
    """A command whose help has its options in sections; ``make`` makes them of their values."""

    def __init__(self, options: type[Options], make: Callable[..., Options]) -> None:
        self._titles = options.sections
        params: list[click.Parameter] = [
            click.Argument([one.name], **one.metadata)
            if one.name == "source"
            else click.Option([one.name, _flag(one.name)], **one.metadata)
            for one in fields(options)
        ]
        how: dict[str, Any] = {"short_help": options.summary, "help": options.text}
        super().__init__(None, callback=make, params=params, **how)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, in the order of the options."""
        records: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if title := self._titles.get(one.name) if one in self.params else "Other":
                records = sections[title] = []
            if record := one.get_help_record(ctx):
                records.append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=26)


COMMAND: Final = click.Group(
    "hedged-pubsub",
    commands={
        "demo": _Command(DemoOptions, _demo),
        "bench": _Command(BenchOptions, _bench),
        "plan": _Command(PlanOptions, _plan),
        "serve": _Command(ServeOptions, ServeOptions),
    },
    help="See publish hedging for Google Cloud Pub/Sub work, or run a server to try it.",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, message="%(prog)s %(version)s")(COMMAND)
