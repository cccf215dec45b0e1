"""Ids for messages, by which a subscriber finds duplicates: ``id_attribute``.

An id is a random prefix of the process and a counter. It costs a tenth of a UUID, and is as unique:
the prefix has 96 random bits, and the counter never gives a number twice, on any thread.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final

_PREFIX_BYTES: Final = 12
_MAX_NAME_BYTES: Final = 256
"""What the service allows of an attribute's name."""

# Arguments of ``publish()``, which takes attributes by name: these cannot be any.
_ARGUMENTS: Final = frozenset({"data", "ordering_key", "retry", "self", "timeout", "topic"})


def _start() -> Iterator[str]:
    """Return the ids of one process. Each next one is a single call of C's, so threads share it."""
    prefix = os.urandom(_PREFIX_BYTES).hex()
    return map(f"{prefix}-%x".__mod__, itertools.count(1))


_ids = _start()


def next_id() -> str:
    """Return an id that no other message has, in this process or another one."""
    return next(_ids)


def _reset_after_fork() -> None:
    """Have a prefix of its own in a child; the parent goes on with the old one."""
    global _ids
    _ids = _start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def check_id_attribute(name: object) -> None:
    """Raise TypeError or ValueError unless an attribute for ids may have this name, or is None."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"id_attribute must be an attribute's name, or None; got {name!r}")
    if name.startswith("goog"):
        raise ValueError(
            f"id_attribute={name!r} must not start with 'goog', which the service keeps for "
            "itself: choose another name, such as 'event_id'"
        )
    if name in _ARGUMENTS:
        raise ValueError(
            f"id_attribute={name!r} is an argument of publish(): choose another name, such as "
            "'event_id'"
        )
    if not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
        raise ValueError(
            f"id_attribute={name!r} must have 1 to {_MAX_NAME_BYTES} bytes: choose another name, "
            "such as 'event_id'"
        )
