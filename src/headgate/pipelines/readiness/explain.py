"""Explanations: why a period has not run, or how it ended, as a sentence and a tree, from stored state only."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from headgate.clock import Clock
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState, JobEvent, RunStatus, Severity, Verdict
from headgate.pipelines.readiness.evaluation_log import Evaluations, StoredEvaluation
from headgate.pipelines.rules.readiness import Blocker, ReadinessResult
from headgate.pipelines.rules.rules import ANY, RuleResult
from headgate.pipelines.runs.controls import Control, Controls
from headgate.pipelines.runs.locks import Lock, Locks, evaluation_key
from headgate.pipelines.runs.pools import PoolWait, waiting_text
from headgate.pipelines.runs.rerun_rows import Rerun, RerunStatus
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Order, Run, RunLog, Slot, run_key, run_log_key, run_log_of, run_of
from headgate.pipelines.schedule.due_checks import Due
from headgate.pipelines.schedule.local_time import zone_of
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.port import Store

_NAMED_MAX: Final = 2


class PeriodState(enum.StrEnum):
    """The state of a period as shown to operators."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    PAUSED = "paused"
    TRIPPED = "tripped"
    HELD = "held"
    EXCLUDED = "excluded"
    NOT_DUE = "not-due"
    AWAITING = "awaiting"
    ERROR = "error"
    WAITING = "waiting"
    READY = "ready"
    # Ready, and waiting for slots of a pool.
    QUEUED = "queued"
    LOCKED = "locked"
    UNASKED = "unasked"


class PeriodSnapshot(Struct, frozen=True, kw_only=True):
    """All stored state about one period of a pipeline."""

    pipeline: Pipeline
    slot: Slot
    now: datetime
    log: RunLog | None = None
    control: Control | None = None
    lock: Lock | None = None
    evaluation: StoredEvaluation | None = None
    # The last rerun that was requested.
    rerun: Rerun | None = None
    due: Due = Due()
    pool_wait: PoolWait | None = None


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the tree: label, status and reason."""

    label: str
    status: str
    reason: str = ""
    children: tuple[Line, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    """The state of a period, the reason in one sentence, and the details as a tree."""

    state: PeriodState
    sentence: str
    tree: Line


_StateSentence = tuple[PeriodState, str]


def why(snapshot: PeriodSnapshot) -> Explanation:
    """Explain the state of a period: the first of the ordered checks that applies gives the reason."""
    state, reason = next(result for result in (check(snapshot) for check in _CHECKS) if result is not None)
    reason = f"{_earlier_success(snapshot, reason)}{_rejected_rerun(snapshot)}"
    slot = snapshot.slot
    subject = f"{slot.pipeline_id} of {slot.date}"
    tree = Line(label=subject, status=state.value, reason=reason, children=tuple(_branches(snapshot)))
    return Explanation(state=state, sentence=f"{subject} {reason}", tree=tree)


class Explainer:
    """Reads the stored state of a period, and explains it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        evaluations: Evaluations,
        controls: Controls,
        locks: Locks,
        reruns: Reruns,
        pool_wait: Callable[[Run, Pipeline], PoolWait | None] = lambda _run, _pipeline: None,
    ) -> None:
        """`pool_wait` returns the pool that a run waits for."""
        self._store = store
        self._clock = clock
        self._evaluations = evaluations
        self._controls = controls
        self._locks = locks
        self._pool_wait = pool_wait
        self._reruns = reruns

    def why(self, pipeline: Pipeline, slot: Slot, due: Due) -> Explanation:
        """Explain the state of a period. `due` is the result of its calendars and schedules."""
        item = self._store.get(PIPELINES, run_log_key(slot), consistent=True)
        log = None if item is None else run_log_of(item)
        return why(
            PeriodSnapshot(
                pipeline=pipeline,
                slot=slot,
                now=self._clock.now(),
                log=log,
                control=self._controls.get(slot.pipeline_id),
                lock=self._locks.find(evaluation_key(slot)),
                evaluation=self._evaluations.latest(slot),
                rerun=self._reruns.latest(slot),
                due=due,
                pool_wait=self._waits_for(pipeline, log),
            )
        )

    def _waits_for(self, pipeline: Pipeline, log: RunLog | None) -> PoolWait | None:
        if log is None or not log.run_id or log.status is not RunStatus.PENDING:
            return None
        item = self._store.get(PIPELINES, run_key(log.run_id), consistent=True)
        return None if item is None else self._pool_wait(run_of(item), pipeline)


