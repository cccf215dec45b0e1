"""One retry strategy for publishing, beside hedging, and for whatever else the program calls.

Runs against ``PUBSUB_EMULATOR_HOST`` if that is set; else it starts a test server of its own,
which is unavailable for one request and leaves another one unanswered.
"""

import os
import time
import uuid

from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.retry import TruncatedExponentialBackoff
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

RETRY = TruncatedExponentialBackoff(
    maximum_backoff=32.0,
    deadline=60.0,
    on_error=lambda error: print(f"a request failed: {error}"),
)


@RETRY
def read_order(number: int) -> bytes:
    """Stand for a call of any kind, to a database or over HTTP."""
    return b"order %d" % number


def main() -> None:
    """Publish thirty orders, and say which of them took long."""
    # A retry for the request that fails, a hedge for the one that does not answer.
    with HedgedPublisher(
        BatchSettings(max_messages=1),
        PublisherOptions(retry=RETRY),
        hedging_settings=HedgingSettings(hedge_delay=0.2),
    ) as publisher:
        topic = publisher.topic_path("test", f"orders-{uuid.uuid4().hex[:8]}")
        publisher.create_topic(name=topic)
        for number in range(30):
            start = time.monotonic()
            publisher.publish(topic, read_order(number)).result()
            took = time.monotonic() - start
            if took > 0.1:
                print(f"order {number} took {took:.1f} s")
        stats = publisher.hedging_stats()
    print(f"30 orders published, {stats.hedges_won} thanks to a hedge")


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        faults = [Status("UNAVAILABLE", calls=[10]), Stall(30.0, calls=[20])]
        with PubSubServer(FaultScript(faults=faults), set_emulator_host=True):
            main()
