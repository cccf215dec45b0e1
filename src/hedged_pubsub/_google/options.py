"""What both publishers check when they are made."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import LimitExceededBehavior
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._core.flow_control import FlowControl
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.call_policy import CallPolicies
from hedged_pubsub._google.official import publish_defaults

_SETTINGS: Final = frozenset(inspect.signature(HedgingSettings).parameters)

DISABLE_VARIABLE: Final = "HEDGED_PUBSUB_DISABLE"
"""Environment variable by which operators turn hedging off, without a release: ``1``."""


def is_switched_off() -> bool:
    """Tell whether the operators have turned hedging off."""
    return os.environ.get(DISABLE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def settings_in_force(
    settings: object, batch_settings: object, others: Mapping[str, object]
) -> HedgingSettings | None:
    """Return the hedging settings of a publisher made with these arguments; None for no hedging.

    Raise TypeError if they are of another type, or stand where others belong.
    """
    if isinstance(batch_settings, HedgingSettings):
        raise TypeError(
            "batch_settings must be a BatchSettings; got a HedgingSettings: pass it by name, as "
            "hedging_settings="
        )
    for name in others:
        if name in _SETTINGS:
            raise TypeError(
                f"{name} is an argument of HedgingSettings: pass "
                f"hedging_settings=HedgingSettings({name}={others[name]!r})"
            )
    if settings is not None and not isinstance(settings, HedgingSettings):
        wanted = "a HedgingSettings, or None to turn hedging off"
        raise TypeError(f"hedging_settings must be {wanted}; got {settings!r}")
    return None if is_switched_off() else settings


def refuse_ordering(options: object, remedy: str) -> None:
    """Raise ValueError if ordering is enabled; the official client refuses other types."""
    if getattr(options, "enable_message_ordering", False):
        raise ValueError(
            "enable_message_ordering=True and hedging exclude each other, because a hedge can "
            f"be stored before an earlier message: {remedy}"
        )


def refuse_ordering_key(key: str) -> NoReturn:
    """Raise ValueError for a message with an ordering key."""
    raise ValueError(
        f"Cannot publish a message with an ordering key when message ordering is not enabled. Got "
        f"ordering_key={key!r}, and hedging excludes ordering: leave it out, or use a publisher "
        "with hedging_settings=None and enable_message_ordering=True"
    )


class OfOneProcess:
    """A publisher: its connections and open batches belong to one process."""

    def _call_when_dropped(self, end: Callable[[], object]) -> None:
        """Call a function once this publisher was dropped, but not as the process ends."""
        finalizer = weakref.finalize(self, end)
        finalizer.atexit = False
        _finalizers[self] = finalizer

    def __copy__(self) -> Any:
        """Return a publisher that shares all with this one, as officially."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _copied=self)  # held, for what it shares ends with it
        return copy

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: it can be neither pickled nor copied deeply."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied deeply: make one in each process, "
            "where it is used first"
        )


_finalizers: weakref.WeakKeyDictionary[OfOneProcess, weakref.finalize[..., Any]]
_finalizers = weakref.WeakKeyDictionary()


@atexit.register
def _forget_finalizers() -> None:
    """Let channels go with their publishers, rather than when Python is all but gone."""
    for finalizer in list(_finalizers.values()):
        finalizer.detach()


def refuse_transport(transport: object, wanted: type, remedy: str) -> None:
    """Raise ValueError if hedging cannot cancel the calls of a transport, its class or its name."""
    kind: Any = transport
    if isinstance(transport, str):
        kind = pubsub_v1.PublisherClient.get_transport_class(transport)  # or KeyError
    if kind is None or isinstance(kind, wanted):
        return
    if issubclass(kind, wanted) if inspect.isclass(kind) else callable(kind):
        return  # what a function returns is checked once it was called
    raise ValueError(
        f"transport={transport!r} has no gRPC calls that can be cancelled, which hedging needs: "
        f"use {remedy}"
    )


def refuse_endpoint(settings: HedgingSettings, make_channel: object) -> None:
    """Raise ValueError if hedges are to have an endpoint, and no channel can be made for them."""
    if settings.hedge_endpoint is not None and make_channel is None:
        raise ValueError(
            f"hedge_endpoint={settings.hedge_endpoint!r} needs a channel of the publisher's own: "
            "leave the endpoint out, or the transport that is given"
        )


def flow_control(settings: pubsub_v1.types.PublishFlowControl) -> FlowControl:
    """Return the flow control that the publisher options ask for; by default without limits."""
    if settings.limit_exceeded_behavior == LimitExceededBehavior.IGNORE:
        return FlowControl()
    refuses = settings.limit_exceeded_behavior == LimitExceededBehavior.ERROR
    limits = (settings.message_limit, settings.byte_limit)
    return FlowControl(*limits, refuses=refuses, refusal=FlowControlLimitError)


def call_policies(
    transport: PublisherTransport,
    options: pubsub_v1.types.PublisherOptions,
    hedging: HedgingSettings | None,
    *,
    asynchronous: bool = False,
) -> CallPolicies:
    """Return the retry and the timeout that the publisher options say, or the client's own."""
    delay = None if hedging is None else hedging.initial_hedge_delay
    return CallPolicies(options, publish_defaults(transport), delay, asynchronous=asynchronous)
