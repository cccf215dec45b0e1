"""``hedged-pubsub plan``: which hedge delay would have served recorded requests best."""
