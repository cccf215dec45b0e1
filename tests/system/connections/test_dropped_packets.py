"""Packets that are really lost: neither acknowledged nor refused, and sent again by the kernel.

Needs a network namespace, which takes Linux, ``unshare`` and ``ip``, and the right to make one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

pytestmark = pytest.mark.slow

# Without the right of root, a user namespace around it gives it where that is allowed.
_WAYS = (["unshare", "--net"], ["unshare", "--map-root-user", "--net"])
_NEEDED = "ip link set lo up && ip rule add pref 10 ipproto tcp sport 1 blackhole"


@cache
def in_namespace() -> list[str]:
    """Return the words before a command that run it in a new network namespace.

    Skips the test, with the reason, where that is not possible.
    """
    reasons = []
    for way in _WAYS:
        try:
            done = subprocess.run(  # noqa: S603
                [*way, "sh", "-c", _NEEDED], capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            reasons.append(str(error))
        else:
            if done.returncode == 0:
                return way
            reasons.append(f"{' '.join(way)}: {done.stderr.strip()}")
    pytest.skip(f"no network namespace that drops packets can be made here: {'; '.join(reasons)}")


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_publishing_settles_while_packets_are_dropped(kind: str) -> None:
    """As over a frozen connection; and when packets pass again, everything goes on."""
    program = [sys.executable, "-m", "tests.system.connections.namespace_program", kind]
    done = subprocess.run(  # noqa: S603
        [*in_namespace(), *program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["dropped"]) == 50
    assert result["dropped"][0] < 0.35
    assert max(result["dropped"][-10:]) < 0.1
    assert max(result["after"][-5:]) < 0.1
    assert result["max_open"] <= 3
