"""Unit tests of costs."""
