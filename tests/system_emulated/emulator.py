"""Google's own Pub/Sub emulator, as the benchmark runs it too."""

from __future__ import annotations

from hedged_pubsub.testing.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)

__all__ = ["EmulatorNotInstalledError", "find_emulator", "running_emulator"]
