"""The access token of a publisher: fetched once for all its channels, and known to be on its way.

A channel has credentials of its own: a copy with scopes and a quota project. So each channel would
fetch a token, and each request that finds none valid fetches one of its own, hedges included.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from google.auth.credentials import CredentialsWithQuotaProject, with_scopes_if_required

_tokens: weakref.WeakSet[SharedToken] = weakref.WeakSet()


class SharedToken:
    """Credentials that several channels share.

    They look like those that they are made of, for gRPC's plugin treats service accounts apart.
    """

    requires_scopes = False

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self.reset_after_fork()
        _tokens.add(self)

    def reset_after_fork(self) -> None:
        """Forget a refresh of the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._refreshes = 0
        self._error: BaseException | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the credentials."""
        return type(self._credentials)

    def __getattr__(self, name: str) -> Any:
        """Return what the credentials have."""
        return getattr(self._credentials, name)

    def with_scopes(self, *_args: Any, **_kwargs: Any) -> SharedToken:
        """Return itself: it has its scopes."""
        return self

    def with_quota_project(self, *_args: Any, **_kwargs: Any) -> SharedToken:
        """Return itself: it has its quota project."""
        return self

    @property
    def is_awaited(self) -> bool:
        """Whether a token is on its way."""
        return self._lock.locked()

    def before_request(self, *args: Any, **kwargs: Any) -> None:
        """Add a valid token to a request's headers; wait for it with all who need it."""
        if self._credentials.valid:
            self._credentials.before_request(*args, **kwargs)
            return
        before = self._refreshes
        with self._lock:
            if self._refreshes != before and self._error is not None:
                raise self._error  # of the very refresh that this one has waited for
            try:
                self._credentials.before_request(*args, **kwargs)
                self._error = None
            except BaseException as error:
                self._error = error
                raise
            finally:
                self._refreshes += 1


def shared_token(
    credentials: Any, scopes: Any, default_scopes: Any, quota_project_id: str | None
) -> SharedToken:
    """Make credentials for several channels out of a client's, as api-core does for each."""
    scoped = with_scopes_if_required(credentials, scopes=scopes, default_scopes=default_scopes)
    if quota_project_id and isinstance(scoped, CredentialsWithQuotaProject):
        scoped = scoped.with_quota_project(quota_project_id)
    return SharedToken(scoped)


def _reset_after_fork() -> None:
    for token in tuple(_tokens):
        token.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
