"""What the pages do not show: set-up before their code, and what is not run as it stands."""

from __future__ import annotations

from typing import Final

_PUBLISHER = """
from hedged_pubsub import HedgedPublisher

publisher = HedgedPublisher()
topic = publisher.topic_path("my-project", "orders")
data = b"a new order"
"""

# A service that fails once before it answers.
_MODEL_ARMOR = """
import google.cloud.modelarmor_v1 as armor
import grpc
from google.cloud.modelarmor_v1.services.model_armor import transports

from examples.retry_model_armor import start_server

async def connect():
    transport = transports.ModelArmorGrpcAsyncIOTransport(
        channel=grpc.aio.insecure_channel(address)
    )
    return armor.ModelArmorAsyncClient(transport=transport)

server, address = start_server()
client = armor.ModelArmorClient(
    transport=transports.ModelArmorGrpcTransport(channel=grpc.insecure_channel(address))
)
async_client = await connect()
request = armor.SanitizeUserPromptRequest(
    name="projects/test/locations/here/templates/strict",
    user_prompt_data=armor.DataItem(text="Hello"),
)
"""

# One in a hundred at two seconds.
_LATENCIES = """
from pathlib import Path

latencies = [*([20, 25, 30] * 33), 2000] * 20
Path("latencies.csv").write_text("\\n".join(["latency_ms", *map(str, latencies)]))
"""

# What the page's table and figure show: some at a fifth of a second, a few at several seconds.
_PUBLISHES = """
import random
from pathlib import Path

publisher.publish(publisher.topic_path("my-project", "orders"), b"an order").result(timeout=10)
publisher.close()
draw = random.Random(7)
with open("publishes.csv", "w") as publishes:
    publishes.write("latency_ms\\n")
    for _ in range(50_000):
        luck = draw.random()
        if luck < 0.006:
            seconds = draw.uniform(1, 6)
        elif luck < 0.035:
            seconds = draw.lognormvariate(-1.6, 0.35)
        else:
            seconds = draw.lognormvariate(-4.4, 0.5)
        publishes.write(f"{1000 * seconds:.1f}\\n")
"""

SETUP: Final = {
    "README.md": {
        "HedgedPublisher(hedging_settings=HedgingSettings("
        "hedge_delay=0.3, max_tokens=20, refill_ratio=0.05))": (
            "from hedged_pubsub import HedgingSettings"
        ),
    },
    "docs/asyncio.md": {
        "message_ids = await asyncio.gather("
        "*(publisher.publish(topic, order) for order in orders))": """
async def make():
    return AsyncHedgedPublisher()

publisher = await make()
topic = publisher.topic_path("my-project", "orders")
orders = [b"order %d" % number for number in range(100)]
""",
        "async with AsyncHedgedPublisher() as publisher:": "await publisher.close()",
    },
    "docs/choosing.md": {"$ hedged-pubsub plan publishes.csv --plot plan.png": _PUBLISHES},
    "docs/command.md": {"$ hedged-pubsub plan latencies.csv": _LATENCIES},
    "docs/duplicates.md": {"from hedged_pubsub import HedgedPublisher": _PUBLISHER},
    "docs/ending.md": {
        "futures = [publisher.publish(topic, order) for order in orders]": """
publisher = HedgedPublisher()
orders = [b"one order", b"another order"]
"""
    },
    "docs/retries.md": {"from hedged_pubsub.retry import (": _MODEL_ARMOR},
}
"""By page: the first line of a block, and the code that is run before that block, for what a
reader has already: an order to publish, a client of another API."""

PARSED_ONLY: Final = {
    "bench": "takes minutes; tests/system/cli/test_bench.py runs a small one",
    "frozen-connection": "takes ten seconds, in which the official client waits in vain",
    "outage": "takes half a minute; tests/system/cli/test_demo_and_serve.py runs a short one",
}
"""Commands with one of these words are only parsed, for a reason: what they do has its own tests.
"""

SHORTER: Final = {
    "demo": ("--publishes", "200", "--rate", "400", "--stall", "0.5", "--max-tokens", "10"),
}
"""What is put after the options of a command that would take long: of two, the last one counts. A
small bucket is filled sooner."""
