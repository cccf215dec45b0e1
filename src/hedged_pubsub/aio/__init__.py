"""The publisher for asyncio: the same engine, driven by tasks and timers of an event loop."""
