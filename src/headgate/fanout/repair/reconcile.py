"""Reconciliation: compares the counters of a fan-out with its rows, and repairs differences.

A chunk's row and its counter change in one transaction, so that a counter's error stays constant while chunks move. An
error measured at one time (see `recounts`) can therefore be subtracted later without losing concurrent updates. Only a
second repair could subtract it twice: each repair increments a number on the counter row, and fails if another repair
was made since the measurement.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, OutcomeUnknownError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.counts import Counts, counts_of, final_status
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, counter_key
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.recounts import STRUCTURE, Recount, RowFault, names_of, repaired
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import absent, all_of, equals, lacks
from headgate.store.model.requests import Put, Update, Write
from headgate.store.model.validation import key_of
from headgate.store.model.values import Item
from headgate.store.port import Store

# Recounts before numbers that still change are reported as unsettled. A recount that settled none is the last one:
# workers are busy, and another one would find the same.
COUNTS_MAX: Final = 5
# Findings listed per kind; the report counts all.
NAMED_MAX: Final = 1000
_REPAIRS: Final = "repairs"


class FindingKind(enum.StrEnum):
    """The subject of a finding."""

    COUNTER = "COUNTER"
    ITEMS = "ITEMS"
    ROW = "ROW"
    FANOUT = "FANOUT"


class ReconcileFinding(Struct, frozen=True):
    """One inconsistency."""

    kind: FindingKind
    description: str = field(name="said")
    is_repaired: bool = False


class ReconcileReport(Struct, frozen=True):
    """The result of a reconciliation. `counts` are the sums over the rows."""

    run_id: str
    chunks: int
    pieces: int
    counts: Counts
    findings: tuple[ReconcileFinding, ...] = ()
    # Including findings that are not listed.
    findings_count: int = 0
    # Counters that changed during every recount, so that nothing is known about them.
    unsettled: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything was measured and nothing is wrong."""
        return not self.findings_count and not self.unsettled


class _DriftMeasure:
    """The difference between each counter and its rows, as far as it is known."""

    def __init__(self, fanout: Fanout) -> None:
        self.drifts: dict[tuple[int, str], int] = {}
        self.counters: list[Item | None] = []
        self.is_whole = False
        self.names = names_of(fanout)
        self._shards = range(fanout.shards)

    def compare(self, before: Recount, counters: list[Item | None], after: Recount) -> None:
        """Compare two recounts with the counters read in between."""
        for shard in self._shards:
            if self.counters and _repairs(self.counters[shard]) != _repairs(counters[shard]):
                # Repaired by another process: earlier differences no longer hold.
                for name in self.names:
                    self.drifts.pop((shard, name), None)
            for name in self.names:
                if before.mark(shard, name) == after.mark(shard, name):
                    drift = _number(counters[shard], name) - before.sum(shard, name)
                    self.drifts.setdefault((shard, name), drift)
        self.counters = counters
        self.is_whole = all(before.mark(s, name) == after.mark(s, name) for s in self._shards for name in STRUCTURE)

    def unsettled(self) -> tuple[str, ...]:
        """Return the counters whose difference is unknown in some shard."""
        return tuple(name for name in self.names if any((shard, name) not in self.drifts for shard in self._shards))

    def wrong(self, shard: int) -> dict[str, int]:
        """Return the non-zero differences of a shard's counter."""
        found = {name: self.drifts.get((shard, name), 0) for name in self.names}
        return {name: drift for name, drift in found.items() if drift}


