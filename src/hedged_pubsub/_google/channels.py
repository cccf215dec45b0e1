"""A second channel like the one that the official client makes, with a connection of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._google.token_wait import SharedToken, shared_token

_LOCAL_POOL: Final = ("grpc.use_local_subchannel_pool", 1)
"""Without it gRPC lets channels to one target share a connection."""

_RECONNECT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""gRPC would wait 1 to 120 s before it connects again, while all requests fail (R17)."""

_OWN_TIMEOUT: Final = ("grpc.min_reconnect_backoff_ms", 1000)
_CLIENTS_TIMEOUT: Final = ("grpc.min_reconnect_backoff_ms", 5000)
"""Milliseconds that connecting may take; gRPC's default is 20 s. Where packets were dropped, a new
attempt is connected at once, and the old one only with its next repetition. The client's channel
keeps more time, for a process that starts on a fraction of a core may take a second for TLS."""


MakeChannel = Callable[[], Any]


class SecondChannel:
    """Makes channels like a client's, with connections of their own, once the client was made.

    Attributes:
        token: What the credentials of all its channels share; ``None`` where there are none.
        is_customized: Whether the transport is of a class of the caller's.
        arguments: The host of the client's channel, and what else it was made with; ``None`` where
            it is the emulator's.
    """

    def __init__(self) -> None:
        self.token: SharedToken | None = None
        self.is_customized = False
        self.arguments: tuple[str, dict[str, Any]] | None = None
        self.make: Callable[[], Any]

    def __call__(self) -> Any:
        """Make a channel."""
        return self.make()


def second_channel(
    client_arguments: dict[str, Any],
    transport_class: type[PublisherTransport],
    insecure_channel: Callable[..., Any],
    endpoint: str | None = None,
) -> SecondChannel | None:
    """Return what, once a client was made, makes channels like the client's, to an endpoint if any.

    The client's transport calls its class's ``create_channel`` with the host, credentials, scopes,
    certificates, quota project and options that it has worked out. A subclass, which replaces
    ``transport`` in ``client_arguments``, takes note of them for the same call with more options.
    Credentials are shared, so that one token serves all channels. There cannot be such a channel,
    and ``None`` is returned, if the caller made the channel or makes the transport.
    """
    transport = client_arguments.get("transport")
    if isinstance(transport, PublisherTransport):
        return None
    if transport is None or isinstance(transport, str):
        transport = transport_class
    if not (isinstance(transport, type) and issubclass(transport, transport_class)):
        return None
    if endpoint is not None and not endpoint.rpartition(":")[2].isdecimal():
        endpoint += ":443"
    second = SecondChannel()
    second.is_customized = transport is not transport_class
    if emulator := os.environ.get("PUBSUB_EMULATOR_HOST"):
        options = [*_RECONNECT, _OWN_TIMEOUT, _LOCAL_POOL]
        second.make = lambda: insecure_channel(endpoint or emulator, options=options)
        return second
    original: Any = transport
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def create_channel(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        if (credentials := kwargs.get("credentials")) is not None:
            scopes = (kwargs.get("scopes"), original.AUTH_SCOPES)
            second.token = shared_token(credentials, *scopes, kwargs.get("quota_project_id"))
            kwargs["credentials"] = second.token
        made.append((args, kwargs))
        second.arguments = args[0], kwargs
        return original.create_channel(
            *args, **_with_options(kwargs, *_RECONNECT, _CLIENTS_TIMEOUT)
        )

    def make_channel() -> Any:
        (host, *args), kwargs = made[-1]
        options = (*_RECONNECT, _OWN_TIMEOUT, _LOCAL_POOL)
        return original.create_channel(endpoint or host, *args, **_with_options(kwargs, *options))

    second.make = make_channel
    members = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    members["create_channel"] = classmethod(create_channel)
    client_arguments["transport"] = type(original.__name__, (original,), members)
    return second


def _with_options(kwargs: dict[str, Any], *options: tuple[str, int]) -> dict[str, Any]:
    """Return the arguments with more options, but for those that they have."""
    given = list(kwargs.get("options") or ())
    names = {name for name, _ in given}
    return {**kwargs, "options": [*given, *(one for one in options if one[0] not in names)]}
