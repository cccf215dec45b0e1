"""The parity script finds no difference from the official client but the documented ones."""

from __future__ import annotations

import pytest

from tests.system_emulated.parity.case import Case
from tests.system_emulated.parity.comparison import CASES, compare


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_parity(case: Case, emulator: str) -> None:
    """Stored messages, errors and types are the same, or differ as documented."""
    comparison = compare(case, emulator)
    assert comparison.as_documented, "\n".join(
        comparison.differing() or ["no difference, although one is documented"]
    )


def test_there_are_enough_cases() -> None:
    """Twenty cases at least in which nothing may differ."""
    assert len([case for case in CASES if case.difference is None]) >= 20
