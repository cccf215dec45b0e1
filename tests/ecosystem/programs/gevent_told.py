"""Patches the process, and tells gRPC of it; to be imported first. The documentation shows it."""

from gevent import monkey

monkey.patch_all()

import grpc.experimental.gevent  # noqa: E402 - it comes after the patch

grpc.experimental.gevent.init_gevent()
