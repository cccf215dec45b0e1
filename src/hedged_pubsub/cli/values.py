"""Values on the command line: how they are read, and what is said about those that are wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

EMULATOR: Final = "emulator"
SERVER: Final = "server"
WORKLOADS: Final = ("throughput", "latency", "memory", "tails")
PLOT_SUFFIXES: Final = (".pdf", ".png", ".svg")


class Value(click.ParamType):  # type: ignore[type-arg] # of old releases it takes none
    """A kind of value: ``read`` makes it of a text, or raises ValueError; the help has bounds."""

    name = "value"

    def __init__(self, read: Callable[[str], Any], bounds: str = "") -> None:
        self.read = read
        self.bounds = bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a text; a default is a value already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def number(low: float, high: float, *, whole: bool = False, above: bool = False) -> Value:
    """Return the type of numbers between two bounds; ``above`` excludes the lower one."""
    bounds = f"{f'above {low:g} and up' if above else f'{low:g}'} to {high:.15g}"

    def read(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        # Never true for NaN.
        if not (low < value if above else low <= value) or not value <= high:
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"must be {kind}, {bounds}; got {text!r}")
        return value

    return Value(read, bounds)


def listed(value: click.ParamType[Any]) -> Value:
    """Return the type of lists that are separated by commas; repetitions are left out."""

    def read(text: str) -> tuple[Any, ...]:
        # A repetition would make two rows of one thing.
        return tuple(dict.fromkeys(value(part.strip()) for part in text.split(",")))

    bounds = getattr(value, "bounds", "")
    return Value(read, bounds and f"each {bounds}")


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise ValueError(f"must end in one of {', '.join(PLOT_SUFFIXES)}; got {text!r}")
    if not path.parent.is_dir():
        raise ValueError(
            f"must be in a folder that exists; {str(path.parent)!r} does not: create it first"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"must be a file that can be written; got {text!r}")
    return path


def _target(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text in (EMULATOR, SERVER) or (host and port.isdecimal() and 0 < int(port) < 2**16):
        return text
    raise ValueError(
        f"must be {EMULATOR!r}, {SERVER!r} or HOST:PORT such as 127.0.0.1:8085; got {text!r}"
    )


PLOT: Final = Value(_plot_path)
TARGET: Final = Value(_target)
