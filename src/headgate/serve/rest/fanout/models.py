"""Response structs of the fan-out API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from headgate.fanout.core.costs import Cost
from headgate.fanout.insight.eta import Estimate, Spread
from headgate.fanout.insight.progress import Progress, Stall, Straggler
from headgate.fanout.insight.stuck import Stuck, StuckKind
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.events import FanoutEvent
from headgate.fanout.model.rows import SLOW_LANE, Attempt, AttemptLog, Chunk, Fanout, Policy, kept_days
from headgate.fanout.model.states import AttemptOutcome, ChunkStatus, Disposition, FanoutStatus
from headgate.fanout.model.worker_names import short_worker_name
from headgate.serve.http.operations import PREFIX
from headgate.serve.http.raw_json import optional_raw
from headgate.serve.http.views import shown


class FanoutSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A fan-out in a list. While it runs, its counts may be a second old."""

    run_id: str
    group: str
    status: FanoutStatus
    created_at: str
    chunks_total: int
    chunks_completed: int
    chunks_failed: int
    items_total: int
    chunk_size: int
    is_finished: bool
    finished_at: str | None = None
    handler: str | None = None
    campaign: str | None = None
    submitted_by: str | None = None
    paused_at: str | None = None
    cancelled_at: str | None = None
    # When more chunks had failed than tolerated.
    exceeded_at: str | None = None
    reason: str | None = None
    split_error: str | None = None
    queue_url: str | None = None


class FanoutPage(Struct, frozen=True):
    """A page of fan-outs. With a filter it may be short or empty and still have a cursor."""

    fanouts: list[FanoutSummary]
    cursor: str | None = None


class CreatedView(FanoutSummary, frozen=True, omit_defaults=True, kw_only=True):
    """The created fan-out. `created` is False if it existed already."""

    created: bool


class ChunkCounts(Struct, frozen=True):
    """Chunks of the main lane by status."""

    total: int
    pending: int
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    skipped: int


class ItemCounts(Struct, frozen=True):
    """Items by outcome. `open` has none yet: it waits or runs, or its chunk was cancelled or skipped."""

    total: int
    ok: int
    failed: int
    deferred: int
    open: int


class ProgressView(Struct, frozen=True, kw_only=True):
    """Progress of a fan-out. `counts` has every counter; `share` is 0 to 1; rates are recent."""

    run_id: str
    group: str
    status: FanoutStatus
    is_finished: bool
    at: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    paused_at: str | None
    handler: str | None
    queue_url: str | None
    chunks: ChunkCounts
    items: ItemCounts
    counts: dict[str, int]
    share: float
    completed_per_second: float | None
    items_per_second: float | None
    estimate: Estimate
    durations: Spread | None
    # Number of sampled chunks by number of attempts.
    attempts: dict[int, int]
    sampled: int
    stragglers: list[Straggler]
    stall: Stall | None
    # None without a price.
    cost: Cost | None
    # Notices for the operator, as sentences.
    notes: list[str]


class FanoutView(ProgressView, frozen=True, kw_only=True):
    """A fan-out in full, with its effective policy."""

    chunk_size: int
    source: dict[str, Any]
    policy: dict[str, Any]
    params: dict[str, Any]
    campaign: str | None
    submitted_by: str | None
    waiter: str | None
    updated_at: str | None
    progressed_at: str | None
    cancelled_at: str | None
    # When more chunks had failed than tolerated.
    exceeded_at: str | None
    reason: str | None
    split_through: int
    split_error: str | None
    version: int


