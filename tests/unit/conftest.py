"""What makes the unit tests quick."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Let the garbage collector pass by what was imported: many tests run it, and it is much."""
    gc.collect()
    gc.freeze()
