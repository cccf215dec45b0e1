"""Where the official client's own tests come from: its source distribution, fetched by pip."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

_DISTRIBUTION: Final = "google-cloud-pubsub"
# Only the hand-written client's tests. The package beside them must stay in the archive: unpacked,
# it would be imported instead of the installed one.
_TESTS: Final = "tests/unit/pubsub_v1/"
_TIMEOUT_SECONDS: Final = 180.0


class SourceUnavailableError(Exception):
    """The tests cannot be fetched, or cannot be run; the message says why."""


def fetch_source(folder: Path) -> Path:
    """Fetch the source distribution of the installed release, unless it was fetched before.

    Args:
        folder: Where archives are kept.

    Returns:
        The path of the archive.

    Raises:
        SourceUnavailableError: If pip cannot download it.
    """
    requirement = f"{_DISTRIBUTION}=={importlib.metadata.version(_DISTRIBUTION)}"
    kept = folder / requirement
    if not (archives := list(kept.glob("*.tar.gz"))):
        _download(requirement, kept)
        archives = list(kept.glob("*.tar.gz"))
    if not archives:
        raise SourceUnavailableError(f"{requirement} has no source distribution")
    return archives[0]


def _download(requirement: str, folder: Path) -> None:
    """Have pip do it, which knows the index, the proxy and the certificates of this machine.

    It also runs the distribution's ``setup.py`` for the metadata, in a build environment of its
    own; there is no way to tell pip that the archive is all that is wanted. What is downloaded
    appears in the folder only once all of that has gone well.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", f"--no-binary={_DISTRIBUTION}"]
    command += [f"--dest={folder}", requirement]
    try:
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailableError(f"pip took more than {_TIMEOUT_SECONDS:g} s") from error
    except subprocess.CalledProcessError as error:
        raise SourceUnavailableError(f"pip says:\n{error.stderr or error.stdout}") from error


def unpack_tests(archive: Path, folder: Path) -> Path:
    """Unpack the tests of the hand-written client, and nothing else.

    Args:
        archive: The source distribution.
        folder: Where to; outside of this project, whose pytest settings must not apply.

    Returns:
        The folder to run pytest in.

    Raises:
        SourceUnavailableError: If the archive has no such tests, or what they import is missing.
    """
    if importlib.util.find_spec("flaky") is None:
        raise SourceUnavailableError("they import flaky, which is not installed")
    with tarfile.open(archive) as source:
        members = [
            member
            for member in source.getmembers()
            if member.name.partition("/")[2].startswith(_TESTS)
        ]
        source.extractall(folder, members, filter="data")
    if not members:
        raise SourceUnavailableError(f"{archive.name} has no {_TESTS}")
    return folder / members[0].name.partition("/")[0]
