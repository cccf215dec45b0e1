"""What this process takes of the machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_KIB: Final = 1024


def resident_bytes() -> int | None:
    """Return the memory that is resident now, in bytes; None where the system does not tell."""
    kib = _status("VmRSS")
    return None if kib is None else kib * _KIB


def threads() -> int:
    """Return how many threads run: gRPC's own too, where the system tells."""
    counted = _status("Threads")
    return threading.active_count() if counted is None else counted


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:  # another system than Linux
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return None
