"""The ids that ``id_attribute`` gives, and the names that it takes."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from hedged_pubsub._core.message_ids import check_id_attribute, next_id


def test_ids_are_unique_on_all_threads_and_short() -> None:
    """Threads that ask at the same time never get the same id."""

    def take(_: int) -> list[str]:
        return [next_id() for _ in range(5_000)]

    with ThreadPoolExecutor(4) as pool:
        ids = [one for taken in pool.map(take, range(8)) for one in taken]

    assert len(set(ids)) == len(ids) == 40_000
    assert all(re.fullmatch("[0-9a-f]{24}-[0-9a-f]+", one) for one in ids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gives_other_ids() -> None:
    """The child has a prefix of its own, and the parent goes on with its old one."""
    before = next_id()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, next_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_child = os.read(read, 100).decode()
    os.close(read)
    os.close(write)

    assert in_child.partition("-")[0] != before.partition("-")[0]
    assert next_id().partition("-")[0] == before.partition("-")[0]


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        (b"id", TypeError, r"id_attribute must be an attribute's name, or None; got b'id'"),
        ("googId", ValueError, "must not start with 'goog'.* such as 'event_id'"),
        ("timeout", ValueError, r"'timeout' is an argument of publish\(\): choose another"),
        ("", ValueError, "must have 1 to 256 bytes"),
        ("ä" * 129, ValueError, "must have 1 to 256 bytes"),
    ],
)
def test_names_that_no_attribute_may_have(name: object, error: type[Exception], text: str) -> None:
    """What the service or ``publish()`` would refuse is refused, with the remedy."""
    with pytest.raises(error, match=text):
        check_id_attribute(name)