def as_text(line: Line, *, indent: str = "") -> str:
    """Format a tree as indented lines."""
    reason = f": {line.reason}" if line.reason else ""
    below = "".join(f"\n{as_text(child, indent=indent + '  ')}" for child in line.children)
    return f"{indent}[{line.status}] {line.label}{reason}{below}"


# The checks, in order of precedence.


def _over(snapshot: PeriodSnapshot) -> _StateSentence | None:
    log = snapshot.log
    if log is None:
        return None
    at = _local_time(snapshot, log.ended_at_ms or log.updated_at_ms)
    if log.status.is_done:
        by = f"by {log.succeeded_run_id}" if log.succeeded_run_id else f"as marked by {_author(log)}"
        by += f" after a repair of its job; it had failed: {log.recovered_from}" if log.recovered_from else ""
        monitored = ", and is monitored for changes" if log.status is RunStatus.COMPLETED_MONITORING else ""
        return PeriodState.DONE, f"is done since {at}, {by}{monitored}"
    if log.order is not None and log.order.order is Order.SKIP:
        return (
            PeriodState.SKIPPED,
            f"was skipped by {log.order.by} at {_local_time(snapshot, log.order.at_ms)}: {log.order.reason}",
        )
    if log.status is RunStatus.CANCELLED:
        return PeriodState.CANCELLED, f"was cancelled at {at}{_because(log)}"
    if log.status is RunStatus.FAILED:
        return _failed(snapshot, log, at)
    if log.status in (RunStatus.TRIGGERING, RunStatus.RUNNING):
        since = _local_time(snapshot, log.begun_at_ms or log.updated_at_ms)
        return (
            PeriodState.RUNNING,
            f"is {log.status.value.lower()} since {since}, attempt {log.attempts} ({log.run_id})",
        )
    return None


def _failed(snapshot: PeriodSnapshot, log: RunLog, at: str) -> _StateSentence:
    if log.event is JobEvent.VALIDATION_EXHAUSTED:
        evaluation = snapshot.evaluation
        rest = f": {_rules_hold(evaluation)}{_not_holding(snapshot, evaluation)}" if evaluation is not None else ""
        return PeriodState.EXHAUSTED, f"never became ready before its window closed at {at}{rest}"
    kind = f" ({log.category.value})" if log.category is not None else ""
    # A period that never started has no attempt.
    attempt = f", attempt {log.attempts}" if log.attempts else ""
    return PeriodState.FAILED, f"failed at {at}{attempt}{kind}{_because(log)}"


def _controlled(snapshot: PeriodSnapshot) -> _StateSentence | None:
    control = snapshot.control
    state = ControlState.ACTIVE if control is None else control.state_at(_now_ms(snapshot))
    if control is None or state is ControlState.ACTIVE:
        return None
    since = _local_time(snapshot, control.since_ms)
    if state is ControlState.TRIPPED:
        return PeriodState.TRIPPED, (
            f"has not started: {control.failures_in_a_row} failures in a row stopped the pipeline at {since}; "
            "resume it when the cause is fixed"
        )
    until = f" until {_local_time(snapshot, control.until_ms)}" if control.until_ms is not None else ""
    return PeriodState.PAUSED, (
        f"has not started: {control.by} paused the pipeline at {since}{until}: {control.reason}"
    )


def _held(snapshot: PeriodSnapshot) -> _StateSentence | None:
    hold = snapshot.log.hold if snapshot.log is not None else None
    if hold is None:
        return None
    at = _local_time(snapshot, hold.at_ms)
    return PeriodState.HELD, f"has not started: {hold.by} holds it since {at} until someone approves it: {hold.reason}"


