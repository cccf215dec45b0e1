"""How a command draws a plot that it was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def drawn(command: str, what: str, path: Path, draw: Callable[[], object]) -> int:
    """Draw a plot, and say so, or why not.

    Args:
        command: For the error.
        what: What is drawn.
        path: The file.
        draw: Draws into it.

    Returns:
        The exit status.
    """
    try:
        draw()
    except OSError as error:
        print(
            f"hedged-pubsub {command}: error: cannot write {str(path)!r}: {error}",
            file=sys.stderr,
        )
        return 1
    print(f"{what} drawn into {path}", file=sys.stderr)
    return 0
