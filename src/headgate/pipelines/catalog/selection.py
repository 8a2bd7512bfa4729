"""Pipeline selection: filters of lists over all pipelines, by owner and tier."""

from __future__ import annotations

from collections.abc import Callable

from headgate.errors import CorruptionError
from headgate.pipelines.catalog.cache import KnownPipelines
from headgate.pipelines.definition.model import Pipeline


def selector(known: KnownPipelines, *, owner: str | None = None, tier: int | None = None) -> Callable[[str], bool]:
    """Return whether a pipeline, by its id, has this owner and tier in its newest definition.

    Each definition is read once. A deleted or unreadable pipeline has neither.
    """
    if owner is None and tier is None:
        return lambda _pipeline_id: True
    answers: dict[str, bool] = {}

    def is_selected(pipeline_id: str) -> bool:
        if pipeline_id not in answers:
            answers[pipeline_id] = _matches(_find(known, pipeline_id), owner, tier)
        return answers[pipeline_id]

    return is_selected


def _find(known: KnownPipelines, pipeline_id: str) -> Pipeline | None:
    try:
        return known.find(pipeline_id)
    except CorruptionError:
        # The list of definitions reports it.
        return None


def _matches(pipeline: Pipeline | None, owner: str | None, tier: int | None) -> bool:
    if pipeline is None:
        return False
    return (owner is None or pipeline.owner == owner) and (tier is None or pipeline.tier == tier)
