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
    """Arrange for channels like the one that a client is about to make.

    The client's transport calls its class's ``create_channel`` with the host, credentials, scopes,
    certificates, quota project and options that it has worked out. A subclass takes note of them,
    so that the second channel is made by the same call, with one option more.

    Args:
        client_arguments: Those of the generated client; ``transport`` may be replaced.
        transport_class: The class that the client would use by default.
        insecure_channel: gRPC's; the client uses it for the emulator.

    Returns:
        A function that makes such a channel, once the client was made; ``None`` if there cannot be
        one, because the caller made the channel, or makes the transport.
    """
    transport = client_arguments.get("transport")
    if isinstance(transport, PublisherTransport):
        return None
    if transport is None or isinstance(transport, str):
        transport = transport_class
    if not (isinstance(transport, type) and issubclass(transport, transport_class)):
        return None
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if emulator:
        return lambda: insecure_channel(emulator, options=[_LOCAL_POOL])
    client_arguments["transport"], make_channel = _recording(transport)
    return make_channel


def _recording(transport_class: Any) -> tuple[type[PublisherTransport], MakeChannel]:
    """Return a subclass that takes note of how channels are made, and a function to make more."""
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def create_channel(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        made.append((args, kwargs))
        return transport_class.create_channel(*args, **kwargs)

    def make_channel() -> Any:
        args, kwargs = made[-1]
        options = [*(kwargs.get("options") or ()), _LOCAL_POOL]
        return transport_class.create_channel(*args, **{**kwargs, "options": options})

    members = {
        "create_channel": classmethod(create_channel),
        "__module__": transport_class.__module__,
        "__qualname__": transport_class.__qualname__,
        "__doc__": transport_class.__doc__,
    }
    return type(transport_class.__name__, (transport_class,), members), make_channel
