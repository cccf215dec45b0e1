"""What was measured where: the machine, the versions and the date."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from hedged_pubsub._version import __version__

_DISTRIBUTIONS: Final = ("google-cloud-pubsub", "google-api-core", "grpcio", "protobuf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Where and with what a benchmark ran.

    Attributes:
        date: Day, in UTC.
        machine: Processor, number of cores, system.
        versions: Of all that takes part.
        load: Load average of the machine before the start; None where the system does not tell.
    """

    date: str
    machine: str
    versions: str
    load: float | None

    def in_words(self) -> str:
        """All of it, in a sentence or two."""
        words = f"Measured {self.date} on {self.machine}; {self.versions}."
        if self.load is not None and self.load > _QUIET:
            words += (
                f" The machine was busy with other things (load average {self.load:.1f}):"
                " look at the ratios only."
            )
        return words


# On a quiet machine, nothing else runs.
_QUIET: Final = 0.5


def this_setup() -> Setup:
    """Describe this machine and this environment."""
    versions = [f"hedged-pubsub {__version__}"]
    versions += [f"{name} {version(name)}" for name in _DISTRIBUTIONS]
    cores = os.cpu_count() or 1
    return Setup(
        date=f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        machine=f"{_processor()}, {cores} {'core' if cores == 1 else 'cores'}, "
        f"{platform.system()} ({platform.machine()})",
        versions=f"{platform.python_implementation()} {platform.python_version()}, "
        + ", ".join(versions),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system than Linux
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "an unknown processor"
