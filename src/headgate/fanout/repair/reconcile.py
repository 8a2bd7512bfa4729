"""Reconciling: are the counts of a fan-out what its rows add up to, and does every item have its chunk?

By how much a counter is wrong does not change when a chunk moves, for row and counter move in one transaction. So a
difference that was established at one moment (see `recounts`) may be taken off later, whatever has moved since, by
adding its opposite: no concurrent move is lost. Only another repair could take it off twice; each repair therefore
numbers itself on the counter row, and comes to nothing if there was another since the count.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, OutcomeUnknownError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.counts import Counts, counts_of, verdict
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, counter_key
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.recounts import NAMES, STRUCTURE, Fault, Recount, mended
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import absent, all_of, equals, lacks
from headgate.store.model.requests import Put, Update, Write
from headgate.store.model.validation import key_of
from headgate.store.model.values import Item
from headgate.store.port import Store

# How often the rows are counted before what still moves is left as it is.
COUNTS_MAX: Final = 5
# How many of each kind of finding are told; they are counted all.
NAMED_MAX: Final = 1000
_REPAIRS: Final = "repairs"


class Kind(enum.StrEnum):
    """What a finding is about."""

    COUNTER = "COUNTER"
    ITEMS = "ITEMS"
    ROW = "ROW"
    FANOUT = "FANOUT"


class Finding(Struct, frozen=True):
    """One thing that is not as it should be, in a sentence."""

    kind: Kind
    said: str
    is_repaired: bool = False


class Report(Struct, frozen=True):
    """What a fan-out's rows came to. `counts` is what they add up to, of what can be told from them."""

    run_id: str
    chunks: int
    pieces: int
    counts: Counts
    findings: tuple[Finding, ...] = ()
    # Of all, those that are not told included.
    findings_count: int = 0
    # Numbers of which nothing can be said, because chunks moved whenever they were counted.
    unsettled: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything was counted and nothing was found."""
        return not self.findings_count and not self.unsettled


class _Measure:
    """By how much each counter differs from its rows, as far as that is known."""

    def __init__(self, fanout: Fanout) -> None:
        self.drifts: dict[tuple[int, str], int] = {}
        self.counters: list[Item | None] = []
        self.is_whole = False
        self._shards = range(fanout.shards)

    def compare(self, before: Recount, counters: list[Item | None], after: Recount) -> None:
        """Learn from two counts and the counters as they were in between."""
        for shard in self._shards:
            if self.counters and _repairs(self.counters[shard]) != _repairs(counters[shard]):
                # Repaired by someone else: what was known is no longer so.
                for name in NAMES:
                    self.drifts.pop((shard, name), None)
            for name in NAMES:
                if before.mark(shard, name) == after.mark(shard, name):
                    drift = _number(counters[shard], name) - before.sum(shard, name)
                    self.drifts.setdefault((shard, name), drift)
        self.counters = counters
        self.is_whole = all(before.mark(s, name) == after.mark(s, name) for s in self._shards for name in STRUCTURE)

    def unsettled(self) -> tuple[str, ...]:
        """Return the numbers of which some shard's is not known."""
        return tuple(name for name in NAMES if any((shard, name) not in self.drifts for shard in self._shards))

    def wrong(self, shard: int) -> dict[str, int]:
        """Return by how much which numbers of a shard's counter are too large."""
        found = {name: self.drifts.get((shard, name), 0) for name in NAMES}
        return {name: drift for name, drift in found.items() if drift}


