"""Unit tests of checks."""
