"""What happens to accepted messages when the process forks or ends.

* Fork: the parent sends its messages. In the child every publisher starts empty, with locks and
  threads of its own; the copies of the parent's futures fail there.
* End of the interpreter: what was accepted is sent, with a bounded wait, and a warning counts what
  could not be stored.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub import _recording
from hedged_pubsub._core import log
from hedged_pubsub._google import forks
from hedged_pubsub._google.unhedged import UnhedgedPublisher
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.library_thread import Parking
from hedged_pubsub._sync.sender import Sender, undecided_after

_PATIENCE = 1.0
"""Seconds that a fork waits for the library's thread. It runs no user's code: 0.1 ms is enough."""

_PASS: Final = 0.002
"""Seconds in which a thread of gRPC's that has a request's access token passes it to the core."""

# For each sender that is alive, the seconds that the end of the interpreter waits for it.
_senders: weakref.WeakKeyDictionary[Sender, float] = weakref.WeakKeyDictionary()


def register(sender: Sender, exit_timeout: float) -> None:
    """Send its messages when the interpreter ends, and reset it after a fork, while it is alive."""
    _senders[sender] = exit_timeout


# The same for publishers with hedging off, whose messages the end of the interpreter leaves alone.
_official: weakref.WeakKeyDictionary[UnhedgedPublisher, float] = weakref.WeakKeyDictionary()


def register_official(publisher: UnhedgedPublisher, exit_timeout: float) -> None:
    """Let ``send_soon`` and ``send_before_the_end`` send its messages too, while it is alive."""
    _official[publisher] = exit_timeout


def send_before_exit(*_: object, **__: object) -> None:
    """Send what was accepted and refuse what comes later, as the interpreter ends."""
    start = threads.CLOCK()
    senders = list(_senders.items())
    on_this_thread = not _can_start_threads()
    for sender, _timeout in senders:
        sender.refuse("Cannot publish while the interpreter shuts down.")
    given_up = [
        sum(
            batch.count
            for batch in sender.hold_back()
            if not sender.driver.send_and_wait(batch, start + timeout)
        )
        if on_this_thread
        else 0
        for sender, timeout in senders
    ]
    _send(start, senders, given_up)


def send_soon() -> None:
    """Send what was accepted. Returns at once."""
    for sender in list(_senders):
        sender.send_soon()
    for publisher, timeout in list(_official.items()):
        # On a worker: a call of ``publish()``, which a signal may have interrupted, holds a lock.
        wait = threads.start_on_worker(functools.partial(publisher.flush, timeout))
        _flushes.append((wait, timeout))


_flushes: list[tuple[Callable[[float], None], float]] = []
"""Of publishers with hedging off: how to wait, and for how long."""


def send_before_the_end() -> None:
    """Send what was accepted, and wait as long as the end of the interpreter would."""
    start = threads.CLOCK()
    send_soon()
    senders = list(_senders.items())
    _send(start, senders, [0] * len(senders))


def _send(start: float, senders: list[tuple[Sender, float]], given_up: list[int]) -> None:
    _send_and_wait(start, senders, given_up)
    if senders:
        # For the done-callbacks of what has just ended, and for log lines.
        longest = max(timeout for _, timeout in senders)
        threads.WORKERS.wait_until_idle(start + longest - threads.CLOCK())
    while _flushes:
        wait, timeout = _flushes.pop()
        with contextlib.suppress(Exception):
            wait(max(0.0, start + timeout - threads.CLOCK()))
    _recording.write_all()


def _send_and_wait(start: float, senders: list[tuple[Sender, float]], given_up: list[int]) -> None:
    accepted = [sender.send_all() for sender, _timeout in senders]
    for (_sender, timeout), lost, futures in zip(senders, given_up, accepted, strict=True):
        lost += undecided_after(futures, max(0.0, start + timeout - threads.CLOCK()))
        if lost:
            log.write(
                logging.WARNING,
                "%d messages were not stored when the interpreter ended, %g s after the last "
                "chance to publish: call flush() or close() before, or raise exit_timeout",
                lost,
                timeout,
            )


def _can_start_threads() -> bool:
    """Check whether threads can be started, which some Python versions forbid by now."""
    try:
        thread = threading.Thread(target=lambda: None, daemon=True)
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


# By the thread that forks.
_parkings: dict[int, list[Parking]] = {}


def _before_fork() -> None:
    _prepare_children()
    parkings = _parkings[threading.get_ident()] = [threads.LIBRARY.park(_PATIENCE)]
    threads.FORK_GATE.close()
    if _senders:
        forks.before()
    if not forks.is_supported_by_grpc():
        _park_channels(parkings)


def _park_channels(parkings: list[Parking]) -> None:
    """Hold gRPC's threads of our channels outside of its core; see ``forks``."""
    give_up = threads.CLOCK() + _PATIENCE
    parked: set[Any] = set()
    before = -1
    # What is answered meanwhile may be sent again, on a channel that had no thread before.
    while len(parked) > before:
        before = len(parked)
        for channel in {one for sender in list(_senders) for one in sender.driver.rpc.channels}:
            parking = Parking()
            if channel not in parked and forks.call_on_thread(channel, parking.take):
                parked.add(channel)
                parkings.append(parking)
                parking.arrived.acquire(timeout=max(0.0, give_up - threads.CLOCK()))
    if parked:
        time.sleep(_PASS)


def _after_fork_in_parent() -> None:
    threads.FORK_GATE.open()
    for parking in _parkings.pop(threading.get_ident(), ()):
        parking.end()


def _reset_in_child() -> None:
    forks.after_in_child()
    _parkings.clear()
    _flushes.clear()
    threads.FORK_GATE.reset_after_fork()
    threads.LIBRARY.reset_after_fork()
    threads.WORKERS.reset_after_fork()
    for sender in list(_senders):
        sender.reset_after_fork()


def _prepare_children() -> None:
    """Let children that end without exit handlers send their messages too."""
    for name, prepare in _KINDS_OF_CHILDREN.items():
        module = sys.modules.get(name)
        if module is not None and name not in _prepared:
            _prepared.add(name)
            prepare(module)


def _add_finalizer(util: Any) -> None:
    # Of ``multiprocessing``, whose children run finalizers. They can be made once a child runs.
    util.register_after_fork(
        send_before_exit, lambda send: util.Finalize(None, send, exitpriority=0)
    )


def _connect(signals: Any) -> None:
    # Of Celery, whose workers end by ``os._exit`` after they have sent this signal.
    signals.worker_process_shutdown.connect(send_before_exit, weak=False)


_KINDS_OF_CHILDREN: Final[dict[str, Callable[[Any], None]]] = {
    "multiprocessing.util": _add_finalizer,
    "billiard.util": _add_finalizer,
    "celery.signals": _connect,
}
_prepared: set[str] = set()

atexit.register(send_before_exit)
if hasattr(os, "register_at_fork"):
    # Before a fork, the last one registered is called first: ours before gRPC's.
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_reset_in_child,
    )
