"""Held pipelines: the waiting runs that datasets hold, directly or over the pipelines that they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import TransientError
from headgate.pipelines.overview.status import PipelineState, PipelineStatus
from headgate.serve.pages.api_calls import ApiCaller, Section
from headgate.serve.pages.pipelines.pipeline import watched_pipelines


class HeldPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline whose run waits. `via` is the dataset or the pipeline that it waits for."""

    pipeline_id: str
    date: str
    state: PipelineState
    sentence: str
    run_id: str
    begun_at_ms: int | None
    via: str
    is_direct: bool


def held_by(rows: Sequence[PipelineStatus], urns: Iterable[str]) -> list[HeldPipeline]:
    """Return the pipelines whose runs wait for one of the datasets, then those that wait for these pipelines."""
    wanted = frozenset(urns)
    found: dict[str, HeldPipeline] = {}
    for row in rows:
        via = next((each for each in row.held_by if each in wanted), None)
        if via is not None:
            found[row.pipeline.id] = _held(row, via, is_direct=True)
    # Each round goes one pipeline further downstream; a round that finds none is the last.
    while True:
        further = {}
        for row in rows:
            via = next((each for each in row.waits_for if each in found), None)
            if via is not None and row.pipeline.id not in found:
                further[row.pipeline.id] = _held(row, via, is_direct=False)
        if not further:
            return list(found.values())
        found |= further


def _held(row: PipelineStatus, via: str, *, is_direct: bool) -> HeldPipeline:
    return HeldPipeline(
        pipeline_id=row.pipeline.id,
        date=row.slot.date,
        state=row.state,
        sentence=row.sentence,
        run_id="" if row.log is None else row.log.run_id,
        begun_at_ms=None if row.log is None else row.log.begun_at_ms,
        via=via,
        is_direct=is_direct,
    )


def held_section(api: ApiCaller, urns: Iterable[str]) -> Section:
    """Return the pipelines that datasets hold, of what the caller may read."""
    if api.pipelines is None or not api.may(Permission.PIPELINE_READ):
        return Section([])
    try:
        return Section(held_by(watched_pipelines(api).rows, urns))
    except TransientError as exc:
        return Section(missing=exc.message)
