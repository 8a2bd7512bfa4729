"""Durable execution: code that finishes whatever crashes, from a history that is replayed."""
