"""``hedged-pubsub bench``: this publisher beside the official client, workload by workload."""