class Reconciler:
    """Compares what is counted with what is there."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self.queries = FanoutQueries(store, clock)
        self._store = store
        self._ids = ids

    def reconcile(self, run_id: str, *, repair: bool = False) -> Report:
        """Count all rows and return what is not as it should be; with `repair`, set right what can be.

        Workers may go on meanwhile. What they move all the time stays unsettled and is not touched: pause the fan-out,
        or ask again. Raises `NotFoundError`, and `CorruptionError` for rows that cannot be read.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        recount, measure = self._measure(fanout)
        counts = Counts(**{name: recount.total(name) for name in NAMES})
        findings = self._counters(fanout, recount, measure, repair=repair)
        if measure.is_whole:
            findings += [Finding(Kind.ITEMS, said) for said in recount.breaks]
        findings += [self._row(fault, repair=repair) for fault in recount.faults]
        if not measure.unsettled():
            findings += self._fanout(fanout, counts, repair=repair)
        untold = recount.faults_count - len(recount.faults)
        if measure.is_whole:
            untold += recount.breaks_count - len(recount.breaks)
        return Report(
            run_id=run_id,
            chunks=recount.chunks,
            pieces=recount.pieces,
            counts=counts,
            findings=tuple(findings),
            findings_count=len(findings) + untold,
            unsettled=measure.unsettled(),
        )

    def _measure(self, fanout: Fanout) -> tuple[Recount, _Measure]:
        measure = _Measure(fanout)
        keys = [counter_key(fanout.run_id, shard) for shard in range(fanout.shards)]
        before = self._recount(fanout)
        for _ in range(COUNTS_MAX - 1):
            counters = self._store.get_many(FANOUT, keys, consistent=True)
            after = self._recount(fanout)
            measure.compare(before, counters, after)
            before = after
            if measure.is_whole and not measure.unsettled():
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

    def _counters(self, fanout: Fanout, recount: Recount, measure: _Measure, *, repair: bool) -> list[Finding]:
        findings: list[Finding] = []
        for shard in range(fanout.shards):
            counter, wrong = measure.counters[shard], measure.wrong(shard)
            is_repaired = False
            if repair and (wrong or counter is None):
                is_repaired = self._repair_counter(fanout, shard, recount, measure)
            name = counter_key(fanout.run_id, shard).sort
            if counter is None:
                findings.append(Finding(Kind.COUNTER, f"counter {name} is not there", is_repaired))
            for what, drift in wrong.items() if counter is not None else ():
                number = _number(counter, what)
                said = f"counter {name} says {what} {number}, and its rows make {number - drift}"
                findings.append(Finding(Kind.COUNTER, said, is_repaired))
        sums = counts_of(measure.counters)
        if sums.drift() and not findings:
            said = f"the buckets of all counters make {sums.total + sums.drift()}, and their total is {sums.total}"
            findings.append(Finding(Kind.COUNTER, said))
        return findings

    def _repair_counter(self, fanout: Fanout, shard: int, recount: Recount, measure: _Measure) -> bool:
        key, counter = counter_key(fanout.run_id, shard), measure.counters[shard]
        if counter is None:
            if any((shard, name) not in measure.drifts for name in NAMES):
                return False
            sums = {name: recount.sum(shard, name) for name in NAMES if recount.sum(shard, name)}
            made = Put(FANOUT, {**FANOUT.key_attributes(key), **sums, _REPAIRS: 1}, absent())
            return self._try(made, f"counter {key.sort} was not there")
        number = _repairs(counter)
        amounts = {name: -drift for name, drift in measure.wrong(shard).items()}
        unrepaired = lacks(_REPAIRS) if _REPAIRS not in counter else equals(_REPAIRS, number)
        said = ", ".join(f"{name} {amount:+d}" for name, amount in amounts.items())
        return self._try(Update(FANOUT, key, {_REPAIRS: number + 1}, amounts, (), unrepaired), f"{key.sort}: {said}")

    def _try(self, write: Write, said: str) -> bool:
        """Make a repair and note it, unless something has changed since it was decided."""
        run_id = str(key_of(write).partition)
        note = event(run_id, self._ids.ulid(), "repaired", self.queries.now(), reason=said)
        try:
            # The token makes it safe to add: asked twice, it is done once.
            self._store.transact([write, note.put()], token=self._ids.ulid())
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        return True

    # Rows.

    def _row(self, fault: Fault, *, repair: bool) -> Finding:
        is_repaired = repair and fault.can_mend and self._mend(fault.chunk, fault.said)
        return Finding(Kind.ROW, fault.said, is_repaired)

    def _mend(self, chunk: Chunk, said: str) -> bool:
        home = mended(chunk, self.queries.now_ms())
        names = ("attention_pk", "attention_sk", "queue_pk", "queue_sk")
        values = {name: getattr(home, name) for name in names}
        missing = tuple(name for name, value in values.items() if value is None)
        found = {name: value for name, value in values.items() if value is not None} | {"status": home.status.value}
        lease = chunk.lease_expires_at
        # The lease too: a sign of life of its worker would otherwise be undone in the index.
        unmoved = all_of(
            chunk.fence(), lacks("lease_expires_at") if lease is None else equals("lease_expires_at", lease)
        )
        return self._try(Update(FANOUT, chunk.key, found, {}, missing, unmoved), said)

    # The fan-out itself.

    def _fanout(self, before: Fanout, counts: Counts, *, repair: bool) -> list[Finding]:
        fanout = self.queries.fanout(before.run_id, consistent=True)
        if fanout.is_finished and fanout.version != before.version:
            # It has ended since, or was opened and ended anew: what was counted is no longer what it ended with.
            return []
        findings: list[Finding] = []
        said, after = judged(fanout, counts)
        if said:
            is_repaired = repair and after is not None and self._try(_put(fanout, after), said[0])
            findings += [Finding(Kind.FANOUT, each, is_repaired) for each in said]
        lost = counts.deferred - (counts.slow_total - counts.slow_done)
        if lost > 0:
            findings.append(
                Finding(Kind.ITEMS, f"{lost} chunks left items to the slow lane, and it does not have them")
            )
        return findings