class ChunkView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A chunk. `item_errors`, `deferred` and `rerun_items` identify items by index within the fan-out.

    `item_errors` has the first failed items; the list of failed items has all. `rerun_items` are the items that run
    again, if the others do not.
    """

    run_id: str
    chunk_id: str
    lane: str
    status: ChunkStatus
    disposition: Disposition
    start: int
    items: int
    created_at: str
    # Counters are always there, also zeros.
    attempt: int
    # Attempts since the last redrive whose worker vanished; they do not count against `max_attempts`.
    lost_attempts: int
    items_done: int
    items_ok: int
    items_failed: int
    items_deferred: int
    redrives: int
    heals: int
    receive_count: int
    input_key: str = ""
    worker: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    duration_ms: int | None = None
    lease_expires_at: str | None = None
    heartbeat_at: str | None = None
    message_id: str | None = None
    output_key: str | None = None
    output: Raw | None = None
    error: str | None = None
    error_class: str | None = None
    error_fingerprint: str | None = None
    item_errors: dict[str, str] = {}
    deferred: list[int] = []
    rerun_items: list[int] = []
    log_ref: str | None = None
    memory_mb: int | None = None
    # When the next attempt is due, while it waits for one.
    retry_at: str | None = None


class ChunkPage(Struct, frozen=True):
    """A page of chunks. With a filter it may be short or empty and still have a cursor.

    `total` is the number of chunks in the whole list; null if it is not known without reading them all.
    """

    chunks: list[ChunkView]
    cursor: str | None = None
    total: int | None = None


class AttemptView(Struct, frozen=True, omit_defaults=True):
    """An attempt at a chunk."""

    attempt: int
    outcome: AttemptOutcome
    ended_at: str
    started_at: str | None = None
    duration_ms: int | None = None
    worker: str | None = None
    error: str | None = None
    error_class: str | None = None
    error_fingerprint: str | None = None
    receive_count: int = 0
    # The largest memory of its process so far.
    memory_mb: int | None = None
    # Set if it has a log: see the logs of the chunk.
    log_ref: str | None = None
    # Of an attempt that completed before failed items of its chunk ran again.
    output_key: str | None = None
    output: Raw | None = None


class AttemptLogView(Struct, frozen=True):
    """What an attempt wrote to standard output and error, and the traceback of its failure. Long texts are cut."""

    attempt: int
    ended_at: str
    traceback: str
    printed: str


class ChunkLogs(Struct, frozen=True):
    """The logs of the last attempts of a chunk, in their order. An attempt without output or traceback has none."""

    run_id: str
    chunk_id: str
    logs: list[AttemptLogView]


class ChunkDetail(ChunkView, frozen=True, omit_defaults=True, kw_only=True):
    """A chunk with its input and attempts, except a successful first one."""

    input: Raw | None = None
    message: str | None = None
    attempts: list[AttemptView] = []


class StuckView(Struct, frozen=True):
    """A stuck chunk: since when, and the classification."""

    kind: StuckKind
    chunk_id: str
    lane: str
    status: ChunkStatus
    disposition: Disposition
    attempt: int
    since: str
    seconds: float
    reason: str
    worker: str | None = None
    error: str | None = None


class StuckList(Struct, frozen=True):
    """Stuck chunks, running ones first."""

    stuck: list[StuckView]


class FanoutEventView(Struct, frozen=True, omit_defaults=True):
    """An operator event of a fan-out."""

    id: str
    kind: str
    at: str
    by: str | None = None
    reason: str | None = None
    count: int | None = None


class FanoutEventPage(Struct, frozen=True):
    """A page of operator events, in time order."""

    events: list[FanoutEventView]
    cursor: str | None = None


def path_of(run_id: str) -> str:
    """Return the URL path of a fan-out."""
    return f"{PREFIX}/fanouts/{quote(run_id, safe='')}"


def summary(fanout: Fanout) -> FanoutSummary:
    """Return the summary of a fan-out."""
    return FanoutSummary(**_summary_fields(fanout))


def created_view(fanout: Fanout, *, created: bool) -> CreatedView:
    """Return the view of a created fan-out."""
    return CreatedView(created=created, **_summary_fields(fanout))


def _summary_fields(fanout: Fanout) -> dict[str, Any]:
    names = set(FanoutSummary.__struct_fields__) - {"is_finished"}
    return {"is_finished": fanout.is_finished, **{name: getattr(fanout, name) for name in names}}


def progress_view(fanout: Fanout, progress: Progress, unusable: Mapping[str, str]) -> ProgressView:
    """Return the progress of a fan-out."""
    return ProgressView(**_progress_fields(fanout, progress, unusable))


def fanout_view(fanout: Fanout, progress: Progress, unusable: Mapping[str, str]) -> FanoutView:
    """Return the view of a fan-out; `unusable` are handlers that cannot be loaded here, with the reason."""
    same = set(FanoutView.__struct_fields__) - set(ProgressView.__struct_fields__) - {"source", "policy", "params"}
    return FanoutView(
        source=msgspec.json.decode(fanout.source) if fanout.source else {},
        policy=policy_view(fanout.rules()),
        params=msgspec.json.decode(fanout.params) if fanout.params else {},
        **{name: getattr(fanout, name) for name in same},
        **_progress_fields(fanout, progress, unusable),
    )


def policy_view(policy: Policy) -> dict[str, Any]:
    """Return a policy with every field, defaults included."""
    return {name: getattr(policy, name) for name in Policy.__struct_fields__} | {"retention_days": kept_days(policy)}


def _progress_fields(fanout: Fanout, progress: Progress, unusable: Mapping[str, str]) -> dict[str, Any]:
    of_row = ("created_at", "started_at", "finished_at", "paused_at", "is_finished", "status", "handler", "queue_url")
    of_progress = set(ProgressView.__struct_fields__) - {*of_row, "chunks", "items", "counts", "notes"}
    counts = progress.counts
    return {
        "chunks": chunk_counts(counts),
        "items": item_counts(counts),
        "counts": {name: getattr(counts, name) for name in Counts.__struct_fields__},
        "notes": notes(fanout, progress, unusable),
        **{name: getattr(fanout, name) for name in of_row},
        **{name: getattr(progress, name) for name in of_progress},
    }


def chunk_counts(counts: Counts) -> ChunkCounts:
    """Return the number of chunks by status."""
    return ChunkCounts(counts.total, **{name.lower(): count for name, count in counts.by_status().items()})


def item_counts(counts: Counts) -> ItemCounts:
    """Return the number of items by outcome."""
    return ItemCounts(
        counts.items_total, counts.items_ok, counts.items_failed, counts.items_deferred, counts.items_open
    )


def chunk_total(counts: Counts, dispositions: Iterable[Disposition], *, lanes: Iterable[str]) -> int:
    """Return the number of chunks of some lanes in some dispositions."""
    prefixes = ["slow_" if lane == SLOW_LANE else "" for lane in lanes]
    return sum(getattr(counts, prefix + each.bucket) for prefix in prefixes for each in dispositions)


def notes(fanout: Fanout, progress: Progress, unusable: Mapping[str, str]) -> list[str]:
    """Return notices for the operator."""
    counts, run_id = progress.counts, fanout.run_id
    notices = _control_notices(fanout)
    why = unusable.get(fanout.handler or "")
    if why is not None and counts.open and not fanout.is_finished:
        notices.append(f"this server cannot run it: {why}")
    # Ended well with failures: as many as the policy tolerates.
    tolerated = ", which is tolerated" if fanout.status is FanoutStatus.SUCCEEDED else ""
    if progress.stall is not None:
        notices.append(f"nothing has ended since {progress.stall.since}: {progress.stall.reason}")
    if counts.failed + counts.slow_dead + counts.slow_quarantined:
        failed = counts.failed + counts.slow_dead + counts.slow_quarantined
        notices.append(f"failed chunks: {failed}{tolerated}; 'headgate fanout failures {run_id}' says why")
    elif counts.items_failed:
        notices.append(f"failed items: {counts.items_failed}{tolerated}; 'headgate fanout failures {run_id}' says why")
    if fanout.rules().budget is not None and progress.cost is None:
        notices.append("the budget is not checked: no price is set, in the policy or as fanout.price_per_gb_second")
    if counts.drift():
        notices.append(
            f"the counters are off by {counts.drift()}; 'headgate fanout reconcile {run_id} --repair' repairs them"
        )
    return notices


def _control_notices(fanout: Fanout) -> list[str]:
    """Return notices about pauses, cancellation and failed splits."""
    notices: list[str] = []
    if fanout.is_finished:
        if fanout.exceeded_at is not None and fanout.status is FanoutStatus.FAILED:
            remedy = f"'headgate fanout redrive {fanout.run_id} --all' runs failed and cancelled chunks again"
            notices.append(f"it failed because {fanout.reason}; {remedy}")
        return notices
    if fanout.split_error is not None:
        notices.append(f"the split has failed: {fanout.split_error}; submit it again under the same id to resume")
    if fanout.send_error is not None:
        notices.append(f"messages of its chunks are not sent: {fanout.send_error}; they are sent again every 30 s")
    if fanout.paused_at is not None and fanout.exceeded_at is not None:
        remedy = f"'headgate fanout resume {fanout.run_id}' goes on without this limit"
        notices.append(f"paused since {fanout.paused_at} because {fanout.reason}; {remedy}")
    elif fanout.paused_at is not None:
        notices.append(f"paused since {fanout.paused_at}; 'headgate fanout resume {fanout.run_id}' resumes it")
    if fanout.cancelled_at is not None and fanout.exceeded_at is not None:
        notices.append(f"it fails because {fanout.reason}; running chunks are asked to stop")
    elif fanout.cancelled_at is not None:
        notices.append("cancellation in progress; running chunks are asked to stop")
    return notices


def chunk_view(chunk: Chunk) -> ChunkView:
    """Return the view of a chunk."""
    return ChunkView(**_chunk_fields(chunk))


def chunk_detail(chunk: Chunk, attempts: list[Attempt]) -> ChunkDetail:
    """Return a chunk in full."""
    views = [attempt_view(attempt) for attempt in attempts]
    return ChunkDetail(input=optional_raw(chunk.input), message=chunk.message, attempts=views, **_chunk_fields(chunk))


def _chunk_fields(chunk: Chunk) -> dict[str, Any]:
    names = set(ChunkView.__struct_fields__) - {"output", "item_errors", "deferred", "rerun_items", "worker"}
    return {
        "output": optional_raw(chunk.output),
        "worker": short_worker_name(chunk.worker),
        "item_errors": {} if chunk.item_errors is None else msgspec.json.decode(chunk.item_errors),
        "deferred": [] if chunk.deferred is None else msgspec.json.decode(chunk.deferred),
        "rerun_items": [] if chunk.rerun_items is None else msgspec.json.decode(chunk.rerun_items),
        **{name: getattr(chunk, name) for name in names},
    }


def attempt_view(attempt: Attempt) -> AttemptView:
    """Return the view of an attempt."""
    return shown(AttemptView, attempt, output=optional_raw(attempt.output), worker=short_worker_name(attempt.worker))


def chunk_logs(chunk: Chunk, logs: list[AttemptLog]) -> ChunkLogs:
    """Return the logs of a chunk."""
    return ChunkLogs(chunk.run_id, chunk.chunk_id, [shown(AttemptLogView, log) for log in logs])


def stuck_view(stuck: Stuck) -> StuckView:
    """Return the view of a stuck chunk."""
    return shown(StuckView, stuck, stuck.chunk, worker=short_worker_name(stuck.chunk.worker))


def event_view(event: FanoutEvent) -> FanoutEventView:
    """Return the view of an operator event."""
    return FanoutEventView(event.sk.partition("#")[2], event.kind, event.at, event.by, event.reason, event.count)
