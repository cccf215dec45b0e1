"""Driving the attempt engine on threads and gRPC's synchronous calls."""
