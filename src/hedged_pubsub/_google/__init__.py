"""All that knows the inside of Google's clients or of gRPC.

Contract tests, at the lowest and the newest supported releases, notice what changes there.
"""
