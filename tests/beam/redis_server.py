"""A real Redis server for a test: the installed one, or that of the distribution's packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from tests.system.conftest import wait_until

_PACKAGES = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")
"""Debian's and Ubuntu's: the server, and the libraries that few other programs need."""


def find(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the program and its environment; skip the test where there is none.

    Packages are only unpacked into ``folder``: nothing is installed, and no root is needed.
    """
    if installed := shutil.which("redis-server"):
        return installed, {}
    try:
        for command in (
            ["apt-get", "download", "-q", *_PACKAGES],
            ["sh", "-ec", 'for package in *.deb; do dpkg-deb -x "$package" .; done'],
        ):
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no redis-server, so its example is not run: apt-get install it ({error})")
    libraries = ":".join(map(str, folder.glob("usr/lib/*")))
    return str(folder / "usr/bin/redis-server"), {"LD_LIBRARY_PATH": libraries}


@contextmanager
def running(program: str, environment: dict[str, str]) -> Iterator[str]:
    """Run the server on a free port until the block ends; yield its URL once it answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(  # noqa: S603
        [program, *options], env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    url = f"redis://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            with closing(redis.Redis.from_url(url)) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    try:
        wait_until(answers, timeout=20)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)
