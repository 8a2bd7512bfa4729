"""Run store: creates, moves and reads runs. A run, its copy and the log of its period change in one transaction.

Every change is a compare-and-swap on the version that was read. A lost race raises `VersionConflictError` with the
current row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import (
    AlreadyExistsError,
    ConflictError,
    IllegalTransitionError,
    NotFoundError,
    OutcomeUnknownError,
    VersionConflictError,
)
from headgate.ids import IdMaker
from headgate.pipelines.enums import TRANSITIONS, Cause, FailureCategory, RunStatus
from headgate.pipelines.runs import run_log
from headgate.pipelines.runs.admissions import Admission
from headgate.pipelines.runs.locks import evaluation_key, held, lost
from headgate.pipelines.runs.rows import (
    Run,
    RunLog,
    Slot,
    Transition,
    run_key,
    run_log_key,
    run_log_of,
    run_log_put,
    run_of,
    run_writes,
)
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort, Write
from headgate.store.port import Store

# Writes for the same transaction, or a function that makes them from the changed run and log.
Also = Sequence[Write] | Callable[[Run, RunLog], Sequence[Write]]

PREFIX: Final = "run"
_RACES_MAX: Final = 10
_RUNS: Final = "RUN#"
_LOGS: Final = "RUNLOG#"
# The timestamp field that a status sets.
_MOMENTS: Final = {
    RunStatus.TRIGGERING: "triggered_at_ms",
    RunStatus.RUNNING: "started_at_ms",
}


class RunStart(Struct, frozen=True, kw_only=True):
    """The parameters of a new run."""

    slot: Slot
    cause: Cause
    by: str = ""
    note: str = ""
    # Empty: a new id. An existing run of this id is returned.
    run_id: str = ""
    execution: str = ""
    # The token of the period's lock, which makes the start idempotent.
    lock_token: str = ""
    definition_version: int = 0
    sensor_arrival_at_ms: int | None = None
    rerun_id: str = ""
    backfill_id: str = ""
    is_dry_run: bool = False
    traceparent: str = ""


class RunPage(Struct, frozen=True):
    """A page of runs of a pipeline, latest first."""

    runs: list[Run]
    cursor: str | None = None


class RunLogPage(Struct, frozen=True):
    """A page of run logs of a pipeline, latest period first."""

    logs: list[RunLog]
    cursor: str | None = None


class Runs:
    """Stores runs and run logs. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    # Changes.

    def create(
        self, start: RunStart, *, admits: Callable[[RunLog | None], Admission] | None = None, also: Also = ()
    ) -> Run:
        """Create a run for a period, PENDING.

        The same lock token or run id creates one run, however often it is called; `also` is written with the first. A
        run that an expired lock left open ends with this. Raises `StaleClaimError` if the lock is lost,
        `AlreadyExistsError` without a lock while a run is open or for the id of another period's run,
        `IllegalTransitionError` if `admits` refuses the current log, and `ConflictError` if a write of `also` is
        refused.
        """
        run_id = start.run_id or self._ids.make(PREFIX)
        for _ in range(_RACES_MAX):
            log, last = self._last(start.slot)
            known = self._existing(start, run_id, last)
            if known is not None:
                return known
            _check_admitted(start, log, admits)
            now_ms = self._now_ms()
            run = _new(start, run_id, 1 if log is None else log.attempts + 1, now_ms)
            ended, before = _ended_by(run, last, log, now_ms)
            after = run_log.started(before, run, now_ms)
            own: list[Write] = [
                *([held(evaluation_key(start.slot), start.lock_token)] if start.lock_token else []),
                *run_writes(run),
                run_log_put(_once(after, log), replaces=_version(log)),
            ]
            if ended is not None:
                own += run_writes(ended, replaces=ended.version - 1)
            try:
                self._store.transact([*own, *_writes(also, run, after)])
            except OutcomeUnknownError:
                continue
            except ConflictError as exc:
                _raise_unless_raced(exc, start, len(own))
            else:
                return run
        raise ConflictError(f"{start.slot}: concurrent changes of its log keep winning; try again")

    def move(self, run: Run, to: RunStatus, *, lock_token: str = "", also: Also = (), **changes: object) -> Run:
        """Move a run from the version that was read to another status, with further changes.

        With a `lock_token`, only while it holds the lock. Raises `IllegalTransitionError` for a transition that is not
        allowed, `VersionConflictError` with the current row after a concurrent change, `StaleClaimError` if the lock is
        lost, and `ConflictError` if a write of `also` is refused.
        """
        if to not in TRANSITIONS[run.status]:
            allowed = ", ".join(sorted(TRANSITIONS[run.status])) or "nothing"
            raise IllegalTransitionError(
                f"run {run.run_id}: {run.status} cannot become {to}, only {allowed}",
                current=dict(run_writes(run)[0].item),
            )
        now_ms = self._now_ms()
        moved = _moved(run, to, now_ms, changes)
        return self._commit(run, moved, now_ms, lock_token, also)

    def change(self, run: Run, *, lock_token: str = "", also: Also = (), **changes: object) -> Run:
        """Change fields and keep the status. Raises as `move` does."""
        now_ms = self._now_ms()
        changed = replace(run, **changes, status=run.status, version=run.version + 1, updated_at_ms=now_ms)
        return self._commit(run, changed, now_ms, lock_token, also)

    def recover(self, run: Run, *, refuses: Callable[[RunLog], str], also: Also = (), **changes: object) -> Run:
        """Complete a failed run whose job has succeeded after a repair.

        `refuses` returns why the current log of the period does not allow it, or nothing. Raises
        `IllegalTransitionError` with that reason, `VersionConflictError` after a concurrent change of the run,
        `NotFoundError` without a log, and `ConflictError` if a write of `also` is refused.
        """
        for _ in range(_RACES_MAX):
            log = self.log(run.slot)
            if log is None:
                raise NotFoundError(f"run {run.run_id}: its period {run.slot} has no log; restore the row, or rerun it")
            if refusal := refuses(log):
                raise IllegalTransitionError(f"run {run.run_id}: its job was repaired, but {refusal}")
            now_ms = self._now_ms()
            fields = {**changes, "ended_at_ms": now_ms}
            moved = _moved(run, RunStatus.COMPLETED, now_ms, fields)
            after = run_log.recovered(log, moved, now_ms)
            own: list[Write] = [*run_writes(moved, replaces=run.version), run_log_put(after, replaces=log.version)]
            try:
                self._store.transact([*own, *_writes(also, moved, after)])
            except OutcomeUnknownError:
                raise
            except ConflictError as exc:
                if 0 in exc.failures:
                    raise _changed_since(run, exc) from exc
                if 2 not in exc.failures:
                    raise
            else:
                return moved
        raise ConflictError(f"run {run.run_id}: concurrent changes of the log of {run.slot} keep winning; try again")

    def close(self, slot: Slot, reason: str, *, by: str = "", also: Sequence[Write] = ()) -> RunLog | None:
        """Close a period that has not started: it has failed, and only a request starts it.

        Returns None if it has started or is closed; then `also` is not written.
        """
        for _ in range(_RACES_MAX):
            log = self.log(slot)
            if log is not None and (log.attempts or log.status.is_terminal):
                return None
            now_ms = self._now_ms()
            closed = replace(
                log or run_log.opened(slot, now_ms),
                status=RunStatus.FAILED,
                reason=reason,
                by=by,
                updated_at_ms=now_ms,
                ended_at_ms=now_ms,
            )
            try:
                self._store.transact([run_log_put(_once(closed, log), replaces=_version(log)), *also])
            except ConflictError as exc:
                if 0 not in exc.failures:
                    raise
            else:
                return _once(closed, log)
        raise ConflictError(f"{slot}: concurrent changes of its log keep winning; try again")

    # Reads.

    def get(self, run_id: str) -> Run:
        """Return a run. Raises `NotFoundError`."""
        run = self.find(run_id)
        if run is None:
            raise NotFoundError(f"run {run_id}: there is none; 'headgate run ls PIPELINE' lists those of a pipeline")
        return run

    def find(self, run_id: str) -> Run | None:
        """Return a run, or None."""
        item = self._store.get(PIPELINES, run_key(run_id), consistent=True)
        return None if item is None else run_of(item)

    def ls(self, pipeline_id: str, *, limit: int = 100, cursor: str | None = None) -> RunPage:
        """Return the runs of a pipeline, latest first."""
        page = self._store.query(_listing(pipeline_id, _RUNS, limit, cursor))
        return RunPage([run_of(item) for item in page.items], page.cursor)

    def log(self, slot: Slot) -> RunLog | None:
        """Return the log of a period, or None if it has none."""
        item = self._store.get(PIPELINES, run_log_key(slot), consistent=True)
        return None if item is None else run_log_of(item)

    def logs(self, pipeline_id: str, *, dates: str = "", limit: int = 100, cursor: str | None = None) -> RunLogPage:
        """Return the run logs of a pipeline, latest period first: all, or those whose date begins with `dates`."""
        page = self._store.query(_listing(pipeline_id, f"{_LOGS}{dates}", limit, cursor))
        return RunLogPage([run_log_of(item) for item in page.items], page.cursor)

    # Helpers.

    def _commit(self, run: Run, changed: Run, now_ms: int, lock_token: str, also: Also) -> Run:
        """Write a changed run with its log. The log may change concurrently; the run may not."""
        guard: list[Write] = [held(evaluation_key(run.slot), lock_token)] if lock_token else []
        for _ in range(_RACES_MAX):
            log = self.log(run.slot)
            if log is None:
                raise NotFoundError(f"run {run.run_id}: its period {run.slot} has no log; restore the row, or rerun it")
            after = run_log.updated(log, changed, now_ms)
            own: list[Write] = [
                *run_writes(changed, replaces=run.version),
                run_log_put(after, replaces=log.version),
                *guard,
            ]
            try:
                self._store.transact([*own, *_writes(also, changed, after)])
            except OutcomeUnknownError:
                raise
            except ConflictError as exc:
                if 0 in exc.failures:
                    raise _changed_since(run, exc) from exc
                if guard and 3 in exc.failures:
                    raise lost(
                        evaluation_key(run.slot),
                        lock_token,
                        ConflictError(str(exc), current=exc.failures[3], write_index=3, failures=exc.failures),
                    ) from exc
                if 2 not in exc.failures:
                    raise
            else:
                return changed
        raise ConflictError(f"run {run.run_id}: concurrent changes of the log of {run.slot} keep winning; try again")

    def _last(self, slot: Slot) -> tuple[RunLog | None, Run | None]:
        log = self.log(slot)
        return log, None if log is None or not log.run_id else self.find(log.run_id)

    def _existing(self, start: RunStart, run_id: str, last: Run | None) -> Run | None:
        """Return the run that this start has already created."""
        if last is not None:
            if last.run_id == run_id or (start.lock_token and last.lock_token == start.lock_token):
                return last
            if not start.lock_token and not last.status.is_terminal:
                raise AlreadyExistsError(
                    f"{start.slot}: run {last.run_id} is {last.status}; take the lock of the period, or let it end"
                )
        run = self.find(start.run_id) if start.run_id else None
        if run is not None and run.slot != start.slot:
            raise AlreadyExistsError(f"run {run.run_id}: it is of {run.slot}, not {start.slot}; use another id")
        return run

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _new(start: RunStart, run_id: str, attempt: int, now_ms: int) -> Run:
    return Run(
        **start.slot._asdict(),
        run_id=run_id,
        status=RunStatus.PENDING,
        version=1,
        attempt=attempt,
        cause=start.cause,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        by=start.by,
        note=start.note,
        definition_version=start.definition_version,
        execution=start.execution,
        lock_token=start.lock_token,
        sensor_arrival_at_ms=start.sensor_arrival_at_ms,
        rerun_id=start.rerun_id,
        backfill_id=start.backfill_id,
        is_dry_run=start.is_dry_run,
        traceparent=start.traceparent,
        transitions=(Transition(RunStatus.PENDING, now_ms),),
    )


