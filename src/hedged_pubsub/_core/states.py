"""The states of a batch, and the steps from one to the next: the words of the engine's table."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a batch stands."""

    # The inherited one is a Python function, and every step looks a pair up in the table.
    __hash__ = object.__hash__

    NEW = "new"
    ORIGINAL_IN_FLIGHT = "original in flight"
    BACKING_OFF = "backing off"
    HEDGES_ONLY = "hedges only"
    DECIDED = "decided"


class Step(enum.Enum):
    """An event as the table knows it: told apart by attempt and by what is still possible."""

    __hash__ = object.__hash__

    COMMITTED = "committed"
    HEDGE_TIMER_DUE = "hedge timer due"
    RETRY_DUE = "retry due"
    LET_GO = "let go"
    SUCCEEDED = "an attempt succeeded"
    ORIGINAL_FAILED = "original failed for good"
    ORIGINAL_MAY_RETRY = "original failed, may retry"
    ORIGINAL_SPENT = "original failed, retries spent, hedges in flight"
    HEDGE_FAILED = "hedge failed"
    LAST_HEDGE_FAILED = "last hedge failed"
    ABANDONED = "abandoned"
