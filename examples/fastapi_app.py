"""A web application that publishes: its lifespan opens and closes one publisher for all requests.

Serve it with ``uvicorn fastapi_app:app`` where ``TOPIC`` names a topic, such as
``projects/my-project/topics/orders``. Run as a program it starts a test server whose every tenth
request is stuck, and sends itself a hundred orders.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from google.api_core.exceptions import GoogleAPICallError

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

COUNT = 100


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the publisher in the loop that serves; in the end send what is left, and close it."""
    settings = HedgingSettings(hedge_delay=0.2, refill_ratio=0.2)
    async with AsyncHedgedPublisher(hedging_settings=settings) as publisher:
        app.state.publisher = publisher
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=201)
async def accept_order(number: int, request: Request) -> dict[str, str]:
    """Answer once the order is stored. Orders that come at the same time share a request."""
    publisher: AsyncHedgedPublisher = request.app.state.publisher
    message_id = await publisher.publish(os.environ["TOPIC"], b"order %d" % number)
    return {"message_id": message_id}


@app.post("/views/{number}", status_code=202)
async def count_view(number: int, request: Request) -> None:
    """Answer at once; a view that gets lost is logged and does no harm."""
    publisher: AsyncHedgedPublisher = request.app.state.publisher
    stored = await publisher.enqueue(os.environ["TOPIC"], b"view %d" % number)
    stored.add_done_callback(log_failure)


def log_failure(stored: asyncio.Future[str]) -> None:
    """Say what became of a message that nobody waited for."""
    error = None if stored.cancelled() else stored.exception()
    if isinstance(error, GoogleAPICallError):
        print(f"a view was lost: {error}")


async def main() -> None:
    """Let the application serve a hundred orders and views, one after the other."""
    transport = httpx.ASGITransport(app)
    async with (
        lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        ids = set()
        for number in range(COUNT):
            await client.post(f"/views/{number}")
            answer = await client.post(f"/orders/{number}")
            ids.add(answer.raise_for_status().json()["message_id"])
        stats = app.state.publisher.hedging_stats()
    print(f"{len(ids)} orders are stored, {stats.hedges_won} of them thanks to a hedge")


if __name__ == "__main__":
    script = FaultScript(latency=Fixed(0.002), faults=[Stall(5.0, calls=range(10, 91, 10))])
    with PubSubServer(script, set_emulator_host=True) as server:
        os.environ["TOPIC"] = server.create_topic("orders")
        asyncio.run(main())
