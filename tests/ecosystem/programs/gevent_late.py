"""What gunicorn's gevent worker does to an application that was loaded before the fork."""

import os
import sys

from client import ALONE, TOPIC, make

publisher = make(ALONE)
if os.fork() == 0:
    from gevent import monkey

    monkey.patch_all()
    publisher.publish(TOPIC, b"data").result(timeout=20)
    publisher.stop()
    sys.exit()
_, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
