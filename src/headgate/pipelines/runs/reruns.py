"""Reruns: asked for once, judged with the lock in hand, charged to a budget, and kept in a ledger.

Asking changes nothing but the request. Only `judge` with a hold on the period's lock accepts: acceptance, the charge to
the budget, which is part of the log of the period, and the check of the lock are one transaction. So a lock that was
not won costs nothing, two that ask at once are charged twice or one is refused, and what is told twice is done once.

Taking a request away is not asking: no function here begins anything because a row has gone.
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
    """Some reruns, those that were asked for last first."""

    reruns: list[Rerun]
    cursor: str | None = None


class RerunJudgement(Struct, frozen=True):
    """What became of a rerun when it was judged. `proceeds`: who judged it is to begin its run."""

    rerun: Rerun
    proceeds: bool
    reason: str


class Reruns:
    """The reruns of one store. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    # Asking.

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
        """Ask for a period to be done again, and return what waits to be judged.

        A period has one request that waits: who asks meanwhile gets that one, and `also` is not written. Raises
        `ConflictError` if `also` is refused.
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
                self._store.transact([request, *rerun_writes(rerun), *_made(also, rerun, None)])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
            else:
                return rerun
        raise ConflictError(f"{slot}: its rerun request keeps changing; try again")

    def adopt(self, slot: Slot, item: Mapping[str, Any], *, also: Also = ()) -> Rerun:
        """Return the rerun that a request row stands for, and note it if it was put there by others.

        The same row, however often it is told of, is one rerun. `also` is written when it is noted. Only for a row that
        is there: one that was deleted asks for nothing.
        """
        rerun_id = foreign_rerun_id(item)
        found = self.find(rerun_id)
        if found is not None:
            return found
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
            self._store.transact([*rerun_writes(rerun), *_made(also, rerun, None)])
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            return self.get(rerun_id)
        return rerun

    def pending(self, slot: Slot) -> Rerun | None:
        """Return the request of a period that waits to be judged, for whoever has just let go of its lock."""
        row = self._store.get(PIPELINES, request_key(slot), consistent=True)
        return None if row is None else self._waiting(row)

    # Judging.

    def judge(
        self, rerun_id: str, situation: Situation, *, execution: str = "", lock_token: str = "", also: Also = ()
    ) -> RerunJudgement:
        """Decide about a rerun, and accept or reject it.

        Without a hold on the lock it can only be rejected: what would be accepted is left for who has one. It is
        accepted by one execution, which may ask again; to any other it is taken, and does not proceed. `also` gets the
        rerun and the log as they will stand. Raises `NotFoundError`, `StaleClaimError` if the lock is lost, and
        `ConflictError` if `also` is refused.
        """
        if lock_token:
            # Whoever left a run open there no longer has the lock.
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
                self._store.transact([*writes, *_made(also, judged, after)])
            except OutcomeUnknownError:
                continue
            except ConflictError as exc:
                _raise_unless_raced(exc, rerun.slot, lock_token, len(writes))
            else:
                return RerunJudgement(judged, proceeds=decision.is_accepted, reason=decision.reason)
        raise ConflictError(f"rerun {rerun_id}: its period keeps changing; try again")

    def ending_writes(self, rerun: Rerun, *, run_id: str, is_success: bool) -> list[Write]:
        """Return the writes that end an accepted rerun, for the transaction in which its run ends.

        They are refused if the rerun was changed since it was read. There are none if it has ended.
        """
        if rerun.status is not RerunStatus.ACCEPTED:
            return []
        status = RerunStatus.COMPLETED if is_success else RerunStatus.FAILED
        ended = replace(rerun, status=status, version=rerun.version + 1, run_id=run_id, ended_at_ms=self._now_ms())
        return [*rerun_writes(ended, replaces=rerun.version)]

    # Reading.

    def get(self, rerun_id: str) -> Rerun:
        """Return the rerun as it stands. Raises `NotFoundError`."""
        found = self.find(rerun_id)
        if found is None:
            raise NotFoundError(f"rerun {rerun_id}: there is none; list those of the pipeline to find its id")
        return found

    def find(self, rerun_id: str) -> Rerun | None:
        """Return the rerun as it stands, or None."""
        item = self._store.get(PIPELINES, rerun_key(rerun_id), consistent=True)
        return None if item is None else rerun_of(item)

    def ls(self, pipeline_id: str | None = None, *, limit: int = 100, cursor: str | None = None) -> RerunPage:
        """Return the ledger of a pipeline, or of all, by id from the latest on."""
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

    # How.

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
    """Return what a rerun that was judged before means to an execution that asks."""
    if rerun.status is RerunStatus.ACCEPTED and execution and rerun.execution == execution:
        return RerunJudgement(rerun, proceeds=True, reason=rerun.decision)
    if rerun.status is RerunStatus.REJECTED:
        return RerunJudgement(rerun, proceeds=False, reason=rerun.decision)
    return RerunJudgement(rerun, proceeds=False, reason=f"{rerun.execution or 'another'} has taken it")


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
    """Return the log of the period once the rerun is charged to it."""
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


def _made(also: Also, rerun: Rerun, log: RunLog | None) -> Sequence[Write]:
    return also(rerun, log) if callable(also) else also


def _raise_unless_raced(exc: ConflictError, slot: Slot, lock_token: str, own_count: int) -> None:
    """Raise what trying again does not mend: a lost lock, or a refusal of what the caller added."""
    # The truth is first, the log and the lock come after the copy and the entry.
    lock_place = 4
    if own_count > lock_place and lock_place in exc.failures:
        refusal = ConflictError(str(exc), current=exc.failures[lock_place], failures=exc.failures)
        raise lost(evaluation_key(slot), lock_token, refusal) from exc
    if min(exc.failures) >= own_count:
        raise exc
