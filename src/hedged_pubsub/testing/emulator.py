"""Google's own Pub/Sub emulator: where it is installed, and how it is run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc

JAR_VARIABLE: Final = "HEDGED_PUBSUB_EMULATOR_JAR"
# One second is usual; a busy two-core machine has been seen to take several.
START_TIMEOUT_SECONDS: Final = 60.0

_JAR_PATTERN: Final = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_USUAL_SDK_FOLDERS: Final = (
    "~/google-cloud-sdk",
    "/usr/lib/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/opt/homebrew/share/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
)


class EmulatorNotInstalledError(Exception):
    """The emulator, or the Java to run it with, is not on this machine."""


def find_emulator() -> tuple[str, Path]:
    """Return the path of ``java`` and that of the emulator's jar.

    Raises:
        EmulatorNotInstalledError: If either is missing.
    """
    jar = _find_jar()
    if java := shutil.which("java"):
        return java, jar
    raise EmulatorNotInstalledError(f"found {jar}, but no java on the PATH to run it with")


@contextmanager
def running_emulator(java: str, jar: Path) -> Iterator[str]:
    """Run the emulator on a free port until the block ends; yield its address once it answers.

    Raises:
        RuntimeError: If it ends, or does not answer in time; with what it printed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = [java, "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]
    with tempfile.TemporaryFile(mode="w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
        try:
            if not _answers(process, address):
                output.seek(0)
                raise RuntimeError(
                    f"the emulator at {jar} did not answer on {address} within "
                    f"{START_TIMEOUT_SECONDS:g} s; it printed:\n{output.read()}"
                )
            yield address
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


def _find_jar() -> Path:
    named = os.environ.get(JAR_VARIABLE)
    if named is not None:
        if not Path(named).is_file():
            raise EmulatorNotInstalledError(f"{JAR_VARIABLE} names {named}, which is not a file")
        return Path(named)
    folders = [Path(folder).expanduser() for folder in _USUAL_SDK_FOLDERS]
    if gcloud := shutil.which("gcloud"):
        # <sdk>/bin/gcloud, often behind a link in /usr/bin.
        folders.insert(0, Path(gcloud).resolve().parent.parent)
    if root := os.environ.get("CLOUDSDK_ROOT_DIR"):
        folders.insert(0, Path(root))
    for folder in folders:
        # The newest, if an upgrade left an older one behind.
        for jar in sorted(folder.glob(_JAR_PATTERN), reverse=True):
            return jar
    raise EmulatorNotInstalledError(
        f"no {_JAR_PATTERN} under {', '.join(map(str, folders))}; install it with "
        f"'gcloud components install pubsub-emulator', or name the jar in {JAR_VARIABLE}"
    )


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with grpc.insecure_channel(address) as channel, suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=1.0)
            return True
    return False
