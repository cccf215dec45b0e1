"""Everything that a run found."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from hedged_pubsub.cli.bench.latency import LatencyRow
from hedged_pubsub.cli.bench.memory import EnduranceRow, HeldRow
from hedged_pubsub.cli.bench.setup import Setup
from hedged_pubsub.cli.bench.tails import TailRow
from hedged_pubsub.cli.bench.throughput import ThroughputRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What was measured; a workload that was not asked for has no rows.

    Attributes:
        setup: Where and with what.
        throughput: By target, message size and batch.
        latency: By target and batch settings.
        held: Messages that are not answered.
        endurance: Memory over many batches.
        tails: By case.
    """

    setup: Setup
    throughput: tuple[ThroughputRow, ...] = ()
    latency: tuple[LatencyRow, ...] = ()
    held: tuple[HeldRow, ...] = ()
    endurance: tuple[EnduranceRow, ...] = ()
    tails: tuple[TailRow, ...] = ()

    def to_json(self) -> str:
        """All of it as one JSON object on one line."""
        return json.dumps(dataclasses.asdict(self))
