"""``hedged-pubsub demo --fault frozen-connection``: both clients lose their connection for good."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from google.cloud import pubsub_v1

from hedged_pubsub.cli.arguments import DemoOptions
from hedged_pubsub.cli.demo import (
    LATENCY,
    ONE_MESSAGE,
    PATIENCE,
    hedged_publisher,
    warm_up_publishes,
)
from hedged_pubsub.cli.drawing import drawn
from hedged_pubsub.cli.extras import check_extras
from hedged_pubsub.cli.frozen_report import (
    Answers,
    FrozenReport,
    FrozenRun,
    client_summary,
    timeline,
)
from hedged_pubsub.cli.open_loop import OpenLoopRun, run_open_loop, warm_up
from hedged_pubsub.cli.report import late_note
from hedged_pubsub.testing import FaultScript, PubSubServer, TcpProxy

if TYPE_CHECKING:
    from rich.progress import Progress

_EMULATOR_HOST: Final = "PUBSUB_EMULATOR_HOST"
# A good part of the run before the freeze, to compare with, and most of it after.
_FREEZE_AFTER: Final = 0.3
# What still counts as an answer: seconds that both clients get after the last publish.
_GRACE: Final = 4.0


def run_frozen(options: DemoOptions) -> int:
    """Measure both clients and show the result; returns the exit code.

    Raises:
        UsageError: If an extra that the options need is not installed, or the environment
            switches hedging off.
        MeasurementError: If a publish fails, or does not even end after the thaw.
    """
    check_extras("demo", plots=options.plot is not None)
    # The demo talks to loopback only; gRPC would ask the proxy that http_proxy names even for that.
    os.environ["no_grpc_proxy"] = "127.0.0.1"  # noqa: SIM112 - gRPC reads it in lower case
    from hedged_pubsub.cli import table

    with table.progress_bars() as progress:
        run, plain, hedged = _compare(options, progress)
    answers = tuple(run.answers(side.run.latencies) for side in (plain, hedged))
    report = FrozenReport(
        run=run,
        plain=client_summary(run, answers[0], connections=plain.connections),
        hedged=client_summary(run, answers[1], connections=hedged.connections),
        timeline=timeline(run, *answers),
    )
    if options.json:
        print(report.to_json(), flush=True)
    else:
        columns = ("PublisherClient", "HedgedPublisher")
        summary = ("The connection freezes for good", ("", *columns), report.rows())
        in_time = ("Time line", ("sent", *columns), report.timeline_rows())
        table.print_tables([summary, in_time], report.in_words())
    if note := late_note(plain.run.lateness + hedged.run.lateness):
        print(note, file=sys.stderr)
    return _plot(options, run, *answers)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """One client's run, and the most connections that it had at the same time."""

    run: OpenLoopRun
    connections: int


def _compare(options: DemoOptions, progress: Progress) -> tuple[FrozenRun, _Measured, _Measured]:
    run = FrozenRun(
        publishes=options.publishes,
        rate=options.rate,
        frozen_from=int(_FREEZE_AFTER * options.publishes),
        grace=_GRACE,
        hedge_delay=options.hedging.initial_hedge_delay,
    )
    plain_bar = progress.add_task("PublisherClient", total=options.publishes)
    hedged_bar = progress.add_task("HedgedPublisher", total=options.publishes)
    script = FaultScript(latency=LATENCY, seed=options.seed)
    # One after the other, so that they do not compete for this machine's few cores.
    with PubSubServer(script, process=True, auto_create_topics=True) as server:
        with _proxy(server) as proxy:
            plain_client = pubsub_v1.PublisherClient(ONE_MESSAGE)
            side = _Side(plain_client, proxy, server.topic_path("demo-plain"), options)
            plain = side.measure(run, lambda ended: progress.update(plain_bar, completed=ended))
            # Not in a finally: after Ctrl-C the process ends at once, and closing the channel
            # under requests in flight would make the official client's threads fail aloud.
            plain_client.stop()
            plain_client.transport.close()
        with _proxy(server) as proxy, hedged_publisher(options.hedging) as hedged_client:
            side = _Side(hedged_client, proxy, server.topic_path("demo-hedged"), options)
            hedged = side.measure(run, lambda ended: progress.update(hedged_bar, completed=ended))
    return run, plain, hedged


@contextmanager
def _proxy(server: PubSubServer) -> Iterator[TcpProxy]:
    """Put a proxy in front of the server; clients made meanwhile use it."""
    before = os.environ.get(_EMULATOR_HOST)
    with TcpProxy(server.address) as proxy:
        os.environ[_EMULATOR_HOST] = proxy.address
        try:
            yield proxy
        finally:
            if before is None:
                del os.environ[_EMULATOR_HOST]
            else:
                os.environ[_EMULATOR_HOST] = before


@dataclass(frozen=True, slots=True)
class _Side:
    """One client of the comparison, with the proxy and the topic that only it uses."""

    client: pubsub_v1.PublisherClient
    proxy: TcpProxy
    topic: str
    options: DemoOptions

    def measure(self, run: FrozenRun, on_progress: Callable[[int], None]) -> _Measured:
        """Run the schedule; in the middle of it, the connection in use freezes.

        It thaws once answers do not count any more, so that every publish ends.
        """
        hedging = self.options.hedging
        count = warm_up_publishes(max_tokens=hedging.max_tokens, refill_ratio=hedging.refill_ratio)
        warm_up(self._publish, count, timeout=PATIENCE)
        thaw = threading.Timer(run.end, self._thaw)
        thaw.daemon = True

        def publish(number: int) -> Future[str]:
            if number == 0:
                thaw.start()
            if number == run.frozen_from:
                self._freeze()
            return self._publish(number)

        try:
            measured = run_open_loop(
                publish,
                publishes=run.publishes,
                rate=run.rate,
                timeout=run.grace + PATIENCE,
                on_progress=on_progress,
            )
        finally:
            thaw.cancel()
        self._thaw()
        return _Measured(run=measured, connections=self.proxy.max_open)

    def _freeze(self) -> None:
        # The one that the publishes went over; the other one has carried hedges at most.
        in_use = max(self.proxy.connections, key=lambda one: one.delivered("upstream"))
        in_use.freeze()

    def _thaw(self) -> None:
        for connection in self.proxy.connections:
            connection.thaw()

    def _publish(self, number: int) -> Future[str]:
        future: Future[str] = self.client.publish(self.topic, b"message %d" % number)
        return future


def _plot(options: DemoOptions, run: FrozenRun, plain: Answers, hedged: Answers) -> int:
    if options.plot is None:
        return 0
    from hedged_pubsub.cli import frozen_plot

    draw = partial(frozen_plot.draw, options.plot, run, plain=plain, hedged=hedged)
    return drawn("demo", "Time line", options.plot, draw)
