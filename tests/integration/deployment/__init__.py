"""Tests of deployments."""
