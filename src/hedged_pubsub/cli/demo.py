"""``hedged-pubsub demo``: one schedule, one set of faults, two clients, and the report."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from hedged_pubsub.cli.arguments import OUTAGE, STALLS, DemoOptions
from hedged_pubsub.cli.clients import (
    CLIENTS,
    LATENCY,
    ONE_MESSAGE,
    PATIENCE,
    Client,
    ClientRun,
    publisher,
    run_schedule,
)
from hedged_pubsub.cli.measures import PERCENTILES, Pair, milliseconds, nearest_rank
from hedged_pubsub.cli.report import (
    Report,
    Table,
    check_hedging_is_on,
    in_words,
    note_lateness,
    progress_bars,
    save,
)
from hedged_pubsub.testing import FaultScript, PubSubServer, StoreThenStall, TcpProxy

# Latencies in seconds by message, in the order of the schedule; None for no answer.
Answers = Sequence["float | None"]

_CLIENTS: Final = tuple(client.value for client in Client)
_PERCENTILES: Final = ("p50", "p90", "p99", "p99.9", "max")
# Two runs of one and the same client differ by several percent.
_CLEAR: Final = 0.1
# Few enough for a screen.
_PERIODS: Final = 10
_COUNTS: Final = {
    "hedges_sent": "hedges sent",
    "hedges_won": "hedges won",
    "hedges_suppressed": "hedges suppressed",
    "duplicates": "duplicates stored",
}
_MILLISECONDS: Final = "{:,.1f} ms"
# A good part of the run before the freeze, to compare with, and most of it after.
_FREEZE_AFTER: Final = 0.3
_OUTAGE: Final = 5.0
# The official client's fifth wait, with its jitter.
_LONGEST_BACKOFF: Final = 52.0
# What still counts as an answer: seconds that both clients get after the last publish.
_GRACE: Final = 4.0


def run_demo(options: DemoOptions) -> None:
    """Measure both clients and show the result; raise CommandError if that cannot be done."""
    check_hedging_is_on()
    frozen = None
    if options.fault != STALLS:
        frozen = FrozenRun(
            publishes=options.publishes,
            rate=options.rate,
            frozen_from=int(_FREEZE_AFTER * options.publishes),
            grace=_GRACE,
            hedge_delay=options.hedge_delay,
            outage=_OUTAGE if options.fault == OUTAGE else 0.0,
        )
    with progress_bars() as progress, PubSubServer(process=True) as server:
        total = options.publishes
        bars = {client: progress.add_task(client.value, total=total) for client in Client}

        def measure(client: Client) -> ClientRun:
            # One after the other, so that they do not compete for this machine's few cores.
            tell = lambda ended: progress.update(bars[client], completed=ended)  # noqa: E731
            return _measure(client, server, options, frozen, tell)

        runs = CLIENTS.map(measure)
    report = stalls_report(runs) if frozen is None else frozen_report(frozen, runs)
    report.show(as_json=options.json)
    note_lateness(runs.official.lateness + runs.hedged.lateness)
    if options.plot is None:
        return
    from hedged_pubsub.cli import plots

    latencies = runs.map(lambda run: run.latencies)
    if frozen is not None:
        draw = partial(plots.draw_frozen, options.plot, frozen, latencies.map(frozen.answers))
        save("Time line drawn", options.plot, draw)
        return
    title = (
        f"{options.publishes:,} publishes each, {options.rate:g} per second;"
        f" {100 * options.stall_rate:g} % of requests stall for {options.stall:g} s"
    )
    draw = partial(plots.draw_demo, options.plot, latencies, options.hedge_delay, title)
    save("Latency curves drawn", options.plot, draw)


def _measure(
    client: Client,
    server: PubSubServer,
    options: DemoOptions,
    frozen: FrozenRun | None,
    on_progress: Callable[[int], None],
) -> ClientRun:
    stalls = [StoreThenStall(options.stall, probability=options.stall_rate)]
    script = FaultScript(latency=LATENCY, faults=[] if frozen else stalls, seed=options.seed)
    with ExitStack() as stack:
        address, longest, more = server.address, options.stall, {}
        if frozen is not None:
            proxy = stack.enter_context(TcpProxy(server.address))
            address, longest = proxy.address, _LONGEST_BACKOFF
            more["before"] = stack.enter_context(_breaking(proxy, frozen))
        made = stack.enter_context(publisher(client, address, ONE_MESSAGE, options.hedging))
        run = run_schedule(
            made,
            server,
            script,
            hedging=options.hedging,
            publishes=options.publishes,
            rate=options.rate,
            timeout=longest + PATIENCE,
            on_progress=on_progress,
            **more,
        )
        made.stop()
        return run if frozen is None else replace(run, connections=proxy.max_open)


@contextmanager
def _breaking(proxy: TcpProxy, run: FrozenRun) -> Iterator[Callable[[int], None]]:
    """Yield what breaks the connection in use when it is a message's turn; mend it in time."""

    def mend() -> None:
        proxy.accept()
        for connection in proxy.connections:
            connection.thaw()

    def before(number: int) -> None:
        if number == (run.frozen_from if run.outage else 0):
            timer.start()
        if number == run.frozen_from and run.outage:
            proxy.refuse()
            for connection in proxy.connections:
                connection.reset()
        elif number == run.frozen_from:
            # The one that the publishes went over; the other one has carried hedges at most.
            max(proxy.connections, key=lambda one: one.delivered("upstream")).freeze()

    timer = threading.Timer(run.outage or run.end, mend)
    timer.daemon = True
    yield before
    timer.cancel()
    mend()