def _excluded(snapshot: PeriodSnapshot) -> _StateSentence | None:
    if not snapshot.due.excluded:
        return None
    return PeriodState.EXCLUDED, f"has not started and will not: the calendar leaves it out, {snapshot.due.excluded}"


def _evaluated(snapshot: PeriodSnapshot) -> _StateSentence | None:
    stored = snapshot.evaluation
    # An evaluation before the lock was taken belongs to an earlier attempt.
    if stored is None or (snapshot.lock is not None and snapshot.lock.acquired_at_ms > stored.at_ms):
        return None
    verdict = stored.verdict
    if verdict.result is ReadinessResult.PROCEED:
        if snapshot.pool_wait is not None:
            since = _local_time(snapshot, snapshot.pool_wait.queued_at_ms)
            return PeriodState.QUEUED, f"is ready and waits since {since}: {waiting_text(snapshot.pool_wait)}"
        at = _local_time(snapshot, stored.at_ms)
        return PeriodState.READY, f"is ready since {at} and about to start: {verdict.reason.removeprefix('ready: ')}"
    closes_at_ms = stored.window_closes_at_ms
    if closes_at_ms is not None and closes_at_ms <= _now_ms(snapshot):
        closed = _local_time(snapshot, closes_at_ms)
        reason = (
            f"has not started and its window closed at {closed}: {_rules_hold(stored)}{_not_holding(snapshot, stored)}"
        )
        return PeriodState.EXHAUSTED, reason
    if verdict.result is ReadinessResult.ERROR:
        return PeriodState.ERROR, f"has not started: {verdict.reason}{_what_next(snapshot, stored)}"
    return PeriodState.WAITING, (
        f"has not started: {_rules_hold(stored)}{_not_holding(snapshot, stored)}{_what_next(snapshot, stored)}"
    )


def _locked(snapshot: PeriodSnapshot) -> _StateSentence | None:
    if snapshot.lock is None or snapshot.lock.expires_at * 1000 <= _now_ms(snapshot):
        return None
    since = _local_time(snapshot, snapshot.lock.acquired_at_ms)
    until = _local_time(snapshot, snapshot.lock.expires_at * 1000)
    return PeriodState.LOCKED, (
        f"has not started: {snapshot.lock.owner} holds its lock since {since} and has evaluated nothing yet; "
        f"the lock expires at {until}"
    )


def _due(snapshot: PeriodSnapshot) -> _StateSentence | None:
    due = snapshot.due
    if due.unscheduled:
        return PeriodState.NOT_DUE, f"has not started: {due.unscheduled}"
    if due.due_at_ms is not None and due.due_at_ms > _now_ms(snapshot):
        by = f" ({due.schedule})" if due.schedule else ""
        return PeriodState.NOT_DUE, f"has not started: it is not due before {_local_time(snapshot, due.due_at_ms)}{by}"
    if due.awaited:
        return PeriodState.AWAITING, f"has not started: it waits for {due.awaited}"
    return None


def _unasked(snapshot: PeriodSnapshot) -> _StateSentence:
    due = snapshot.due
    if due.due_at_ms is not None:
        by = f" ({due.schedule})" if due.schedule else ""
        return PeriodState.UNASKED, (
            f"has not started though it was due at {_local_time(snapshot, due.due_at_ms)}{by}: "
            "nothing was evaluated, and its lock is free; is the engine running?"
        )
    return PeriodState.UNASKED, "has not started: no start was requested, and no schedule names it"


_CHECKS: Final[Sequence[Callable[[PeriodSnapshot], _StateSentence | None]]] = (
    _over, _controlled, _held, _excluded, _evaluated, _locked, _due, _unasked,
)  # fmt: skip


# Texts.


def _earlier_success(snapshot: PeriodSnapshot, reason: str) -> str:
    """Return a reason that also says that the period was done before: then a rerun of it waits or has failed."""
    log = snapshot.log
    if log is None or log.status.is_done or log.succeeded_at_ms is None:
        return reason
    by = f"by {log.succeeded_run_id}" if log.succeeded_run_id else "as marked"
    rerun = f"its rerun {log.rerun_id}" if log.rerun_id else "its rerun"
    kind = f" ({snapshot.rerun.reason.value})" if snapshot.rerun and snapshot.rerun.rerun_id == log.rerun_id else ""
    # The checks speak of the period; here the rerun is what has not started, runs or has failed.
    return f"was done at {_local_time(snapshot, log.succeeded_at_ms)}, {by}; {rerun}{kind} {reason}"


