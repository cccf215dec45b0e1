"""The ``hedged-pubsub`` command's entry point; ``python -m hedged_pubsub`` is the same."""

from __future__ import annotations

import errno
import io
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_EXIT_FAILED = 1
# A full disk, a reader that has left.
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO)
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments without the program's name; None takes ``sys.argv``.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong arguments or a missing extra, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of Windows, say, it may have few characters
            stream.reconfigure(errors="replace")
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor at the very end
        if not isinstance(error, BrokenPipeError):
            _complain("hedged-pubsub", f"cannot write the output: {error.strerror or error}")
        return _EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    # All is imported here: Ctrl-C meanwhile shows no traceback, and what is missing is told in
    # one line. What a command needs is imported when it runs.
    try:
        import click
    except ModuleNotFoundError:
        _complain("hedged-pubsub", "not installed: click; run: pip install 'hedged-pubsub[cli]'")
        return _EXIT_USAGE
    from hedged_pubsub.cli.arguments import ServeOptions, parse
    from hedged_pubsub.cli.report import CommandError, check_extras

    try:
        options = parse(arguments)
    except click.exceptions.Exit as done:  # --help or --version
        return done.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "hedged-pubsub"
        _complain(path, f"{error.format_message()} (options: {path} --help)")
        return error.exit_code
    try:
        if not isinstance(options, ServeOptions):
            files = (getattr(options, "plot", None), getattr(options, "report", None))
            check_extras(plots=any(files))
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, _interrupt_once)
        pkgutil.resolve_name(options.run)(options)
    except CommandError as error:
        _complain(f"hedged-pubsub {arguments[0]}", str(error))
        return error.exit_code
    return 0


def _complain(command: str, problem: str) -> None:
    print(f"{command}: error: {problem}", file=sys.stderr)


def _interrupt_once(_signal: int, _frame: FrameType | None) -> None:
    # The first Ctrl-C cleans up; a second one ends the process at once and without a traceback
    # from the middle of that (the server's process ends with its parent).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
