"""One connection through a `TcpProxy`, and the faults that it can be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.link import Flow, Link

Direction = Literal["upstream", "downstream"]
"""``"upstream"``: from the client to the target. ``"downstream"``: back to the client."""

_DIRECTIONS: Final = ("upstream", "downstream")

Command = Callable[[float], object]
"""What the proxy's thread is to do; called with the time."""


class ProxyConnection:
    """One client's connection through a `TcpProxy`, and what can be done to it.

    Each fault takes a direction, and without one acts on both. It is in force when the method
    returns, and does nothing to a connection that has ended. The methods are thread-safe.

    Attributes:
        client_address: host and port of the client's end, such as ``"127.0.0.1:40123"``.
    """

    def __init__(self, link: Link, do: Callable[[Command], None]) -> None:
        self.client_address = "{}:{}".format(*link.client.getpeername())
        self._link = link
        self._do = do

    def __repr__(self) -> str:
        """Says whose connection it is and how much went over it."""
        return (
            f"<{type(self).__name__} of {self.client_address}, {'open' if self.is_open else 'over'}"
            f", {self.delivered('upstream')} bytes up, {self.delivered('downstream')} down>"
        )

    @property
    def is_open(self) -> bool:
        """Whether the client still has it, as far as the proxy was told.

        False from when the client closes or resets its end, frozen or not, or the proxy does.
        """
        return self._link.is_open

    def delivered(self, direction: Direction) -> int:
        """Returns the number of bytes that have passed in a direction."""
        return self._flow(direction).delivered

    def held(self, direction: Direction) -> int:
        """Returns the number of bytes that the proxy holds back in a direction."""
        return self._flow(direction).held

    def freeze(self, direction: Direction | None = None) -> None:
        """Lets nothing pass, as when a NAT entry has vanished: no byte, no close and no reset.

        Both ends stay open and go on writing, until their windows are full.
        """
        self._set(direction, lambda flow: setattr(flow, "frozen", True))

    def thaw(self, direction: Direction | None = None) -> None:
        """Ends a freeze; what was held back goes on its way, in order."""
        self._set(direction, lambda flow: setattr(flow, "frozen", False))

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Adds latency to the bytes that arrive from now on, and keeps their order.

        Args:
            seconds: how long each byte is held, in each direction; at least 0.
            direction: one direction, or None for both.

        Raises:
            ValueError: if ``seconds`` is below 0 or not finite.
            TypeError: if it is no number.
        """
        checked = checks.number("seconds", seconds, minimum=0)
        self._set(direction, lambda flow: setattr(flow, "latency", checked))

    def limit(self, bytes_per_second: float | None, direction: Direction | None = None) -> None:
        """Bounds how many bytes pass a second.

        Args:
            bytes_per_second: above 0, in each direction; None for no limit.
            direction: one direction, or None for both.

        Raises:
            ValueError: if ``bytes_per_second`` is not above 0 or not finite.
            TypeError: if it is neither None nor a number.
        """
        bandwidth = (
            None
            if bytes_per_second is None
            else checks.positive("bytes_per_second", bytes_per_second)
        )
        self._set(direction, lambda flow: flow.limit(bandwidth))

    def half_close(self, direction: Direction = "downstream") -> None:
        """Ends one direction in order, as if its sender had closed its half; the other goes on.

        What the proxy holds in that direction is lost.

        Args:
            direction: ``"downstream"``: the client reads the end of the stream.
        """
        flow = self._flow(direction)
        self._do(lambda _now: self._link.half_close(flow))

    def reset(self) -> None:
        """Breaks the connection with a TCP reset towards each end."""
        self._do(lambda _now: self._link.finish(reset=True))

    def _set(self, direction: Direction | None, change: Callable[[Flow], None]) -> None:
        flows = [self._flow(name) for name in (_DIRECTIONS if direction is None else (direction,))]

        def command(now: float) -> None:
            for flow in flows:
                change(flow)
            self._link.write(now)

        self._do(command)

    def _flow(self, direction: str) -> Flow:
        if direction not in _DIRECTIONS:
            raise ValueError(
                f'direction={direction!r} must be "upstream" (from the client to the target) or '
                '"downstream"'
            )
        return self._link.upstream if direction == "upstream" else self._link.downstream
