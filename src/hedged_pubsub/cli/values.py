"""Values on the command line: how they are read, and what is said about those that are wrong."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PLOT_SUFFIXES: Final = (".pdf", ".png", ".svg")


class UsageError(Exception):
    """The command cannot start: bad arguments, or something it needs is missing (exit code 2)."""


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Read a whole number from ``low`` to ``high``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {low} to {high}; got {text!r}"
            )
        return value

    return convert


def positive_number(high: float, unit: str) -> Callable[[str], float]:
    """Read a number above 0 and up to ``high``."""
    return _number(lambda value: 0 < value <= high, f"a number above 0 and up to {high:g} {unit}")


def number_between(low: float, high: float, unit: str = "") -> Callable[[str], float]:
    """Read a number from ``low`` to ``high``."""
    return _number(
        lambda value: low <= value <= high,
        f"a number from {low:g} to {high:g}{unit and ' ' + unit}",
    )


def listed(convert: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Read a list that is separated by commas, without its repetitions."""

    def convert_all(text: str) -> tuple[Any, ...]:
        # A repetition would make two rows of one thing.
        return tuple(dict.fromkeys(convert(part.strip()) for part in text.split(",")))

    return convert_all


def _number(accepts: Callable[[float], bool], bounds: str) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not accepts(value):  # never true for NaN, and the bounds exclude infinity
            raise argparse.ArgumentTypeError(f"must be {bounds}; got {text!r}")
        return value

    return convert


def plot_path(text: str) -> Path:
    """Read the path of a file that a plot can be written to."""
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"must end in one of {', '.join(PLOT_SUFFIXES)}; got {text!r}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"must be in a folder that exists; {str(path.parent)!r} does not: create it first"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be written; got {text!r}")
    return path
