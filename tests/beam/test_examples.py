"""The examples of the other end, and of a pipeline, run as they stand."""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from google.cloud import pubsub_v1

from examples.beam import file_to_topic, read_once
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall
from tests.system.conftest import run_python, wait_until

from . import redis_server
from .conftest import RUNNERS, Subscription, new_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples" / "beam"
EXAMPLE_FILES = {"deduplicate_redis.py", "file_to_topic.py", "read_once.py", "store_once.sql"}


def test_every_example_is_run_here() -> None:
    """An example that is added later does not go untested."""
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == EXAMPLE_FILES


def _write_orders(folder: Path, *numbers: int) -> str:
    lines = [json.dumps({"id": number, "item": "x" * 50}) for number in numbers]
    lines += ["no order", json.dumps({"id": "k" * 1025})]
    (folder / "orders.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "orders*.jsonl")


def _arguments(folder: Path, topic: str, pattern: str) -> list[str]:
    arguments = ["--input", pattern, "--topic", topic, "--dead-letters", str(folder / "refused")]
    return [*arguments, "--runner", RUNNERS["batch"]]


def test_a_file_to_a_topic(server: PubSubServer, topic: str, tmp_path: Path) -> None:
    """Good lines are stored; bad ones end up in a file with their error."""
    pattern = _write_orders(tmp_path, *range(100))

    file_to_topic.main(_arguments(tmp_path, topic, pattern))

    stored = {dict(message.attributes)["order_id"] for message in server.messages()}
    assert stored == {str(number) for number in range(100)}
    dead = [
        json.loads(line)
        for path in tmp_path.glob("refused*")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert {letter["error"].partition(":")[0] for letter in dead} == {
        "JSONDecodeError",
        "ValueError",
    }


def test_a_pipeline_that_is_killed_and_run_again(
    server: PubSubServer, topic: str, tmp_path: Path
) -> None:
    """Each element is stored at least once, and by its id exactly once after deduplication."""
    # All but the first few requests are held until the client is gone, and then not stored.
    server.set_script(FaultScript(faults=[Stall(300.0, calls=list(range(6, 1_000)))]))
    pattern = _write_orders(tmp_path, *range(4_000))
    script = str(EXAMPLES / "file_to_topic.py")
    command = [sys.executable, script, *_arguments(tmp_path, topic, pattern)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:  # noqa: S603 - our own program
        try:
            wait_until(server.messages, timeout=60)
        finally:
            run.kill()
    assert run.returncode == -signal.SIGKILL
    before = len(server.messages())
    server.set_script(FaultScript())

    assert run_python(*command[1:], timeout=100).returncode == 0

    ids = [dict(message.attributes)["order_id"] for message in server.messages()]
    assert 0 < before < 4_000 < len(ids)
    assert set(ids) == {str(number) for number in range(4_000)}


@pytest.mark.parametrize("either_server", ["own server"], indirect=True)
def test_a_pipeline_that_reads_each_message_once(
    new_subscription: Callable[[str], Subscription],
) -> None:
    """Of two copies one is read, where the runner has no ``id_label``."""
    source, sink = new_subscription("source"), new_subscription("sink")
    pipeline = new_pipeline(streaming=True)
    read_once.build(pipeline, source.path, sink.topic, on_dataflow=False)
    result = pipeline.run()
    try:
        with pubsub_v1.PublisherClient() as publisher:
            for number in [*range(10), *range(10)]:
                data, event_id = b"%d" % number, f"id-{number}"
                publisher.publish(source.topic, data, event_id=event_id).result(timeout=10)
        received = sink.receive(10)
        time.sleep(1.0)  # for a second copy
        received += sink.receive_what_is_there()
    finally:
        result.cancel()

    assert sorted(map(int, received)) == list(range(10))


def test_deduplication_with_redis(tmp_path: Path) -> None:
    """A hedge makes a duplicate, which a real Redis finds."""
    with redis_server.running(*redis_server.find(tmp_path)) as url:
        done = run_python(str(EXAMPLES / "deduplicate_redis.py"), timeout=60, REDIS_URL=url)

    assert done.returncode == 0, done.stderr
    assert "50 events kept, 1 duplicates dropped, the total is 1225" in done.stdout


def test_the_merge_statement() -> None:
    """In another database that knows ``MERGE``: the first copy of each id is moved, once."""
    database = duckdb.connect()
    database.execute("CREATE SCHEMA shop; SET timezone = 'UTC'")
    columns = "(event_id TEXT, data BLOB, publish_time TIMESTAMPTZ)"
    database.execute(f"CREATE TABLE shop.orders {columns}")
    database.execute(f"CREATE TABLE shop.staging {columns}")
    now = datetime.datetime.now(datetime.timezone.utc)
    for event_id, data, age in [("a", b"1", 3), ("a", b"1 again", 2), ("b", b"2", 1)]:
        row = (event_id, data, now - datetime.timedelta(minutes=age))
        database.execute("INSERT INTO shop.staging VALUES (?, ?, ?)", row)
    merge = (EXAMPLES / "store_once.sql").read_text(encoding="utf-8")

    for _ in range(2):
        database.execute(merge)

    stored = database.execute("SELECT event_id, data FROM shop.orders ORDER BY event_id")
    assert stored.fetchall() == [("a", b"1"), ("b", b"2")]
