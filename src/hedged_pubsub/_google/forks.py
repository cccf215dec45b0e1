"""What gRPC needs for a fork, and what became of it in the child.

gRPC's core prepares itself for a fork, unless a thread is inside it at that moment. Then the core
of the child is broken: no timer of it runs, so no timeout does, and using it can abort the process.
Each channel with calls under way has a thread that waits inside the core. grpcio takes these out if
``GRPC_ENABLE_FORK_SUPPORT=1`` is set when it is imported. But then it keeps every channel of the
process, of any library, until that is closed, and a fork takes up to a second. So this package sees
to its own channels.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc._channel
from grpc._cython import cygrpc

_TIMERS: Final = "grpc_global_tim"
"""The thread of the core's timers, as Linux names it. The core stops it before a fork, and starts
one in the child, unless it could not prepare itself."""

_PATIENCE: Final = 1.0
"""Seconds that a child waits for that thread to have its name; a millisecond is enough."""

_REMEDY: Final = (
    "fork while there are none, use another start method, or set GRPC_ENABLE_FORK_SUPPORT=1 in the "
    "environment before gRPC is imported"
)


class _Core:
    """What is known of gRPC's core."""

    had_timers = False  # with that thread, in this process or its parent
    is_unchecked = False  # in a child, until it was used


def is_supported_by_grpc() -> bool:
    """Tell whether grpcio itself takes the threads of all channels out of the core."""
    is_enabled: Callable[[], bool] = getattr(cygrpc, "is_fork_support_enabled", lambda: False)
    return is_enabled()


def call_on_thread(channel: Any, function: Callable[[], object]) -> bool:
    """Call a function soon on the thread of a channel; return False if no call is under way.

    gRPC has that thread take in the end of each call; so this makes a call that ends at once. It
    is cancelled before it has anything to send.
    """
    if not is_busy(channel):
        return False

    def ended(_event: object) -> bool:
        function()
        return True

    start = grpc._channel._channel_managed_call_management(_state(channel))
    operations = ((cygrpc.ReceiveStatusOnClientOperation(0),),)
    arguments = (0, b"/", None, None, None, None, operations, ended, None, None)
    try:
        call = start(*arguments[: len(inspect.signature(start).parameters)])
    except ValueError:  # it was closed
        return False
    call.cancel(grpc.StatusCode.CANCELLED.value[0], "")
    return True


def is_busy(channel: Any) -> bool:
    """Tell whether calls are under way whose ends a thread of the channel takes in."""
    state = _state(channel)
    return state is not None and bool(state.managed_calls)


def leave_to_parent(channel: Any) -> None:
    """Let a finalizer of gRPC's not close a channel of the parent's, in a forked child.

    It would wait for the parent's calls, whose ends nobody takes in here.
    """
    state = _state(channel)
    if state is not None:
        state.channel = None


def _state(channel: Any) -> Any:
    while channel is not None and not hasattr(channel, "_call_state"):
        channel = getattr(channel, "_channel", None)  # of an interceptor's
    return None if channel is None else channel._call_state


def before() -> None:
    """Take note of what there is before a fork."""
    _Core.had_timers = _Core.had_timers or _TIMERS in _names_of_threads()


def after_in_child() -> None:
    """Take note that this process was forked."""
    _Core.is_unchecked = _Core.had_timers


def refuse_broken_core() -> None:
    """Raise RuntimeError in a child whose core is broken, rather than hang."""
    give_up = time.monotonic() + _PATIENCE
    while _Core.is_unchecked and _TIMERS not in _names_of_threads():
        if time.monotonic() >= give_up:
            raise RuntimeError(
                "gRPC cannot be used in this process: when it was forked, another thread of its "
                f"parent was in a call of gRPC, a server or an asyncio channel for instance; "
                f"{_REMEDY}"
            )
        time.sleep(0.001)
    _Core.is_unchecked = False


def refuse_busy_channel() -> None:
    """Raise RuntimeError for a channel that had calls of the parent's, and cannot be made again."""
    raise RuntimeError(
        "this publisher was given its transport or channel, which had requests under way when the "
        f"process was forked, so it cannot be used in the child: make the publisher there, or "
        f"{_REMEDY}"
    )


def _names_of_threads() -> set[str]:
    names = set()
    with contextlib.suppress(OSError):  # not on Linux
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
                names.add(file.read().strip())
    return names
