"""Fan-out operations API: pause, resume, cancel, tune, skip, redrive, heal, bisect and reconcile."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from headgate.durable.model.duration import optional_seconds
from headgate.errors import UserError
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.auto_heal import HealReport
from headgate.fanout.repair.reconcile import ReconcileFinding, ReconcileReport
from headgate.fanout.repair.redrive import ChunkSelection, RedriveReport
from headgate.fanout.service import FanoutService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.fanout.models import ChunkView, FanoutSummary, chunk_view, summary
from headgate.serve.rest.parameters import ChunkId, Duration, Name, Reason


class Steer(Struct, forbid_unknown_fields=True):
    """Actor and reason, recorded in the events."""

    by: Name | None = None
    reason: Reason | None = None


class Tune(Struct, forbid_unknown_fields=True):
    """Policy values to change. Omitted values stay; null clears a value where allowed."""

    by: Name | None = None
    priority: int | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType = UNSET
    lost_attempts_max: int | UnsetType = UNSET
    timeout_seconds: float | UnsetType = UNSET
    heartbeat_seconds: float | UnsetType | None = UNSET
    backoff_seconds: float | UnsetType = UNSET
    backoff_factor: float | UnsetType = UNSET
    backoff_seconds_max: float | UnsetType = UNSET
    memory_mb: int | UnsetType | None = UNSET
    item_timeout_seconds: float | UnsetType | None = UNSET
    heal_redrives_max: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    tolerated_failures: int | UnsetType | None = UNSET
    tolerated_failure_share: float | UnsetType | None = UNSET
    retention_days: float | UnsetType = UNSET
    budget: float | UnsetType | None = UNSET

    def changes(self) -> dict[str, Any]:
        """Return the changed values."""
        return {name: value for name, value in asdict(self).items() if value is not UNSET and name != "by"}


class Skip(Steer, forbid_unknown_fields=True, kw_only=True):
    """Chunks to skip: by id, or with `failed` all failed ones."""

    chunk_ids: list[ChunkId] = []
    failed: bool = False


class Skipped(Struct, frozen=True):
    """Skipped chunks, and those refused because they run or are done."""

    run_id: str
    skipped: list[str]
    left: list[str]


class Redrive(Steer, forbid_unknown_fields=True, kw_only=True):
    """Filter of chunks to redrive; all conditions must match. `all` includes cancelled chunks.

    `failed` selects all failed chunks, and the failed items of completed ones; so does a filter by error or age.
    `items` are indexes of failed items. Ages count from the failure. With a rate, chunks start one after the other.
    """

    chunk_ids: list[ChunkId] = []
    items: list[Annotated[int, Meta(ge=0)]] = []
    failed: bool = False
    dispositions: list[Disposition] = []
    fingerprint: str | None = None
    error_class: str | None = None
    older_than: Duration | None = None
    all: bool = False
    dry_run: bool = False
    rate_per_second: float | None = None
    limit: int | None = None


class Heal(Struct, forbid_unknown_fields=True):
    """With `dry_run` nothing is changed."""

    dry_run: bool = False


class Bisect(Struct, forbid_unknown_fields=True):
    """The chunk to bisect. With `until_alone` each half that fails is split again, until the failing item is alone."""

    chunk_id: ChunkId
    until_alone: bool = False


class CutView(Struct, frozen=True):
    """The halves of a bisected chunk: one keeps its row, the other is new unless there was one item."""

    chunk: ChunkView
    other: ChunkView | None
    said: str


class Reconcile(Struct, forbid_unknown_fields=True):
    """With `repair` the counters are corrected."""

    repair: bool = False


class ReconcileView(Struct, frozen=True):
    """Counts from the rows of a fan-out, and the differences to its counters.

    `unsettled` names counts that could not be determined because chunks kept moving.
    """

    run_id: str
    is_clean: bool
    chunks: int
    pieces: int
    findings: list[ReconcileFinding]
    findings_count: int
    unsettled: list[str]
    counts: dict[str, int]


class FanoutOperations:
    """Operations on fan-outs."""

    def __init__(self, fanouts: FanoutService) -> None:
        self._fanouts = fanouts
        self._queries = fanouts.queries
        self._control = fanouts.control

    def operations(self) -> list[Operation]:
        """Return the operations."""
        one, steered = "/fanouts/{id}", {200: FanoutSummary}
        return [
            Operation("POST", f"{one}/pause", "Pause a fan-out", self.pause, steered, body=Steer),
            Operation("POST", f"{one}/resume", "Resume a fan-out", self.resume, steered, body=Steer),
            Operation("POST", f"{one}/cancel", "Cancel a fan-out", self.cancel, {202: FanoutSummary}, body=Steer),
            Operation("POST", f"{one}/tune", "Change policy values", self.tune, steered, body=Tune),
            Operation("POST", f"{one}/skip", "Skip chunks", self.skip, {200: Skipped}, body=Skip),
            Operation("POST", f"{one}/redrive", "Redrive chunks", self.redrive, {200: RedriveReport}, body=Redrive),
            Operation("POST", f"{one}/heal", "Apply the auto-heal policy", self.heal, {200: HealReport}, body=Heal),
            Operation("POST", f"{one}/bisect", "Bisect a failing chunk", self.bisect, {200: CutView}, body=Bisect),
            Operation(
                "POST",
                f"{one}/reconcile",
                "Reconcile counters with rows",
                self.reconcile,
                {200: ReconcileView},
                body=Reconcile,
            ),
        ]

    def pause(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.pause(call.path["id"], by=call.body.by, reason=call.body.reason))

    def resume(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.resume(call.path["id"], by=call.body.by, reason=call.body.reason))

    def cancel(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.cancel(call.path["id"], by=call.body.by, reason=call.body.reason), 202)

    def tune(self, call: Call[Tune, NoQuery]) -> Answer:
        changes = call.body.changes()
        if not changes:
            raise UserError("tune: nothing to change; set priority, concurrency or another policy value")
        return _shown(self._control.tune(call.path["id"], by=call.body.by, **changes))

    def skip(self, call: Call[Skip, NoQuery]) -> Answer:
        body, run_id = call.body, call.path["id"]
        if body.failed == bool(body.chunk_ids):
            raise UserError("skip: select chunks by chunk_ids, or all failed ones by failed; not both")
        self._queries.fanout(run_id)
        wanted = body.chunk_ids or [chunk.chunk_id for chunk in self._queries.failures(run_id)]
        skipped = self._control.skip(run_id, wanted, by=body.by, reason=body.reason)
        return Answer(Skipped(run_id, skipped, [chunk_id for chunk_id in wanted if chunk_id not in set(skipped)]))

    def redrive(self, call: Call[Redrive, NoQuery]) -> Answer:
        body, run_id = call.body, call.path["id"]
        selection = ChunkSelection(
            chunk_ids=tuple(body.chunk_ids),
            items=tuple(body.items),
            failed=body.failed,
            dispositions=tuple(body.dispositions),
            fingerprint=body.fingerprint,
            error_class=body.error_class,
            older_than_seconds=optional_seconds(body.older_than, name="older_than"),
            all=body.all,
        )
        done = self._fanouts.redriver.redrive(
            run_id,
            selection,
            dry_run=body.dry_run,
            rate_per_second=body.rate_per_second,
            limit=body.limit,
            by=body.by,
            reason=body.reason,
        )
        return self._wake_workers(done, run_id)

    def heal(self, call: Call[Heal, NoQuery]) -> Answer:
        return self._wake_workers(
            self._fanouts.healer.heal(call.path["id"], dry_run=call.body.dry_run), call.path["id"]
        )

    def bisect(self, call: Call[Bisect, NoQuery]) -> Answer:
        run_id, body = call.path["id"], call.body
        cut = self._fanouts.bisector.isolate(run_id, body.chunk_id, until_alone=body.until_alone)
        other = None if cut.other is None else chunk_view(cut.other)
        return self._wake_workers(CutView(chunk_view(cut.chunk), other, cut.description), run_id)

    def reconcile(self, call: Call[Reconcile, NoQuery]) -> Answer:
        return Answer(_reconciled(self._fanouts.reconciler.reconcile(call.path["id"], repair=call.body.repair)))

    def _wake_workers(self, answer: Struct, run_id: str) -> Answer:
        """Wake workers of this process: there may be chunks to run."""
        self._fanouts.observer.on_work_available(run_id)
        return Answer(answer)


def _shown(fanout: Fanout, status: int = 200) -> Answer:
    return Answer(summary(fanout), status)


def _reconciled(report: ReconcileReport) -> ReconcileView:
    return ReconcileView(
        run_id=report.run_id,
        is_clean=report.is_clean,
        chunks=report.chunks,
        pieces=report.pieces,
        findings=list(report.findings),
        findings_count=report.findings_count,
        unsettled=list(report.unsettled),
        counts={name: getattr(report.counts, name) for name in Counts.__struct_fields__},
    )
