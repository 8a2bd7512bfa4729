"""Pipelines: rules a second, from a sensor or marker to the job, many at once, and ten thousand that are defined."""

from __future__ import annotations

from bench import pipelines_load, pipelines_rules, pipelines_starts
from bench.measure import Figure


def run() -> list[Figure]:
    """Return every figure of this group."""
    return [*pipelines_rules.figures(), *pipelines_starts.figures(), *pipelines_load.figures()]
