"""A second channel like the one that the official client makes, with a connection of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

_LOCAL_POOL: Final = ("grpc.use_local_subchannel_pool", 1)
"""Without it gRPC lets channels to one target share a connection."""

MakeChannel = Callable[[], Any]


def second_channel(
    client_arguments: dict[str, Any],
    transport_class: type[PublisherTransport],
    insecure_channel: Callable[..., Any],
) -> MakeChannel | None:
    """Return a function that, once a client was made, makes channels like the client's.

    The client's transport calls its class's ``create_channel`` with the host, credentials, scopes,
    certificates, quota project and options that it has worked out. A subclass, which replaces
    ``transport`` in ``client_arguments``, takes note of them for the same call with one option
    more. There cannot be such a channel, and ``None`` is returned, if the caller made the channel
    or makes the transport.
    """
    transport = client_arguments.get("transport")
    if isinstance(transport, PublisherTransport):
        return None
    if transport is None or isinstance(transport, str):
        transport = transport_class
    if not (isinstance(transport, type) and issubclass(transport, transport_class)):
        return None
    if emulator := os.environ.get("PUBSUB_EMULATOR_HOST"):
        return lambda: insecure_channel(emulator, options=[_LOCAL_POOL])
    original: Any = transport
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def create_channel(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        made.append((args, kwargs))
        return original.create_channel(*args, **kwargs)

    def make_channel() -> Any:
        args, kwargs = made[-1]
        options = [*(kwargs.get("options") or ()), _LOCAL_POOL]
        return original.create_channel(*args, **{**kwargs, "options": options})

    members = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    members["create_channel"] = classmethod(create_channel)
    client_arguments["transport"] = type(original.__name__, (original,), members)
    return make_channel
