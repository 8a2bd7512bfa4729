"""Integration tests of checks."""
