"""Interrupts a call at any place where CPython looks for signals.

CPython itself is asked where that is, since it differs between its releases: a signal is made
pending before each bytecode instruction that the call runs, in whatever module, and the handler
runs where the interpreter looks next. On Python 3.10 to 3.13 that is on entering a function, after
a call, on a jump backwards, in a few blocking functions, and on 3.10 where an exception is caught;
no other place: not between the acquisition of a lock and the body of its ``with``, for example. The
signal handler counts, and does at the given place what was asked for.

The garbage collector is another way in: up to Python 3.11 it runs within the allocation of whatever
it tracks, later where the interpreter looks for signals; and it calls Python code, where signals
are handled and threads are switched.
"""

from __future__ import annotations

import _thread
import dis
import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

_SIGNAL: Final = signal.SIGUSR1
_RESUME: Final = dis.opmap.get("RESUME")


class TimeLimitError(Exception):
    """What a time limit raises from a signal handler, as Celery's soft limit does."""


def raise_time_limit(*_: object) -> None:
    """Stand for the signal handler."""
    raise TimeLimitError("time is up")


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """How an interrupted call ended."""

    place: str | None  # None if it has fewer places
    raised: BaseException | None
    # The interpreter dropped the exception: in a finalizer, or a callback of a weak reference.
    lost: bool


def interrupt(
    call: Callable[[], object],
    number: int,
    handler: Callable[[str], object],
    *,
    but_in: re.Pattern[str] | None = None,
) -> Interruption:
    """Call something on the main thread, and a signal handler at one of the places in it.

    They are counted from 1 in the order in which the call comes by; the handler is told which. Of
    functions in files that match ``but_in`` only the entry counts.
    """
    place: str | None = None
    seen = 0
    last: tuple[FrameType | None, int] = None, 0
    dropped: list[object] = []

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal seen, place, last
        if frame is None or place is not None or frame.f_code in own_code:
            return
        # A traced Python 3.11 looks twice on entering a function. (No call here: it is traced.)
        if last == (frame, frame.f_lasti) and frame.f_code.co_code[frame.f_lasti] == _RESUME:
            return
        last = frame, frame.f_lasti
        seen += 1
        if seen == number:
            sys.settrace(None)
            place = _describe(frame)
            handler(place)

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code in own_code or (but_in and but_in.search(frame.f_code.co_filename)):
            return None
        frame.f_trace_opcodes = True
        # Calls a C function without a call instruction, after which the signal would be handled
        # in here already. So does whatever comes below but a return.
        (_,) = map(_thread.interrupt_main, (_SIGNAL,))
        return trace

    own_code = {interrupt.__code__, handle.__code__, trace.__code__}
    handler_before = signal.signal(_SIGNAL, handle)
    hook_before = sys.unraisablehook
    sys.unraisablehook = dropped.append
    raised = None
    sys._getframe().f_trace_opcodes = True  # or Python 3.12 traces none
    sys.settrace(trace)
    try:
        call()
    except BaseException as caught:  # noqa: BLE001 - it is looked at
        raised = caught
    finally:
        sys.settrace(None)
        sys.unraisablehook = hook_before
        signal.signal(_SIGNAL, handler_before)
    return Interruption(place=place, raised=raised, lost=bool(dropped))


def interrupt_collection(
    call: Callable[[], object], number: int, handler: Callable[[str], object]
) -> Interruption:
    """Call something, and a handler in one of the garbage collections while it runs.

    There is one in each allocation of something that the collector tracks, unless the interpreter
    had it in store, or from Python 3.12 on soon after that. They are counted from 1; call with 0
    first: in the first call of a function the interpreter makes what later calls find. The handler
    must not raise: the collector drops that, and it counts as lost.
    """
    place: str | None = None
    seen = 0
    thread = _thread.get_ident()
    kept: list[object] = []
    dropped: list[object] = []

    def collected(phase: str, _: object) -> None:
        nonlocal seen, place
        if place is not None or _thread.get_ident() != thread:
            return
        if phase == "stop":
            # They empty the interpreter's store, and the next object is enough for a collection.
            kept.extend(([], {}) for _ in range(80))
        else:
            frame = sys._getframe(1)
            seen += frame.f_code is not own_code
            if seen == number > 0:
                gc.set_threshold(*thresholds_before)
                place = _describe(frame)
                handler(place)

    own_code = interrupt_collection.__code__
    thresholds_before, hook_before = gc.get_threshold(), sys.unraisablehook
    sys.unraisablehook = dropped.append
    raised = None
    gc.freeze()  # or each collection would take a while
    gc.callbacks.append(collected)
    gc.collect()
    gc.set_threshold(1, 1, 1)  # all generations, which empties the store of tuples
    tracer = sys.gettrace()
    sys.settrace(None)  # the coverage's allocates between any two lines
    try:
        call()
    except BaseException as caught:  # noqa: BLE001 - it is looked at
        raised = caught
    finally:
        sys.settrace(tracer)
        gc.set_threshold(*thresholds_before)
        gc.unfreeze()
        gc.callbacks.remove(collected)
        sys.unraisablehook = hook_before
    return Interruption(place=place, raised=raised, lost=bool(dropped))


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    path = os.sep.join(code.co_filename.split(os.sep)[-3:])
    here = (one.opname for one in dis.get_instructions(code) if one.offset == frame.f_lasti)
    # Python 3.10 has no instruction for the entry.
    return f"{path}:{frame.f_lineno} in {code.co_name}, {next(here, 'entry')}"
