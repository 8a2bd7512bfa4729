"""Serving processes: further processes that serve HTTP and gRPC on the ports of the server."""