# --- The report on stalls.


def stalls_report(runs: Pair[ClientRun]) -> Report:
    """Return what is shown of the requests that stall."""
    run, plain = runs.hedged, runs.official.requests
    times = runs.map(lambda one: milliseconds(sorted(one.latencies), *_PERCENTILES))
    official, hedged = times.official, times.hedged
    extra = round(100 * (run.requests - plain) / plain, 3)
    rows = [
        (name, f"{a:,.1f} ms", f"{b:,.1f} ms")
        for name, a, b in zip(_PERCENTILES, official.values(), hedged.values(), strict=True)
    ]
    rows += [
        ("RPCs sent", f"{plain:,}", f"{run.requests:,}"),
        ("extra requests", "", f"{extra:.1f} %"),
        *((label, "", f"{getattr(run, name):,}") for name, label in _COUNTS.items()),
    ]
    duplicates = in_words(run.duplicates, "duplicate was", "duplicates were")
    words = (
        f"p99.9 {_change(official['p99_9_ms'], hedged['p99_9_ms'])} for {extra:.1f} % more"
        f" requests; {duplicates if run.duplicates else 'no duplicate was'} stored."
    )
    if run.hedges_suppressed:
        suppressed = in_words(run.hedges_suppressed, "hedge was", "hedges were")
        words += f" {suppressed} suppressed because the token bucket was empty."
    counts = {name: getattr(run, name) for name in ("requests", *_COUNTS)}
    data = {
        "plain": {**official, "requests": plain},
        "hedged": {**hedged, **counts, "extra_requests_pct": extra},
    }
    title, header = "Publish latency with and without hedging", ("", *_CLIENTS)
    table = Table(title=title, header=header, rows=rows, section_after=len(_PERCENTILES))
    return Report(data=data, tables=(table,), words=words)


def _change(before: float, after: float) -> str:
    if abs(after - before) < _CLEAR * before:
        return f"did not change much ({before:,.0f} ms without, {after:,.0f} ms with hedging)"
    return f"{'fell' if after < before else 'rose'} from {before:,.0f} ms to {after:,.0f} ms"


# --- A connection that freezes, or a server that is gone for a while.


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenRun:
    """The schedule that both clients followed; times are in seconds."""

    publishes: int
    rate: float
    frozen_from: int  # the first message after the freeze
    grace: float  # after the last publish, in which answers count
    hedge_delay: float
    outage: float = 0.0  # how long the server is gone; if not at all, the connection freezes

    @property
    def fault(self) -> str:
        """What happens, in a word."""
        return "outage" if self.outage else "freeze"

    @property
    def title(self) -> str:
        """What happens, as a title."""
        if self.outage:
            return f"The server is gone for {self.outage:g} s"
        return "The connection freezes for good"

    @property
    def end(self) -> float:
        """When answers cease to count, in seconds from the start."""
        return self.publishes / self.rate + self.grace

    def since_freeze(self, number: int) -> float:
        """Return the seconds from the freeze to a message's scheduled time; negative before."""
        return (number - self.frozen_from) / self.rate

    def answers(self, latencies: Sequence[float]) -> Answers:
        """Leave out the answers that came after the end."""
        return tuple(
            latency if number / self.rate + latency <= self.end else None
            for number, latency in enumerate(latencies)
        )