def _check_admitted(start: RunStart, log: RunLog | None, admits: Callable[[RunLog | None], Admission] | None) -> None:
    # Checked again here: the period may have been closed or skipped since the admission.
    admission = None if admits is None else admits(log)
    if admission is not None and not admission.proceeds:
        raise IllegalTransitionError(f"{start.slot}: no run is created, {admission.reason}")


def _moved(run: Run, to: RunStatus, now_ms: int, changes: dict[str, object]) -> Run:
    moments: dict[str, object] = {_MOMENTS[to]: now_ms} if to in _MOMENTS else {}
    since_ms = now_ms
    began_ms = changes.get("started_at_ms")
    if to is RunStatus.RUNNING and isinstance(began_ms, int):
        # The job began before this was known, but not before the run asked for it.
        since_ms = max(began_ms, run.triggered_at_ms or run.created_at_ms)
    if run.ended_at_ms is None and (to.is_terminal or to.is_done):
        moments["ended_at_ms"] = now_ms
    return replace(
        run,
        **{**moments, **changes},
        status=to,
        version=run.version + 1,
        updated_at_ms=now_ms,
        transitions=(*run.transitions, Transition(to, since_ms)),
    )


def _ended_by(run: Run, last: Run | None, log: RunLog | None, now_ms: int) -> tuple[Run | None, RunLog | None]:
    """Return the open run that the new one replaces, ended, and the log after that."""
    if last is None or log is None or last.status.is_terminal:
        return None, log
    if last.status.is_done:
        ended = _moved(last, RunStatus.COMPLETED, now_ms, {})
    else:
        reason = f"left open when its lock ran out; run {run.run_id} follows it"
        ended = _moved(last, RunStatus.FAILED, now_ms, {"category": FailureCategory.TIMEOUT, "reason": reason})
    return ended, run_log.updated(log, ended, now_ms)


