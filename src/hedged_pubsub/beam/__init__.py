"""A sink for Apache Beam pipelines that publishes with hedging (extra ``[beam]``)."""

try:
    import apache_beam as _apache_beam
except ImportError as error:
    raise ImportError(
        "hedged_pubsub.beam needs Apache Beam, which is not installed: "
        "pip install 'hedged-pubsub[beam]'"
    ) from error

from hedged_pubsub.beam.messages import DeadLetter
from hedged_pubsub.beam.sink import WriteToPubSub

del _apache_beam

# Where users find them, which pickles name: they may move within the package.
DeadLetter.__module__ = WriteToPubSub.__module__ = __name__

__all__ = ["DeadLetter", "WriteToPubSub"]
