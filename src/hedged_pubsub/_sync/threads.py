"""The threads that every publisher of the process shares. None runs before it is needed."""

from __future__ import annotations

import time
from typing import Final

from hedged_pubsub._sync.fork_gate import ForkGate
from hedged_pubsub._sync.scheduler import Scheduler
from hedged_pubsub._sync.workers import Workers

CLOCK: Final = time.monotonic
SCHEDULER: Final = Scheduler(CLOCK)
WORKERS: Final = Workers(SCHEDULER, CLOCK)
FORK_GATE: Final = ForkGate()
