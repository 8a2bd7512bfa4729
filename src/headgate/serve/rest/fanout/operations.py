"""What is done to fan-outs over HTTP: steered, and mended where chunks have failed."""

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
from headgate.serve.rest.durable.models import Duration, Name, Reason
from headgate.serve.rest.fanout.models import ChunkView, FanoutSummary, chunk_view, summary


class Steer(Struct, forbid_unknown_fields=True):
    """Who does it and why, for whoever reads the events."""

    by: Name | None = None
    reason: Reason | None = None


class Tune(Struct, forbid_unknown_fields=True):
    """Numbers of the policy to change. Those left out stay; null sets one back to none, where that is allowed."""

    by: Name | None = None
    priority: int | UnsetType = UNSET
    concurrency: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType = UNSET
    timeout_seconds: float | UnsetType = UNSET
    heartbeat_seconds: float | UnsetType | None = UNSET
    backoff_seconds: float | UnsetType = UNSET
    backoff_factor: float | UnsetType = UNSET
    backoff_seconds_max: float | UnsetType = UNSET
    memory_mb: int | UnsetType | None = UNSET
    item_timeout_seconds: float | UnsetType | None = UNSET
    heal_redrives_max: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    retention_days: float | UnsetType = UNSET
    budget: float | UnsetType | None = UNSET

    def changes(self) -> dict[str, Any]:
        """Return what is to be changed."""
        return {name: value for name, value in asdict(self).items() if value is not UNSET and name != "by"}


class Skip(Steer, forbid_unknown_fields=True, kw_only=True):
    """Chunks to do without: these, or with `failed` all that were given up."""

    chunk_ids: list[str] = []
    failed: bool = False


class Skipped(Struct, frozen=True):
    """Which chunks were skipped, and which were not because they run or are done."""

    run_id: str
    skipped: list[str]
    left: list[str]


class Redrive(Steer, forbid_unknown_fields=True, kw_only=True):
    """Chunks to run again: those that match all that is given. `all` takes in those that were cancelled.

    Ages count from when a chunk was given up. With a rate the chunks start one after the other.
    """

    chunk_ids: list[str] = []
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
    """The chunk to cut in two."""

    chunk_id: str


class CutView(Struct, frozen=True):
    """What became of a chunk: the half that its row has kept, and the other half, if there was more than one item."""

    chunk: ChunkView
    other: ChunkView | None
    said: str


class Reconcile(Struct, forbid_unknown_fields=True):
    """With `repair`, what can be set right is."""

    repair: bool = False


class ReconcileView(Struct, frozen=True):
    """What the rows of a fan-out add up to, and what is not as it should be.

    `unsettled` names the numbers of which nothing can be said because chunks moved whenever they were counted.
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
    """What can be done to fan-outs."""

    def __init__(self, fanouts: FanoutService) -> None:
        self._fanouts = fanouts
        self._queries = fanouts.queries
        self._control = fanouts.control

    def operations(self) -> list[Operation]:
        """Return each with its path and types."""
        one, steered = "/fanouts/{id}", {200: FanoutSummary}
        return [
            Operation("POST", f"{one}/pause", "Start no further chunk for now", self.pause, steered, body=Steer),
            Operation("POST", f"{one}/resume", "Let it go on", self.resume, steered, body=Steer),
            Operation("POST", f"{one}/cancel", "End it early", self.cancel, {202: FanoutSummary}, body=Steer),
            Operation("POST", f"{one}/tune", "Change numbers of its policy", self.tune, steered, body=Tune),
            Operation("POST", f"{one}/skip", "Do without chunks", self.skip, {200: Skipped}, body=Skip),
            Operation("POST", f"{one}/redrive", "Run chunks again", self.redrive, {200: RedriveReport}, body=Redrive),
            Operation("POST", f"{one}/heal", "Do what its policy says", self.heal, {200: HealReport}, body=Heal),
            Operation(
                "POST", f"{one}/bisect", "Cut a chunk that fails in two", self.bisect, {200: CutView}, body=Bisect
            ),
            Operation(
                "POST",
                f"{one}/reconcile",
                "Compare its counts with its rows",
                self.reconcile,
                {200: ReconcileView},
                body=Reconcile,
            ),
        ]

    # Steering.

    def pause(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.pause(call.path["id"], by=call.body.by, reason=call.body.reason))

    def resume(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.resume(call.path["id"], by=call.body.by, reason=call.body.reason))

    def cancel(self, call: Call[Steer, NoQuery]) -> Answer:
        return _shown(self._control.cancel(call.path["id"], by=call.body.by, reason=call.body.reason), 202)

    def tune(self, call: Call[Tune, NoQuery]) -> Answer:
        changes = call.body.changes()
        if not changes:
            raise UserError("tune: nothing to change; give priority, concurrency or another number of the policy")
        return _shown(self._control.tune(call.path["id"], by=call.body.by, **changes))

    def skip(self, call: Call[Skip, NoQuery]) -> Answer:
        body, run_id = call.body, call.path["id"]
        if body.failed == bool(body.chunk_ids):
            raise UserError("skip: say which chunks by chunk_ids, or all that were given up by failed, and not both")
        self._queries.fanout(run_id)
        wanted = body.chunk_ids or [chunk.chunk_id for chunk in self._queries.failures(run_id)]
        skipped = self._control.skip(run_id, wanted, by=body.by, reason=body.reason)
        return Answer(Skipped(run_id, skipped, [chunk_id for chunk_id in wanted if chunk_id not in set(skipped)]))

    # Mending.

    def redrive(self, call: Call[Redrive, NoQuery]) -> Answer:
        body, run_id = call.body, call.path["id"]
        selection = ChunkSelection(
            chunk_ids=tuple(body.chunk_ids),
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
        return self._mended(done, run_id)

    def heal(self, call: Call[Heal, NoQuery]) -> Answer:
        return self._mended(self._fanouts.healer.heal(call.path["id"], dry_run=call.body.dry_run), call.path["id"])

    def bisect(self, call: Call[Bisect, NoQuery]) -> Answer:
        cut = self._fanouts.bisector.isolate(call.path["id"], call.body.chunk_id)
        other = None if cut.other is None else chunk_view(cut.other)
        return self._mended(CutView(chunk_view(cut.chunk), other, cut.description), call.path["id"])

    def reconcile(self, call: Call[Reconcile, NoQuery]) -> Answer:
        return Answer(_reconciled(self._fanouts.reconciler.reconcile(call.path["id"], repair=call.body.repair)))

    def _mended(self, answer: Struct, run_id: str) -> Answer:
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
