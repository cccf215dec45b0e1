"""A Celery application whose tasks publish and do not wait, with Celery's filesystem broker."""

import os

from celery import Celery
from client import PATIENT, TOPIC, make

folder = os.environ["FOLDER"]
app = Celery("celery_worker", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": folder,
    "data_folder_out": folder,
    "control_folder": folder,
}
app.conf.worker_max_tasks_per_child = 2
publisher = make(PATIENT)


@app.task
def publish(number):
    """Publish five messages, which wait in a batch."""
    for part in range(5):
        publisher.publish(TOPIC, b"%d, %d" % (number, part))


if __name__ == "__main__":
    for one in range(8):
        publish.delay(one)
    quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool=prefork", "--concurrency=2", "--loglevel=INFO", *quick])
