"""Pytest fixtures with a running server, one for each scope.

pytest finds them in the installed package, without an import. Where plugins are not loaded by
themselves (``PYTEST_DISABLE_PLUGIN_AUTOLOAD``), enable them in the top ``conftest.py``::

    pytest_plugins = ["hedged_pubsub.testing.pytest_plugin"]

Every run of pytest imports this module, so it imports neither gRPC nor Google's client: the first
fixture that is used does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from hedged_pubsub.testing.server import PubSubServer


def _fixture(scope: Literal["function", "class", "module", "package", "session"]) -> Any:
    lifetime = {"function": "test", "session": "whole run"}.get(scope, scope)

    def server() -> Iterator[PubSubServer]:
        from hedged_pubsub.testing.server import PubSubServer

        with PubSubServer(auto_create_topics=True, relay=True, set_emulator_host=True) as running:
            yield running

    server.__doc__ = f"""A running `hedged_pubsub.testing.PubSubServer` for the {lifetime}.

    It has no faults, and creates topics when they are published to. ``PUBSUB_EMULATOR_HOST``
    leads to it meanwhile, so clients that are made then use it. Let it misbehave with
    `set_script()`; it has a relay, so every fault is available. `clear()` forgets what it recorded.
    """
    return pytest.fixture(scope=scope)(server)


pubsub_server = _fixture("function")
class_pubsub_server = _fixture("class")
module_pubsub_server = _fixture("module")
package_pubsub_server = _fixture("package")
session_pubsub_server = _fixture("session")
