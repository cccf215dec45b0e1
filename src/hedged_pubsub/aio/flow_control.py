"""Flow control on an event loop: whoever has to wait awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from google.cloud.pubsub_v1.types import PublishFlowControl

from hedged_pubsub._core.flow_control import Permit
from hedged_pubsub._google import options


class FlowControl:
    """The limits of one publisher, first come, first served; ``counts`` tells if there are any."""

    def __init__(self, settings: PublishFlowControl) -> None:
        self._count = options.flow_control(settings)
        self.counts = self._count.counts

    @property
    def waiting(self) -> int:
        """How many calls of ``publish()`` wait."""
        return self._count.waiting

    async def add(self, size: int) -> Permit:
        """Count a message of so many bytes, and return what is to be released.

        Raises:
            google.cloud.pubsub_v1.publisher.exceptions.FlowControlLimitError: As in the
                synchronous publisher.
        """
        permit = Permit(size)
        try:
            if not self._count.admit(permit):
                permit.wake = asyncio.get_running_loop().create_future()
                self._wake(self._count.pump())
                await permit.wake
        except BaseException:  # cancelled above all, perhaps when it was just admitted
            self.release(permit)
            raise
        return permit

    def release(self, permit: Permit) -> None:
        """Release one message. Again, it does nothing."""
        admitted = self._count.release(permit)
        if admitted:
            self._wake(admitted)

    def _wake(self, permits: Iterable[Permit]) -> None:
        for permit in permits:
            wake: asyncio.Future[None] | None = permit.wake
            # If it is cancelled, its task is about to release the permit. On a closed loop, whose
            # coroutines are being thrown away, there is nobody to wake.
            if wake is not None and not wake.done() and not wake.get_loop().is_closed():
                wake.set_result(None)
            self._count.woken(permit)
