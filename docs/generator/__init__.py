"""Generates docs/reference from the code."""
