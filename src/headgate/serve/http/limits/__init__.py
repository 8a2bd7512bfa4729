"""Limits: sizes and connections of a client, writes of a caller, and which requests an overloaded server refuses."""