def judged(fanout: Fanout, counts: Counts) -> tuple[list[str], Fanout | None]:
    """Return what is wrong with a fan-out's row, its rows making these counts, and the row as it should be."""
    if not fanout.shards:
        return _numbers(fanout, counts), None
    if not fanout.is_finished:
        if fanout.attention_pk == ACTIVE:
            return [], None
        return ["it has not ended, and is not listed among those that have not"], _listed(fanout)
    still_open = counts.open + counts.slow_open
    if still_open:
        return [f"it has ended as {fanout.status}, and {still_open} chunks are open"], _opened(fanout)
    status = verdict(fanout, counts)
    if status is not fanout.status:
        return [f"it has ended as {fanout.status}, and by its rows it should be {status}"], _opened(fanout)
    said = _numbers(fanout, counts)
    told = {name: getattr(counts, name) for name in NAMES}
    if any(fanout.counts.get(name, 0) != number for name, number in told.items()):
        wrong = [name for name, number in told.items() if fanout.counts.get(name, 0) != number]
        said.append(f"its row has other numbers than its chunks of {', '.join(wrong)}")
    kept = {name: number for name, number in fanout.counts.items() if name not in told}
    after = replace(
        fanout,
        counts=kept | {name: number for name, number in told.items() if number},
        chunks_total=counts.total,
        chunks=counts.total,
        chunks_completed=counts.completed,
        chunks_failed=counts.failed,
    )
    return said, after


def _numbers(fanout: Fanout, counts: Counts) -> list[str]:
    pairs = {
        "jobs_total": (fanout.chunks_total, counts.total),
        "jobs_completed": (fanout.chunks_completed, counts.completed),
        "jobs_failed": (fanout.chunks_failed, counts.failed),
    }
    return [
        f"its row says {name} {is_}, and its chunks make {rows}" for name, (is_, rows) in pairs.items() if is_ != rows
    ]


def _listed(fanout: Fanout) -> Fanout:
    return replace(fanout, attention_pk=ACTIVE, attention_sk=f"{fanout.created_at}#{fanout.run_id}")


def _opened(fanout: Fanout) -> Fanout:
    """Return the fan-out as one that has not ended, so that whoever tends it ends it rightly."""
    return replace(_listed(fanout), status=FanoutStatus.RUNNING, finished_at=None)


def _put(fanout: Fanout, after: Fanout) -> Put:
    return replace(after, version=fanout.version + 1).replacing(fanout.version)


def _number(counter: Item | None, name: str) -> int:
    value = (counter or {}).get(name, 0)
    if not isinstance(value, int):
        where = f"fan-out {(counter or {}).get('PK')}, counter {(counter or {}).get('SK')}"
        raise CorruptionError(f"{where}: {name} is {value!r}, which is no number; take it out of the row by hand")
    return value


def _repairs(counter: Item | None) -> int:
    return _number(counter, _REPAIRS)
