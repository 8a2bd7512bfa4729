"""Reruns: requested once, decided under the lock, charged to a budget, and recorded.

A request changes nothing else. Only `judge` with a lease on the period's lock accepts one: the acceptance, the charge
to the budget in the run log, and the lock check are one transaction. So a lost lock costs nothing, two concurrent
requests are charged twice or one is refused, and a redelivered request is decided once.

A deleted request row starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import JobEvent, RerunReason
from headgate.pipelines.runs import run_log
from headgate.pipelines.runs.locks import evaluation_key, held, lost
from headgate.pipelines.runs.rerun_decisions import RerunDecision, Situation, decide_rerun
from headgate.pipelines.runs.rerun_rows import (
    PREFIX,
    Rerun,
    RerunStatus,
    foreign_rerun_id,
    reason_of,
    request_item,
    request_key,
    rerun_key,
    rerun_of,
    rerun_writes,
)
from headgate.pipelines.runs.rows import JobLogEntry, RunLog, Slot, job_put, run_log_key, run_log_of, run_log_put
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import Condition, absent, equals, lacks
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.port import Store

Also = Sequence[Write] | Callable[[Rerun, RunLog | None], Sequence[Write]]

_RACES_MAX: Final = 10
_LEDGER: Final = "RERUN#"


class RerunPage(Struct, frozen=True):
    """A page of reruns, latest requests first."""

    reruns: list[Rerun]
    cursor: str | None = None


class RerunJudgement(Struct, frozen=True):
    """The decision on a rerun. `proceeds`: the asking execution starts its run."""

    rerun: Rerun
    proceeds: bool
    reason: str


class Reruns:
    """Stores reruns. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    # Requests.

    def request(
        self,
        slot: Slot,
        reason: RerunReason,
        *,
        by: str = "",
        note: str = "",
        is_forced: bool = False,
        detail: Mapping[str, Json] | None = None,
        also: Also = (),
    ) -> Rerun:
        """Request a rerun of a period, and return the pending request.

        A period has one pending request: a second call returns that one, and `also` is not written. Raises
        `ConflictError` if a write of `also` is refused.
        """
        for _ in range(_RACES_MAX):
            row = self._store.get(PIPELINES, request_key(slot), consistent=True)
            waiting = None if row is None else self._waiting(row)
            if waiting is not None:
                return waiting
            rerun = Rerun(
                **slot._asdict(),
                rerun_id=self._ids.make(PREFIX),
                reason=reason,
                status=RerunStatus.REQUESTED,
                version=1,
                requested_at_ms=self._now_ms(),
                by=by,
                note=note,
                is_forced=is_forced,
                detail=dict(detail or {}),
            )
            request = Put(PIPELINES, request_item(rerun), _same_request(row))
            try:
                self._store.transact([request, *rerun_writes(rerun), *_writes(also, rerun, None)])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
            else:
                return rerun
        raise ConflictError(f"{slot}: concurrent changes of its rerun request keep winning; try again")

    def adopt(self, slot: Slot, item: Mapping[str, Any], *, also: Also = ()) -> Rerun:
        """Return the rerun of a request row, and record it if another program wrote the row.

        The same row is one rerun, however often it is delivered. `also` is written when it is recorded. A deleted row
        must not be passed.
        """
        rerun_id = foreign_rerun_id(item)
        rerun = self.find(rerun_id)
        if rerun is not None:
            return rerun
        text = str(item.get("reason", ""))
        rerun = Rerun(
            **slot._asdict(),
            rerun_id=rerun_id,
            reason=reason_of(text),
            status=RerunStatus.REQUESTED,
            version=1,
            requested_at_ms=self._now_ms(),
            by=str(item.get("by", item.get("requestedBy", ""))),
            note=text,
        )
        try:
            self._store.transact([*rerun_writes(rerun), *_writes(also, rerun, None)])
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            return self.get(rerun_id)
        return rerun

    def pending(self, slot: Slot) -> Rerun | None:
        """Return the pending request of a period, for the execution that has just released its lock."""
        row = self._store.get(PIPELINES, request_key(slot), consistent=True)
        return None if row is None else self._waiting(row)

    def latest(self, slot: Slot) -> Rerun | None:
        """Return the last rerun that was requested of a period, whatever was decided."""
        row = self._store.get(PIPELINES, request_key(slot), consistent=True)
        return None if row is None else self.find(foreign_rerun_id(row))

    # Decisions.

    def judge(
        self, rerun_id: str, situation: Situation, *, execution: str = "", lock_token: str = "", also: Also = ()
    ) -> RerunJudgement:
        """Decide on a rerun, and store the acceptance or rejection.

        Without a lease on the lock it can only be rejected; otherwise it stays pending. One execution accepts it and
        may ask again; for any other it does not proceed. `also` gets the changed rerun and log. Raises `NotFoundError`,
        `StaleClaimError` if the lock is lost, and `ConflictError` if a write of `also` is refused.
        """
        if lock_token:
            # A run that was left open there no longer has the lock.
            situation = replace(situation, is_locked=False)
        for _ in range(_RACES_MAX):
            rerun = self.get(rerun_id)
            if rerun.status is not RerunStatus.REQUESTED:
                return _settled(rerun, execution)
            log = self._log(rerun.slot)
            decision = decide_rerun(rerun, log, situation)
            if not decision.is_rejected and not (decision.is_accepted and lock_token):
                return RerunJudgement(rerun, proceeds=False, reason=decision.reason)
            now_ms = self._now_ms()
            judged = _judged(rerun, decision, execution, now_ms)
            after = _charged(judged, log, now_ms) if decision.is_accepted else log
            writes: list[Write] = [*rerun_writes(judged, replaces=rerun.version), job_put(_entry(judged, now_ms))]
            if decision.is_accepted and after is not None:
                replaces = None if log is None else log.version
                writes += [run_log_put(after, replaces=replaces), held(evaluation_key(rerun.slot), lock_token)]
            try:
                self._store.transact([*writes, *_writes(also, judged, after)])
            except OutcomeUnknownError:
                continue
            except ConflictError as exc:
                _raise_unless_raced(exc, rerun.slot, lock_token, len(writes))
            else:
                return RerunJudgement(judged, proceeds=decision.is_accepted, reason=decision.reason)
        raise ConflictError(f"rerun {rerun_id}: concurrent changes of its period keep winning; try again")

    def ending_writes(self, rerun: Rerun, *, run_id: str, is_success: bool, reason: str = "") -> list[Write]:
        """Return the writes that end an accepted rerun, for the transaction that ends its run.

        `reason` replaces the reason of the decision, for a rerun that ends without a run of its own. The writes are
        refused if the rerun changed since it was read. There are none if it has ended, unless the run that it failed
        with has been repaired.
        """
        is_repaired = rerun.status is RerunStatus.FAILED and is_success and rerun.run_id == run_id
        if rerun.status is not RerunStatus.ACCEPTED and not is_repaired:
            return []
        status = RerunStatus.COMPLETED if is_success else RerunStatus.FAILED
        ended = replace(
            rerun,
            status=status,
            version=rerun.version + 1,
            decision=reason or rerun.decision,
            run_id=run_id,
            ended_at_ms=self._now_ms(),
        )
        return [*rerun_writes(ended, replaces=rerun.version)]

    def execution_writes(self, rerun: Rerun, execution: str) -> list[Write]:
        """Return the writes that make another execution the one that runs an accepted rerun."""
        return [*rerun_writes(replace(rerun, execution=execution, version=rerun.version + 1), replaces=rerun.version)]

    def end(self, writes: Sequence[Write]) -> bool:
        """Write what `ending_writes` returned, with further writes. False: the rerun has ended meanwhile.

        Raises `ConflictError` if one of the further writes is refused.
        """
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            return False
        return True

    # Reading.

    def get(self, rerun_id: str) -> Rerun:
        """Return a rerun. Raises `NotFoundError`."""
        rerun = self.find(rerun_id)
        if rerun is None:
            raise NotFoundError(f"rerun {rerun_id}: there is none; 'headgate run reruns' lists them")
        return rerun

    def find(self, rerun_id: str) -> Rerun | None:
        """Return a rerun, or None."""
        item = self._store.get(PIPELINES, rerun_key(rerun_id), consistent=True)
        return None if item is None else rerun_of(item)

    def ls(self, pipeline_id: str | None = None, *, limit: int = 100, cursor: str | None = None) -> RerunPage:
        """Return the reruns of a pipeline, or of all, by id, latest first."""
        sort = Sort(Range.BEGINS_WITH, _LEDGER)
        query = (
            Query(table=PIPELINES, index="GSI1", partition="RERUNS", limit=limit, cursor=cursor, descending=True)
            if pipeline_id is None
            else Query(
                table=PIPELINES,
                partition=f"PIPELINE#{pipeline_id}",
                sort=sort,
                limit=limit,
                cursor=cursor,
                descending=True,
            )
        )
        page = self._store.query(query)
        return RerunPage([rerun_of(item) for item in page.items], page.cursor)

    # Helpers.

    def _waiting(self, row: Mapping[str, Any]) -> Rerun | None:
        rerun = self.find(foreign_rerun_id(row))
        return rerun if rerun is not None and rerun.status is RerunStatus.REQUESTED else None

    def _log(self, slot: Slot) -> RunLog | None:
        item = self._store.get(PIPELINES, run_log_key(slot), consistent=True)
        return None if item is None else run_log_of(item)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _same_request(row: Mapping[str, Any] | None) -> Condition:
    if row is None:
        return absent()
    return equals("rerun_id", row["rerun_id"]) if "rerun_id" in row else lacks("rerun_id")


