"""Writes what publish requests took into a CSV file, for ``hedged-pubsub plan``.

A row is taken in where a request ends, under the lock that guards the batches, which costs an
append. It is written on a thread that may wait for the disk.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import csv
import errno
import io
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._core import log
from hedged_pubsub._core.topic_state import Recording

HEADER: Final = ("sent_s", "latency_s", "topic", "attempt", "outcome")
_FIRST_LINE: Final = f"{','.join(HEADER)}\n".encode()

MAX_BYTES: Final = 64 * 2**20
"""Size at which a file is rotated. There are two files at most: half a million rows or more each,
which is as much as ``plan`` can make use of."""

MAX_ROWS: Final = 100_000
"""Rows that wait to be written; more are dropped, and counted. Some 20 MB, where a disk hangs."""

_MANY: Final = 512
"""Rows to write at once: they take a millisecond."""

_PAUSE: Final = 1.0
"""Seconds after which fewer are written, once the next request ends."""


class LatencyRecording:
    """A recording of latencies that is under way; made by ``publisher.record_latencies(path)``.

    Leaving the ``with`` block, or closing the publisher, ends it as ``close()`` does.

    Attributes:
        path: The file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        record: Callable[[Recording | None], object] | None,
        *,
        clock: Callable[[], float],
        run: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Begin; ``record`` None is for a publisher that cannot, because hedging is off.

        Args:
            path: The file.
            record: Tells the publisher's batches where to record, or with None to stop.
            clock: The publisher's.
            run: Runs a function on a thread that may wait; None where it is called on one.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If it exists and is no recording.
        """
        self.path = os.path.abspath(path)
        self._record = record
        self._run = run
        self._to_unix = time.time() - clock()
        self._due = clock() + _PAUSE
        self._reset()
        if record is None:
            log.write(
                logging.WARNING,
                "no latencies are recorded into %s, because hedging is off: to record without "
                "sending hedges use HedgingSettings(observe_only=True)",
                self.path,
            )
            return
        with open(self.path, "a+b") as file:
            file.seek(0)
            if file.read(len(_FIRST_LINE)) not in (b"", _FIRST_LINE):
                raise ValueError(
                    "path must name a new file, or one that record_latencies() wrote, which is "
                    f"continued; got {self.path!r}: name another one"
                )
        _live.add(self)
        record(self)

    def _reset(self) -> None:
        self._rows: collections.deque[tuple[Any, ...]] = collections.deque()
        self._dropped = 0
        self._is_asked_for = False
        self._writing = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self._record is not None

    # --- For the batches: one thread at a time.

    def add(
        self, sent_at: float, latency: float, topic: str, attempt: int, outcome: str, now: float
    ) -> bool:
        """Take in the end of an attempt; return whether to ``write`` soon."""
        rows = self._rows
        if len(rows) >= MAX_ROWS:
            self._dropped += 1
            return False
        rows.append((sent_at, latency, topic, attempt, outcome))
        if self._is_asked_for or (len(rows) < _MANY and now < self._due):
            return False
        self._due = now + _PAUSE
        self._is_asked_for = True
        return True

    def write(self) -> None:
        """Write what was taken in, on a thread that may wait for the disk."""
        if self._run is not None:
            with contextlib.suppress(RuntimeError):  # it ends, and starts no more threads
                self._run(self._write)
                return
        self._write()

    # --- For whoever started it.

    def close(self) -> None:
        """Record no more, and write what is left. Closing again does nothing."""
        record, self._record = self._record, None
        if record is not None:
            record(None)
            self._write(wait=True)

    def __enter__(self) -> LatencyRecording:
        """Return the recording."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Record no more, and write what is left."""
        self.close()

    def __del__(self) -> None:
        """Write what is left."""
        with contextlib.suppress(Exception):
            self._write()

    def _write(self, *, wait: bool = False) -> None:
        # A writer at work leaves nothing for a second one, but what comes after it.
        if not self._writing.acquire(timeout=_PAUSE if wait else 0):
            return
        try:
            self._is_asked_for = False
            if self._rows:
                self._append(self._take())
        except OSError as error:
            record, self._record = self._record, None
            if record is not None:
                record(None)
            log.write(
                logging.WARNING,
                "latencies are not recorded any more, %s cannot be written: %s",
                self.path,
                error,
            )
        finally:
            self._writing.release()

    def _take(self) -> bytes:
        text, rows = io.StringIO(), self._rows
        # Not more than there are now: others are coming in meanwhile.
        taken = [rows.popleft() for _ in range(len(rows))]
        csv.writer(text, lineterminator="\n").writerows(
            (f"{sent_at + self._to_unix:.6f}", f"{latency:.6f}", *others)
            for sent_at, latency, *others in taken
        )
        if self._dropped:
            log.write(
                logging.WARNING,
                "%d latencies were not recorded, because writing %s took too long",
                self._dropped,
                self.path,
            )
            self._dropped = 0
        return text.getvalue().encode(errors="replace")

    def _append(self, data: bytes) -> None:
        # Opened each time, so that neither a fork nor a program that moves the file away matters.
        # One write at its end: rows of several processes do not mix.
        with open(self.path, "ab", buffering=0) as file:
            data = data if file.tell() else _FIRST_LINE + data
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = file.tell()
        if size >= MAX_BYTES:
            os.replace(self.path, f"{self.path}.1")


def start_recording(
    path: str | os.PathLike[str],
    record: Callable[[Recording | None], object] | None,
    *,
    clock: Callable[[], float],
    previous: LatencyRecording | None,
    is_closed: bool,
    run: Callable[[Callable[[], None]], object] | None = None,
) -> LatencyRecording:
    """Begin a recording of a publisher, which may be closed or have had a previous one."""
    if is_closed:
        raise RuntimeError("Cannot record latencies of a closed publisher.")
    if previous is not None and previous.is_open:
        raise RuntimeError(
            f"this publisher is recording into {previous.path!r} already: close() that recording"
        )
    return LatencyRecording(path, record, clock=clock, run=run)


_live: weakref.WeakSet[LatencyRecording] = weakref.WeakSet()


def write_all() -> None:
    """Write what all recordings have taken in, as the process ends."""
    for recording in list(_live):
        recording._write(wait=True)


def _reset_in_child() -> None:
    for recording in list(_live):  # what was taken in before the fork is the parent's to write
        recording._reset()


atexit.register(write_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