def _rejected_rerun(snapshot: PeriodSnapshot) -> str:
    """Return that the last rerun request was rejected; empty if it was not, or a run has started since."""
    rerun, log = snapshot.rerun, snapshot.log
    if rerun is None or rerun.status is not RerunStatus.REJECTED:
        return ""
    decided_ms = rerun.decided_at_ms or rerun.requested_at_ms
    if log is not None and (log.begun_at_ms or 0) > decided_ms:
        return ""
    by = f" of {rerun.by}" if rerun.by else ""
    return f"; rerun {rerun.rerun_id}{by} was rejected at {_local_time(snapshot, decided_ms)}: {rerun.decision}"


def _rules_hold(stored: StoredEvaluation) -> str:
    counted = stored.evaluation.counted
    if not counted:
        return "it has no rules"
    needed = ", one is needed" if stored.evaluation.mode == ANY else ""
    return f"{stored.evaluation.passed_count} of {len(counted)} rules hold{needed}"


def _not_holding(snapshot: PeriodSnapshot, stored: StoredEvaluation) -> str:
    blocking = stored.verdict.blocking
    named = [_blocker(snapshot, blocker) for blocker in blocking[:_NAMED_MAX]]
    more = [f"{len(blocking) - _NAMED_MAX} more"] if len(blocking) > _NAMED_MAX else []
    return "".join(f"; {each}" for each in [*named, *more])


def _blocker(snapshot: PeriodSnapshot, blocker: Blocker) -> str:
    if not blocker.since_ms:
        return blocker.reason
    return f"{blocker.reason} since {_local_time(snapshot, blocker.since_ms)}"


def _what_next(snapshot: PeriodSnapshot, stored: StoredEvaluation) -> str:
    steps = []
    if stored.next_at_ms is not None:
        steps.append(f"next evaluation at {_local_time(snapshot, stored.next_at_ms)}")
    if stored.window_closes_at_ms is not None:
        steps.append(f"the window closes at {_local_time(snapshot, stored.window_closes_at_ms)}")
    return f"; {', '.join(steps)}" if steps else ""


def _because(log: RunLog) -> str:
    return f": {log.reason}" if log.reason else ""


def _author(log: RunLog) -> str:
    return (log.order.by if log.order is not None else log.by) or "someone"


def _now_ms(snapshot: PeriodSnapshot) -> int:
    return int(snapshot.now.timestamp() * 1000)


def _local_time(snapshot: PeriodSnapshot, ms: int) -> str:
    """Return local time in the pipeline's time zone, with the zone, and with the date unless it is today."""
    zone: ZoneInfo = zone_of(snapshot.pipeline.timezone)
    moment = datetime.fromtimestamp(ms / 1000, UTC).astimezone(zone)
    is_today = moment.date() == snapshot.now.astimezone(zone).date()
    return f"{moment:%H:%M %Z}" if is_today else f"{moment:%Y-%m-%d %H:%M %Z}"


# The tree.


def _branches(snapshot: PeriodSnapshot) -> list[Line]:
    branches = [_due_line(snapshot)]
    control = snapshot.control
    if control is not None and control.state_at(_now_ms(snapshot)) is not ControlState.ACTIVE:
        branches.append(Line(label="control", status=control.state.value, reason=control.reason))
    if snapshot.lock is not None:
        until = _local_time(snapshot, snapshot.lock.expires_at * 1000)
        branches.append(Line(label="lock", status="TAKEN", reason=f"by {snapshot.lock.owner} until {until}"))
    if snapshot.pool_wait is not None:
        branches.append(_pool_line(snapshot, snapshot.pool_wait))
    if snapshot.evaluation is not None:
        branches.append(_evaluation_line(snapshot, snapshot.evaluation))
    if snapshot.log is not None and snapshot.log.attempts:
        branches.append(_attempts_line(snapshot, snapshot.log))
    if snapshot.rerun is not None:
        branches.append(_rerun_line(snapshot, snapshot.rerun))
    return branches


