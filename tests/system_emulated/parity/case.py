"""What a case of the parity script is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.system_emulated.parity.scene import Scene

Program = Callable[[Scene], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A documented difference.

    Attributes:
        reason: What differs, and why.
        official: A line, or the start of one, that only the official client's observation has.
        hedged: The same for ours.
    """

    reason: str
    official: str
    hedged: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case.

    Attributes:
        name: What it is about.
        run: A small program for either publisher class.
        difference: What differs; ``None`` where nothing may.
    """

    name: str
    run: Program
    difference: Difference | None


class Cases(list[Case]):
    """Cases in the order in which they are written down."""

    def add(
        self, name: str, *, difference: Difference | None = None
    ) -> Callable[[Program], Program]:
        """Return a decorator that adds a program as a case."""

        def decorate(run: Program) -> Program:
            self.append(Case(name=name, run=run, difference=difference))
            return run

        return decorate
