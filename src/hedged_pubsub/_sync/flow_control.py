"""Flow control on threads: whoever has to wait blocks."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Iterable

from google.cloud.pubsub_v1.types import PublishFlowControl

from hedged_pubsub._core.flow_control import WAITING, Permit
from hedged_pubsub._google import options
from hedged_pubsub._sync import threads


class FlowControl:
    """The limits of one publisher; ``counts`` tells whether there are any."""

    def __init__(self, settings: PublishFlowControl) -> None:
        self._settings = settings
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Count nothing yet: when it is made, and in a forked child, whose parent counts on."""
        self._limits = options.flow_control(self._settings)
        self.counts = self._limits.counts

    @property
    def waiting(self) -> int:
        """About how many calls of ``publish()`` wait."""
        return self._limits.waiting

    def add(self, permit: Permit) -> None:
        """Count a message; wait until it may be counted if the options say so.

        Whoever calls this has to see to a ``release``, also after an exception.

        Raises:
            google.cloud.pubsub_v1.publisher.exceptions.FlowControlLimitError: If the message would
                exceed the limits, and the options say not to wait, or it alone exceeds them.
        """
        if self._limits.admit(permit):
            return
        wake = _thread.allocate_lock()
        wake.acquire()
        permit.wake = wake
        self._wake(self._limits.pump())
        while permit.state == WAITING:  # read after ``wake`` was set
            threads.wait_for(wake, None)

    def release(self, permit: Permit) -> None:
        """Count a message no more, or do not let it wait any more; again, that does nothing."""
        self._wake(self._limits.release(permit))

    def _wake(self, admitted: Iterable[Permit]) -> None:
        for permit in admitted:
            if permit.wake is not None:
                with contextlib.suppress(RuntimeError):  # it was woken before
                    permit.wake.release()
            self._limits.woken(permit)
