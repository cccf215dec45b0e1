"""Publishes through the official client and through ours, and prints what differs.

Run it as ``python -m tests.system_emulated.parity``. It uses the emulator that
``PUBSUB_EMULATOR_HOST`` names, or else runs one itself. It ends with 1 if anything differs that is
not documented, or does not differ although it is.
"""

from __future__ import annotations

import os
import sys

from tests.system_emulated.emulator import find_emulator, running_emulator
from tests.system_emulated.parity.comparison import compare_all


def main() -> int:
    """Run the script; returns its exit status."""
    if address := os.environ.get("PUBSUB_EMULATOR_HOST"):
        return report(address)
    with running_emulator(*find_emulator()) as address:
        os.environ["PUBSUB_EMULATOR_HOST"] = address
        return report(address)


def report(address: str) -> int:
    """Compare, and print line by line."""
    comparisons = []
    for comparison in compare_all(address):
        comparisons.append(comparison)
        print(f"{'same  ' if comparison.same else 'DIFFERS'} {comparison.case.name}", flush=True)
        for line in comparison.differing():
            print(f"          {line}")
        if comparison.case.difference is not None:
            print(f"        documented: {comparison.case.difference.reason}")
    wrong = [comparison for comparison in comparisons if not comparison.as_documented]
    same = sum(comparison.same for comparison in comparisons)
    print(
        f"{len(comparisons)} cases: {same} the same, {len(comparisons) - same} differ; "
        f"{len(wrong)} not as documented"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
