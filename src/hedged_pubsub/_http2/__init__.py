"""An HTTP/2 client connection for unary gRPC calls, without I/O: bytes in, ended calls out.

``connection`` is the whole of the protocol, ``call`` one request and its answer. No socket, thread,
clock or log line is in here: drivers read and write, and say what time it is.
"""
