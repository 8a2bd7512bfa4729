"""Pipelines: when a job may run, on what conditions, and what is expected of it."""
