"""The version, read by the build and by ``hedged-pubsub --version``."""

__version__ = "0.1.0"
