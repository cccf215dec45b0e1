"""The extras that a command needs, checked before it measures for a minute."""

from __future__ import annotations

import importlib.util

from hedged_pubsub.cli.values import UsageError


def check_extras(command: str, *, plots: bool) -> None:
    """Check that what a command shows its results with is installed.

    Args:
        command: The command's name, for the error.
        plots: Whether it draws something.

    Raises:
        UsageError: If something is missing; says how to install it.
    """
    needed = [("rich", "cli")] + ([("matplotlib", "plot")] if plots else [])
    missing = [(module, extra) for module, extra in needed if not importlib.util.find_spec(module)]
    if missing:
        modules = ", ".join(module for module, _ in missing)
        extras = ",".join(extra for _, extra in missing)
        raise UsageError(
            f"hedged-pubsub {command}: error: not installed: {modules};"
            f" run: pip install 'hedged-pubsub[{extras}]'"
        )
