"""Log lines that harm nobody: a log handler is a user's code, and may block or raise."""

from __future__ import annotations

import logging
import traceback
from typing import Final

LOGGER: Final = logging.getLogger("hedged_pubsub")


def write(
    level: int,
    message: str,
    *args: object,
    error: BaseException | None = None,
    extra: dict[str, object] | None = None,
) -> None:
    """Write one line, and the traceback of ``error``, whatever a handler raises.

    Not to be called on gRPC's thread, on the library's thread, or while a lock is held.
    """
    try:
        LOGGER.log(level, message, *args, exc_info=error, extra=extra)
    except Exception:  # noqa: BLE001 - whatever a handler raises
        # As Python's logging does with the errors of its own handlers.
        if logging.raiseExceptions:
            traceback.print_exc()


def printable(topic: str) -> str:
    """Return a topic's name on one line, whatever characters it has."""
    return topic if topic.isprintable() else repr(topic)
