"""What becomes of accepted messages when the process forks or ends.

* Fork: the parent's messages stay the parent's. In the child every publisher starts empty, with
  locks and threads of its own; the copies of the parent's futures fail there with a clear error.
* End of the interpreter: what was accepted is sent, with a bounded wait, and what could not be is
  counted in a warning.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable

from hedged_pubsub._sync import future, threads
from hedged_pubsub._sync.batcher import Batcher

_LOGGER = logging.getLogger(__name__)

# Every batcher that is alive, and the seconds that the end of the interpreter waits for it.
_batchers: weakref.WeakKeyDictionary[Batcher, float] = weakref.WeakKeyDictionary()


def look_after(batcher: Batcher, exit_timeout: float) -> None:
    """Look after a batcher at a fork and at the end of the interpreter.

    Args:
        batcher: Whose messages are to be sent; not kept alive.
        exit_timeout: Seconds to wait for them at most when the interpreter ends.
    """
    _batchers[batcher] = exit_timeout


def send_before_exit() -> None:
    """Send what was accepted and refuse what comes later; for the end of the interpreter."""
    start = threads.CLOCK()
    batchers = list(_batchers.items())
    on_this_thread = not _can_start_threads()
    given_up = [
        batcher.send_last(on_this_thread=on_this_thread, deadline=start + timeout)
        for batcher, timeout in batchers
    ]
    for (batcher, timeout), lost in zip(batchers, given_up, strict=True):
        time_left = max(0.0, start + timeout - threads.CLOCK())
        _, undecided = concurrent.futures.wait(batcher.undecided(), time_left)
        if lost or undecided:
            _LOGGER.warning(
                "%d messages were not stored when the interpreter ended, %g s after the last "
                "chance to publish: call flush() or close() before, or raise exit_timeout",
                lost + len(undecided),
                timeout,
            )
    if batchers:
        # Done-callbacks of what was decided just now.
        threads.WORKERS.wait_until_idle(
            start + max(timeout for _, timeout in batchers) - threads.CLOCK()
        )


def _can_start_threads() -> bool:
    """Tell whether new threads are still allowed; some Python versions forbid them by now."""
    try:
        thread = threading.Thread(target=lambda: None, daemon=True)
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


def _before_fork() -> None:
    _prepare_multiprocessing()
    threads.FORK_GATE.close()


def _start_anew_in_child() -> None:
    threads.FORK_GATE.start_anew()
    future.start_anew()
    threads.SCHEDULER.start_anew()
    threads.WORKERS.start_anew()
    for batcher in list(_batchers):
        batcher.start_anew()


def _prepare_multiprocessing() -> None:
    """See to it that a child of ``multiprocessing`` sends its messages too.

    Such a child ends without the interpreter's exit handlers; it has finalizers of its own, which
    are cleared when it starts, so that they have to be made after that.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _multiprocessing_is_prepared:
        _multiprocessing_is_prepared.append(True)
        make_finalizer: Callable[..., object] = util.Finalize
        util.register_after_fork(
            send_before_exit, lambda send: make_finalizer(None, send, exitpriority=0)
        )


_multiprocessing_is_prepared: list[bool] = []

atexit.register(send_before_exit)
if hasattr(os, "register_at_fork"):
    # Of what is registered for the time before a fork, the last comes first: ours, then gRPC's.
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=threads.FORK_GATE.open,
        after_in_child=_start_anew_in_child,
    )