def _once(after: RunLog, log: RunLog | None) -> RunLog:
    """Return the log at the version after the stored one, for a log that changed twice in one transaction."""
    return replace(after, version=1 if log is None else log.version + 1)


def _writes(also: Also, run: Run, log: RunLog) -> Sequence[Write]:
    return also(run, log) if callable(also) else also


def _version(log: RunLog | None) -> int | None:
    return None if log is None else log.version


def _raise_unless_raced(exc: ConflictError, start: RunStart, own_count: int) -> None:
    """Raise what a retry does not fix: a lost lock, or a refused write of the caller."""
    if start.lock_token and 0 in exc.failures:
        raise lost(evaluation_key(start.slot), start.lock_token, exc) from exc
    if min(exc.failures) >= own_count:
        raise exc


def _changed_since(run: Run, exc: ConflictError) -> VersionConflictError:
    current = exc.failures[0]
    now = "it is gone" if current is None else f"it is {current['status']} at version {current['version']}"
    return VersionConflictError(
        f"run {run.run_id}: changed since version {run.version} was read, {now}; read it again",
        current=current,
        failures=exc.failures,
    )


def _listing(pipeline_id: str, prefix: str, limit: int, cursor: str | None) -> Query:
    return Query(
        table=PIPELINES,
        partition=f"PIPELINE#{pipeline_id}",
        sort=Sort(Range.BEGINS_WITH, prefix),
        limit=limit,
        cursor=cursor,
        descending=True,
    )
