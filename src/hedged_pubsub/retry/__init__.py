"""A retry strategy for any client: truncated exponential backoff with jitter, and a deadline."""

from hedged_pubsub.retry.errors import is_transient
from hedged_pubsub.retry.strategy import (
    AsyncTruncatedExponentialBackoff,
    TruncatedExponentialBackoff,
)

__all__ = ["AsyncTruncatedExponentialBackoff", "TruncatedExponentialBackoff", "is_transient"]

# Where users find them, which pickles name: they may move within the package.
for _public in (AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff, is_transient):
    _public.__module__ = __name__
