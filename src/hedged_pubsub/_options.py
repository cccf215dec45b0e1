"""What both publishers refuse when they are made."""

from __future__ import annotations

import inspect
import os
from typing import Any, Final

from google.cloud import pubsub_v1

from hedged_pubsub.settings import HedgingSettings

DISABLE_VARIABLE: Final = "HEDGED_PUBSUB_DISABLE"
"""Environment variable by which operators turn hedging off, without a release: ``1``."""


def is_switched_off() -> bool:
    """Tell whether the operators have turned hedging off."""
    return os.environ.get(DISABLE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def check_hedging_settings(settings: object) -> None:
    """Refuse what are no hedging settings.

    Raises:
        TypeError: If they are neither ``HedgingSettings`` nor ``None``.
    """
    if settings is not None and not isinstance(settings, HedgingSettings):
        raise TypeError(
            "hedging_settings must be a HedgingSettings, or None to turn hedging off; "
            f"got {settings!r}"
        )


def refuse_ordering(options: object, remedy: str) -> None:
    """Refuse ordering; options of another type are the official constructor's to refuse.

    Args:
        options: ``PublisherOptions``, or an empty sequence.
        remedy: What to do instead.

    Raises:
        ValueError: If it is enabled.
    """
    if getattr(options, "enable_message_ordering", False):
        raise ValueError(
            "enable_message_ordering=True and hedging exclude each other, because a hedge can "
            f"overtake: {remedy}"
        )


def refuse_transport(transport: object, wanted: type, remedy: str) -> None:
    """Refuse a transport whose calls hedging cannot run in parallel and cancel.

    Args:
        transport: A transport, its class or its name; what cannot be told yet is let pass.
        wanted: The class that it must be of.
        remedy: What to use instead.

    Raises:
        KeyError: If there is no transport of that name, as officially.
        ValueError: If there is, but not with such calls.
    """
    if transport is None or isinstance(transport, wanted):
        return
    kind: Any = transport
    if isinstance(transport, str):
        kind = pubsub_v1.PublisherClient.get_transport_class(transport)
    if inspect.isclass(kind):
        if issubclass(kind, wanted):
            return
    elif callable(kind):
        return  # a factory; what it returns is looked at once it was called
    raise ValueError(
        f"transport={transport!r} has no gRPC calls that can be cancelled, which hedging needs: "
        f"use {remedy}"
    )
