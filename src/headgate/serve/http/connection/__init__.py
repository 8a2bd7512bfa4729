"""Connections: the listening socket, TLS, and the HTTP/1.1 protocol of one connection."""