class Reconciler:
    """Compares counters and rows of a fan-out."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self.queries = FanoutQueries(store, clock)
        self._store = store
        self._ids = ids

    def reconcile(self, run_id: str, *, repair: bool = False) -> ReconcileReport:
        """Recount all rows and return inconsistencies; with `repair`, fix those that can be.

        Workers may continue. Counters that change during every recount are unsettled and left alone: pause the fan-out,
        or repeat. Raises `NotFoundError`, and `CorruptionError` for rows that cannot be decoded.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        recount, measure = self._measure(fanout)
        counts = Counts(**{name: recount.total(name) for name in measure.names})
        findings = self._counters(fanout, recount, measure, repair=repair)
        if measure.is_whole:
            findings += [ReconcileFinding(FindingKind.ITEMS, description) for description in recount.breaks]
        findings += [self._row(fault, repair=repair) for fault in recount.faults]
        if not measure.unsettled():
            findings += self._fanout(fanout, counts, repair=repair)
        unnamed = recount.faults_count - len(recount.faults)
        if measure.is_whole:
            unnamed += recount.breaks_count - len(recount.breaks)
        return ReconcileReport(
            run_id=run_id,
            chunks=recount.chunks,
            pieces=recount.pieces,
            counts=counts,
            findings=tuple(findings),
            findings_count=len(findings) + unnamed,
            unsettled=measure.unsettled(),
        )

    def _measure(self, fanout: Fanout) -> tuple[Recount, _DriftMeasure]:
        measure = _DriftMeasure(fanout)
        keys = [counter_key(fanout.run_id, shard) for shard in range(fanout.shards)]
        before, unsettled = self._recount(fanout), measure.unsettled()
        for _ in range(COUNTS_MAX - 1):
            counters = self._store.get_many(FANOUT, keys, consistent=True)
            after = self._recount(fanout)
            measure.compare(before, counters, after)
            before, earlier, unsettled = after, unsettled, measure.unsettled()
            if measure.is_whole and (not unsettled or unsettled == earlier):
                break
        return before, measure

    def _recount(self, fanout: Fanout) -> Recount:
        recount = Recount(fanout, named_max=NAMED_MAX)
        for slow in (False, True):
            for chunk in self.queries.every_chunk(fanout.run_id, slow=slow):
                recount.add(chunk)
        if fanout.status is not FanoutStatus.SPLITTING:
            recount.end(fanout.items_total)
        return recount

    # Counters.

    def _counters(
        self, fanout: Fanout, recount: Recount, measure: _DriftMeasure, *, repair: bool
    ) -> list[ReconcileFinding]:
        findings: list[ReconcileFinding] = []
        for shard in range(fanout.shards):
            counter, wrong = measure.counters[shard], measure.wrong(shard)
            is_repaired = False
            if repair and (wrong or counter is None):
                is_repaired = self._repair_counter(fanout, shard, recount, measure)
            name = counter_key(fanout.run_id, shard).sort
            if counter is None:
                findings.append(ReconcileFinding(FindingKind.COUNTER, f"counter {name} does not exist", is_repaired))
            for what, drift in wrong.items() if counter is not None else ():
                number = _number(counter, what)
                description = f"counter {name} says {what} {number}, and its rows make {number - drift}"
                findings.append(ReconcileFinding(FindingKind.COUNTER, description, is_repaired))
        sums = counts_of(measure.counters)
        if sums.drift() and not findings:
            description = (
                f"the buckets of all counters make {sums.total + sums.drift()}, and their total is {sums.total}"
            )
            findings.append(ReconcileFinding(FindingKind.COUNTER, description))
        return findings

    def _repair_counter(self, fanout: Fanout, shard: int, recount: Recount, measure: _DriftMeasure) -> bool:
        key, counter = counter_key(fanout.run_id, shard), measure.counters[shard]
        if counter is None:
            if any((shard, name) not in measure.drifts for name in measure.names):
                return False
            sums = {name: recount.sum(shard, name) for name in measure.names if recount.sum(shard, name)}
            made = Put(FANOUT, {**FANOUT.key_attributes(key), **sums, _REPAIRS: 1}, absent())
            return self._try(made, f"counter {key.sort} did not exist")
        number = _repairs(counter)
        amounts = {name: -drift for name, drift in measure.wrong(shard).items()}
        unrepaired = lacks(_REPAIRS) if _REPAIRS not in counter else equals(_REPAIRS, number)
        description = ", ".join(f"{name} {amount:+d}" for name, amount in amounts.items())
        return self._try(
            Update(FANOUT, key, {_REPAIRS: number + 1}, amounts, (), unrepaired), f"{key.sort}: {description}"
        )

    def _try(self, write: Write, description: str) -> bool:
        """Commit a repair with its audit event, unless the row has changed since the decision."""
        run_id = str(key_of(write).partition)
        note = event(run_id, self._ids.ulid(), "repaired", self.queries.now(), reason=description)
        try:
            # The idempotency token makes the addition safe to repeat.
            self._store.transact([write, note.put()], token=self._ids.ulid())
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        return True

    # Rows.

    def _row(self, fault: RowFault, *, repair: bool) -> ReconcileFinding:
        is_repaired = repair and fault.can_repair and self._repair_row(fault.chunk, fault.description)
        return ReconcileFinding(FindingKind.ROW, fault.description, is_repaired)

    def _repair_row(self, chunk: Chunk, description: str) -> bool:
        fixed = repaired(chunk, self.queries.now_ms())
        names = ("attention_pk", "attention_sk", "queue_pk", "queue_sk")
        values = {name: getattr(fixed, name) for name in names}
        missing = tuple(name for name, value in values.items() if value is None)
        found = {name: value for name, value in values.items() if value is not None} | {"status": fixed.status.value}
        lease = chunk.lease_expires_at
        # Fenced on the lease too: otherwise a heartbeat's index entry could be overwritten.
        unmoved = all_of(
            chunk.fence(), lacks("lease_expires_at") if lease is None else equals("lease_expires_at", lease)
        )
        return self._try(Update(FANOUT, chunk.key, found, {}, missing, unmoved), description)

    # The fan-out's row.

    def _fanout(self, before: Fanout, counts: Counts, *, repair: bool) -> list[ReconcileFinding]:
        fanout = self.queries.fanout(before.run_id, consistent=True)
        if fanout.is_finished and fanout.version != before.version:
            # It has ended since, so that these counts are not its final ones.
            return []
        findings: list[ReconcileFinding] = []
        description, after = fanout_faults(fanout, counts)
        if description:
            is_repaired = repair and after is not None and self._try(_put(fanout, after), description[0])
            findings += [ReconcileFinding(FindingKind.FANOUT, each, is_repaired) for each in description]
        lost = counts.deferred - (counts.slow_total - counts.slow_done)
        if lost > 0:
            findings.append(
                ReconcileFinding(FindingKind.ITEMS, f"{lost} chunks deferred items that have no slow-lane chunk")
            )
        return findings


