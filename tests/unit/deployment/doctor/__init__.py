"""Unit tests of deployments."""
