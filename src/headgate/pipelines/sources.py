"""Sources: what pipelines depend on that is no pipeline, by the names under which those are listed who do."""

from __future__ import annotations


def dataset_source(dataset_urn: str) -> str:
    """Return under what those are listed who wait for the health of a dataset. No pipeline has an id like it."""
    return f"dataset:{dataset_urn}"


def event_source(event_type: str) -> str:
    """Return under what those are listed who are begun by a type of events. No pipeline has an id like it."""
    return f"event:{event_type}"
