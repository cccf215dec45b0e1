"""Try hedging on a real topic: publish some messages, and count what comes back.

    python smoke.py projects/my-project/topics/smoke
    GOOGLE_CLOUD_PROJECT=my-project python smoke.py smoke --messages 500

Credentials are Google's default ones (``gcloud auth application-default login``). Use a topic that
nobody listens to: its other subscribers get the messages, too. The run makes a subscription of its
own, for which the account needs the role Pub/Sub Editor, and deletes it at the end.
"""

import argparse
import os
import sys
import threading
import time
import uuid
from concurrent.futures import TimeoutError as FutureTimeoutError

from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher, HedgingSettings, HedgingStats


def arguments() -> argparse.Namespace:
    """Read the command line; the environment has the defaults of topic and project."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    env = os.environ.get
    topic, project = env("SMOKE_TOPIC"), env("GOOGLE_CLOUD_PROJECT")
    add = parser.add_argument
    add("topic", nargs="?", default=topic, help="full name, or short; default: $SMOKE_TOPIC")
    add("--project", default=project, help="of a short name; default: $GOOGLE_CLOUD_PROJECT")
    add("--messages", type=int, default=200, metavar="N", help="how many (default: %(default)s)")
    add("--rate", type=float, default=50, metavar="R", help="a second (default: %(default)s)")
    add("--hedge-delay", type=float, default=0.3, metavar="S", help="default: %(default)s seconds")
    add("--timeout", type=float, default=60, metavar="S", help="default: %(default)s seconds")
    given = parser.parse_args()
    if not given.topic:
        parser.error("which topic? Name it, or set SMOKE_TOPIC")
    if "/" not in given.topic:
        if not given.project:
            parser.error(f"{given.topic} is in which project? --project, or GOOGLE_CLOUD_PROJECT")
        given.topic = f"projects/{given.project}/topics/{given.topic}"
    if given.messages < 1 or given.rate <= 0 or given.timeout <= 0:
        parser.error("--messages must be at least 1, --rate and --timeout more than 0")
    return given


def publish(given: argparse.Namespace, run: str) -> HedgingStats:
    """Publish the messages, each as a request of its own; return when all are stored."""
    settings = HedgingSettings(hedge_delay=given.hedge_delay, initial_tokens=1)
    with HedgedPublisher(BatchSettings(max_messages=1), hedging_settings=settings) as publisher:
        futures = []
        for number in range(given.messages):
            futures.append(publisher.publish(given.topic, b"smoke", run=run, number=str(number)))
            time.sleep(1 / given.rate)
        for future in futures:
            future.result(timeout=given.timeout)
        return publisher.hedging_stats()


def smoke(given: argparse.Namespace) -> bool:
    """Publish, print what came back, and tell whether that was everything."""
    run = uuid.uuid4().hex[:12]
    deliveries: dict[str, set[str]] = {}  # the ids of each message's copies
    complete = threading.Event()

    def receive(message: Message) -> None:
        if message.attributes.get("run") == run:
            deliveries.setdefault(message.attributes["number"], set()).add(message.message_id)
            if len(deliveries) == given.messages:
                complete.set()
        message.ack()

    project = given.topic.split("/")[1]
    subscription = f"projects/{project}/subscriptions/hedged-pubsub-smoke-{run}"
    with SubscriberClient() as subscriber:
        asked = {
            "name": subscription,
            "topic": given.topic,
            # Should this program be killed, the service deletes it after a day.
            "expiration_policy": {"ttl": {"seconds": 86_400}},
            "message_retention_duration": {"seconds": 600},
        }
        subscriber.create_subscription(request=asked, timeout=given.timeout)
        try:
            receiving = subscriber.subscribe(subscription, receive)
            stats = publish(given, run)
            complete.wait(given.timeout)
            receiving.cancel()
            receiving.result()
        finally:
            subscriber.delete_subscription(subscription=subscription, timeout=given.timeout)
    report(given, stats, deliveries)
    return complete.is_set()


def report(given: argparse.Namespace, stats: HedgingStats, deliveries: dict[str, set[str]]) -> None:
    """Print the table."""
    duplicates = sum(len(ids) - 1 for ids in deliveries.values())
    print(f"published    {given.messages:7}   to {given.topic}")
    print(f"received     {len(deliveries):7}   and {duplicates} duplicates")
    print(f"hedges sent  {stats.hedges_sent:7}   of {stats.hedges_due} that were due")
    print(f"hedges won   {stats.hedges_won:7}")
    print("\nlatency, ms      p50      p99    p99.9")
    for name, of in (("originals", stats.original_latency), ("results", stats.result_latency)):
        figures = "".join(f"{1000 * (value or 0):9.0f}" for value in (of.p50, of.p99, of.p999))
        print(f"{name:11}{figures}")


def main() -> None:
    """Run, and end with 0 if every message came back."""
    given = arguments()
    try:
        if not smoke(given):
            sys.exit("smoke.py: not everything came back")
    except KeyboardInterrupt:
        sys.exit("smoke.py: interrupted")
    except (GoogleAPIError, GoogleAuthError, FutureTimeoutError, OSError, ValueError) as error:
        sys.exit(f"smoke.py: {type(error).__name__}: " + " ".join(str(error).split()))


if __name__ == "__main__":
    main()