def _settled(rerun: Rerun, execution: str) -> RerunJudgement:
    """Return the answer for an execution that asks about a rerun that was decided before."""
    if rerun.status is RerunStatus.ACCEPTED and execution and rerun.execution == execution:
        return RerunJudgement(rerun, proceeds=True, reason=rerun.decision)
    if rerun.status is RerunStatus.REJECTED:
        return RerunJudgement(rerun, proceeds=False, reason=rerun.decision)
    return RerunJudgement(rerun, proceeds=False, reason=f"{rerun.execution or 'another'} runs it")


def _judged(rerun: Rerun, decision: RerunDecision, execution: str, now_ms: int) -> Rerun:
    status = RerunStatus.ACCEPTED if decision.is_accepted else RerunStatus.REJECTED
    return replace(
        rerun,
        status=status,
        version=rerun.version + 1,
        decided_at_ms=now_ms,
        rule=decision.rule.value,
        decision=decision.reason,
        execution=execution if decision.is_accepted else "",
        ended_at_ms=None if decision.is_accepted else now_ms,
    )


def _charged(rerun: Rerun, log: RunLog | None, now_ms: int) -> RunLog:
    """Return the log of the period with the rerun charged to its budget."""
    before = log if log is not None else run_log.opened(rerun.slot, now_ms)
    spent = before.reruns.get(rerun.budget, 0) + 1
    return replace(
        before,
        version=1 if log is None else log.version + 1,
        updated_at_ms=now_ms,
        reruns={**before.reruns, rerun.budget.value: spent},
        rerun_id=rerun.rerun_id,
        is_rerun_due=True,
    )


def _entry(rerun: Rerun, now_ms: int) -> JobLogEntry:
    is_accepted = rerun.status is RerunStatus.ACCEPTED
    return JobLogEntry(
        **rerun.slot._asdict(),
        event=JobEvent.RERUN_ACCEPTED if is_accepted else JobEvent.RERUN_REJECTED,
        at_ms=now_ms,
        by=rerun.by,
        error="" if is_accepted else rerun.decision,
        detail={"rerun_id": rerun.rerun_id, "reason": rerun.reason.value, "rule": rerun.rule},
    )


def _writes(also: Also, rerun: Rerun, log: RunLog | None) -> Sequence[Write]:
    return also(rerun, log) if callable(also) else also


def _raise_unless_raced(exc: ConflictError, slot: Slot, lock_token: str, own_count: int) -> None:
    """Raise what a retry does not fix: a lost lock, or a refused write of the caller."""
    # The main row comes first; the log and the lock check follow the copy and the entry.
    lock_place = 4
    if own_count > lock_place and lock_place in exc.failures:
        refusal = ConflictError(str(exc), current=exc.failures[lock_place], failures=exc.failures)
        raise lost(evaluation_key(slot), lock_token, refusal) from exc
    if min(exc.failures) >= own_count:
        raise exc