def _due_line(snapshot: PeriodSnapshot) -> Line:
    due = snapshot.due
    if due.excluded:
        return Line(label="calendar", status="EXCLUDED", reason=due.excluded)
    if due.due_at_ms is not None:
        status = "DUE" if due.due_at_ms <= _now_ms(snapshot) else "NOT_DUE"
        reason = _local_time(snapshot, due.due_at_ms) + (f" ({due.schedule})" if due.schedule else "")
        return Line(label="due", status=status, reason=reason)
    if due.unscheduled:
        return Line(label="due", status="NOT_DUE", reason=due.unscheduled)
    return Line(label="due", status="AWAITING" if due.awaited else "UNSCHEDULED", reason=due.awaited)


def _pool_line(snapshot: PeriodSnapshot, wait: PoolWait) -> Line:
    holders = tuple(
        Line(
            label=f"{lease.pipeline_id} of {lease.date} ({lease.run_id})",
            status="HOLDS" if lease.is_claimed else "OFFERED",
            reason=f"{lease.slots} slots since {_local_time(snapshot, lease.granted_at_ms)}",
        )
        for lease in wait.pool.leases
    )
    return Line(label=f"pool {wait.need.pool}", status="FULL", reason=waiting_text(wait), children=holders)


def _evaluation_line(snapshot: PeriodSnapshot, stored: StoredEvaluation) -> Line:
    rules = tuple(_rule_line(snapshot, result) for result in stored.evaluation.results)
    required = snapshot.pipeline.readiness.traits
    traits = tuple(
        Line(
            label=f"trait {name}",
            status=stored.traits[name].status.value if name in stored.traits else "MISSING",
            reason=stored.traits[name].reason if name in stored.traits else "no result",
        )
        for name in sorted(required)
    )
    at = _local_time(snapshot, stored.at_ms)
    reason = f"{_rules_hold(stored)} at {at}{_what_next(snapshot, stored)}"
    return Line(
        label=f"evaluation {stored.evaluation_id}",
        status=stored.verdict.result.value,
        reason=reason,
        children=rules + traits,
    )


def _rule_line(snapshot: PeriodSnapshot, result: RuleResult) -> Line:
    warns = " (warns only)" if result.severity is Severity.WARN else ""
    since = f", since {_local_time(snapshot, result.since_ms)}" if result.verdict is not Verdict.PASS else ""
    return Line(
        label=f"{result.name}{warns}",
        status=result.verdict.value,
        # The reason of a dataset begins with its name, which is the label already.
        reason=f"{result.reason.removeprefix(f'{result.name}: ')}{since}",
        children=tuple(_rule_line(snapshot, child) for child in result.children),
    )


def _rerun_line(snapshot: PeriodSnapshot, rerun: Rerun) -> Line:
    asked = f"{rerun.reason.value}, requested by {rerun.by or 'someone'} at"
    reason = f"{asked} {_local_time(snapshot, rerun.requested_at_ms)}"
    decision = f": {rerun.decision}" if rerun.decision else ""
    return Line(label=f"rerun {rerun.rerun_id}", status=rerun.status.value, reason=f"{reason}{decision}")


def _attempts_line(snapshot: PeriodSnapshot, log: RunLog) -> Line:
    lines = tuple(
        Line(
            label=f"attempt {attempt.number} ({attempt.run_id})",
            status=attempt.status.value,
            reason=f"{attempt.cause.value}, begun at {_local_time(snapshot, attempt.begun_at_ms)}"
            + (f": {attempt.reason}" if attempt.reason else "")
            + (f"; its job was repaired, it had failed: {attempt.recovered_from}" if attempt.recovered_from else ""),
        )
        for attempt in log.history
    )
    return Line(label="attempts", status=log.status.value, reason=f"{log.attempts} in all", children=lines)
