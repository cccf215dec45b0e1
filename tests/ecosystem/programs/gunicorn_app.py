"""A WSGI application that publishes and does not wait."""

from client import PATIENT, TOPIC, make

publisher = make(PATIENT)


def application(environ, start_response):
    """Publish a message, which waits in a batch."""
    publisher.publish(TOPIC, b"data")
    start_response("204 No Content", [])
    return []
