"""Intake: a second process that answers write-heavy RPC calls for the server."""
