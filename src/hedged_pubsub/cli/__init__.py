"""The ``hedged-pubsub`` command."""