def frozen_report(run: FrozenRun, runs: Pair[ClientRun]) -> Report:
    """Return what is shown of a frozen connection."""
    answers = runs.map(lambda one: run.answers(one.latencies))
    plain = summary(run, answers.official, connections=runs.official.connections)
    hedged = summary(run, answers.hedged, connections=runs.hedged.connections)
    periods = timeline(run, answers)
    before, after = run.frozen_from, run.publishes - run.frozen_from
    shown = (
        (f"answered before the {run.fault}", "answered_before", f"{{}} of {before}"),
        ("median latency before", "p50_before_ms", _MILLISECONDS),
        (
            f"answered after {'it began' if run.outage else 'the freeze'}",
            "answered_after",
            f"{{}} of {after}",
        ),
        ("first publish after", "first_after_ms", _MILLISECONDS),
        ("slowest publish after", "slowest_after_ms", _MILLISECONDS),
        ("below the hedge delay again", "settled_s", "after {:.1f} s"),
        ("connections at most", "connections", "{}"),
    )
    rows = []
    for label, key, how in shown:
        none = "never" if key == "settled_s" else "no answer"
        cells = (none if side[key] is None else how.format(side[key]) for side in (plain, hedged))
        rows.append((label, *cells))
    period_rows = [
        (f"{one['since_freeze_s']:+.1f} s", *(_answered(one, side) for side in ("plain", "hedged")))
        for one in periods
    ]
    words = (
        f"Of {after:,} publishes after the {run.fault}{' began' if run.outage else ''},"
        f" PublisherClient got"
        f" {_share(plain['answered_after'], after)} answered within {run.grace:g} s of the"
        f" last one, and HedgedPublisher {_share(hedged['answered_after'], after)}"
    )
    if (settled := hedged["settled_s"]) is not None:
        since = "after it began" if run.outage else "after the freeze"
        words += f", below the hedge delay from {settled:.1f} s {since} on"
    return Report(
        data={"run": run, "plain": plain, "hedged": hedged, "timeline": periods},
        tables=(
            Table(title=run.title, header=("", *_CLIENTS), rows=rows),
            Table(title="Time line", header=("sent", *_CLIENTS), rows=period_rows),
        ),
        words=f"{words}.",
    )


def summary(run: FrozenRun, answers: Answers, *, connections: int) -> Mapping[str, Any]:
    """Return what became of one client's messages, as the JSON object has it; None is never."""
    before = sorted(_given(answers[: run.frozen_from]))
    after = answers[run.frozen_from :]
    slow = [
        number for number, answer in enumerate(after) if answer is None or answer >= run.hedge_delay
    ]
    settled_at = slow[-1] + 1 if slow else 0  # from here on, all took less than the hedge delay
    return {
        "answered_before": len(before),
        "answered_after": len(_given(after)),
        "unanswered": answers.count(None),
        "p50_before_ms": _in_ms(nearest_rank(before, PERCENTILES["p50"])) if before else None,
        "first_after_ms": _in_ms(after[0]),
        "slowest_after_ms": None if None in after else _in_ms(max(_given(after))),
        "settled_s": round(settled_at / run.rate, 3) if settled_at < len(after) else None,
        "connections": connections,
    }


def timeline(run: FrozenRun, answers: Pair[Answers]) -> Sequence[Mapping[str, Any]]:
    """Divide the schedule into periods, one of which begins with the freeze."""
    length = max(1, math.ceil(run.publishes / _PERIODS))
    # The first one is shorter if the rest would not begin at the freeze.
    starts = range(run.frozen_from % length - length, run.publishes, length)
    parts = [slice(max(start, 0), start + length) for start in starts if start + length > 0]
    return [
        {
            "since_freeze_s": round(run.since_freeze(part.start), 3),
            "sent": len(answers.official[part]),
            "plain_answered": len(plain := _given(answers.official[part])),
            "plain_slowest_ms": _in_ms(max(plain, default=None)),
            "hedged_answered": len(hedged := _given(answers.hedged[part])),
            "hedged_slowest_ms": _in_ms(max(hedged, default=None)),
        }
        for part in parts
    ]


def _given(answers: Answers) -> list[float]:
    return [answer for answer in answers if answer is not None]


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _answered(period: Mapping[str, Any], side: str) -> str:
    slowest_ms = period[f"{side}_slowest_ms"]
    slowest = "" if slowest_ms is None else f", max {slowest_ms:,.0f} ms"
    return f"{period[f'{side}_answered']} of {period['sent']}{slowest}"


def _share(answered: int, sent: int) -> str:
    return {sent: "all", 0: "none"}.get(answered, f"{answered:,}")