def fanout_faults(fanout: Fanout, counts: Counts) -> tuple[list[str], Fanout | None]:
    """Return the faults of a fan-out's row given the counts of its rows, and the corrected row."""
    if not fanout.shards:
        return _numbers(fanout, counts), None
    if not fanout.is_finished:
        if fanout.attention_pk == ACTIVE:
            return [], None
        return ["it is open, and not in the index of open fan-outs"], _as_active(fanout)
    still_open = counts.open + counts.slow_open
    if still_open:
        return [f"it has ended as {fanout.status}, and {still_open} chunks are open"], _reopened(fanout)
    status = final_status(fanout, counts)
    if status is not fanout.status:
        return [f"it has ended as {fanout.status}, and by its rows it should be {status}"], _reopened(fanout)
    description = _numbers(fanout, counts)
    expected = {name: getattr(counts, name) for name in names_of(fanout)}
    if any(fanout.counts.get(name, 0) != number for name, number in expected.items()):
        wrong = [name for name, number in expected.items() if fanout.counts.get(name, 0) != number]
        description.append(f"its row and its chunks differ in {', '.join(wrong)}")
    kept = {name: number for name, number in fanout.counts.items() if name not in expected}
    after = replace(
        fanout,
        counts=kept | {name: number for name, number in expected.items() if number},
        chunks_total=counts.total,
        chunks=counts.total,
        chunks_completed=counts.completed,
        chunks_failed=counts.failed,
    )
    return description, after


def _numbers(fanout: Fanout, counts: Counts) -> list[str]:
    pairs = {
        "jobs_total": (fanout.chunks_total, counts.total),
        "jobs_completed": (fanout.chunks_completed, counts.completed),
        "jobs_failed": (fanout.chunks_failed, counts.failed),
    }
    return [
        f"its row says {name} {is_}, and its chunks make {rows}" for name, (is_, rows) in pairs.items() if is_ != rows
    ]


def _as_active(fanout: Fanout) -> Fanout:
    return replace(fanout, attention_pk=ACTIVE, attention_sk=f"{fanout.created_at}#{fanout.run_id}")


def _reopened(fanout: Fanout) -> Fanout:
    """Return the fan-out as an open one, so that maintenance closes it with the right status."""
    return replace(_as_active(fanout), status=FanoutStatus.RUNNING, finished_at=None)


def _put(fanout: Fanout, after: Fanout) -> Put:
    return replace(after, version=fanout.version + 1).replacing(fanout.version)


def _number(counter: Item | None, name: str) -> int:
    value = (counter or {}).get(name, 0)
    if not isinstance(value, int):
        where = f"fan-out {(counter or {}).get('PK')}, counter {(counter or {}).get('SK')}"
        raise CorruptionError(f"{where}: {name} is {value!r}, not a number; remove it from the row")
    return value


def _repairs(counter: Item | None) -> int:
    return _number(counter, _REPAIRS)
