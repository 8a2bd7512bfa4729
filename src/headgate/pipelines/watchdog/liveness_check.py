"""The check of pursuits: runs that are stuck, executions that are gone, locks they left, watches that never end."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from headgate.asl.machines.executions import ExecutionStatus, MachineExecutions, execution_id_of
from headgate.errors import NotFoundError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.job_control import CHECK_SECONDS_MAX
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.runs.locks import Lock, evaluation_key
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.watchdog.followups import Watch, Watches
from headgate.pipelines.watchdog.period_facts import moment_of
from headgate.pipelines.watchdog.verdicts import iso

STUCK: Final = "stuck-runs"
GONE: Final = "stale-locks"
MONITORING: Final = "overdue-monitoring"
# Between two looks at the same period.
LOOK_MS_MIN: Final = 60_000


class Lifecycle(Struct, frozen=True, kw_only=True):
    """What the watchdog may do to runs. All of it is there, or there is no watchdog."""

    # Whether an execution of this name is under way. Raises `TransientError` if that cannot be told.
    is_open: Callable[[str], bool]
    # The functions of the lifecycle, by action and mode.
    orchestrate: Callable[[dict[str, Any]], Answer]
    # Has the job of a run end.
    end_job: Callable[[Call], None]


def open_in(executions: MachineExecutions, machine: str = MACHINE) -> Callable[[str], bool]:
    """Return what tells whether an execution of the lifecycle is under way, by its name."""

    def is_open(name: str) -> bool:
        try:
            found = executions.describe(execution_id_of(machine, name))
        except NotFoundError:
            return False
        return found.status is ExecutionStatus.RUNNING

    return is_open


class Finding(enum.Enum):
    """What is the matter with a period."""

    OVER = enum.auto()
    FINE = enum.auto()
    STUCK = enum.auto()
    # Whoever pursued it is gone and left its run open, or its lock behind.
    GONE = enum.auto()
    MONITORED_TOO_LONG = enum.auto()


class Pursuit(Struct, frozen=True, kw_only=True):
    """What is known of a period that someone pursues."""

    log: RunLog | None
    run: Run | None
    lock: Lock | None
    # Whether the execution of the run, or of the lock, is under way. None: nobody says which it is.
    is_open: bool | None
    evaluated_at_ms: int = 0


class PursuitDecision(Struct, frozen=True, kw_only=True):
    """What to do about it: `look_at_ms` is when to look again."""

    finding: Finding
    look_at_ms: int
    since_ms: int = 0


def decide_pursuit(pursuit: Pursuit, pipeline: Pipeline | None, now_ms: int, stuck_seconds: float) -> PursuitDecision:
    """Return what is the matter with a period. A run that does what its definition allows is never stuck."""
    stuck_ms = round(1000 * stuck_seconds)
    run, lock = pursuit.run, pursuit.lock
    is_live = pursuit.log is not None and pursuit.log.is_live and run is not None
    if run is not None and run.status is RunStatus.COMPLETED_MONITORING:
        return _monitored(run, now_ms, stuck_ms)
    if not is_live and lock is None:
        return PursuitDecision(finding=Finding.OVER, look_at_ms=now_ms)
    touched_ms = max(
        run.updated_at_ms if is_live and run is not None else 0,
        pursuit.evaluated_at_ms,
        0 if lock is None else lock.acquired_at_ms,
    )
    if pursuit.is_open is False and now_ms - touched_ms >= min(stuck_ms, _SETTLED_MS):
        return PursuitDecision(finding=Finding.GONE, look_at_ms=now_ms + LOOK_MS_MIN, since_ms=touched_ms)
    if not is_live or run is None or (pursuit.log is not None and pursuit.log.hold is not None):
        return PursuitDecision(finding=Finding.FINE, look_at_ms=now_ms + stuck_ms)
    stuck_at_ms = touched_ms + max(stuck_ms, _allowed_ms(run, pipeline))
    if now_ms >= stuck_at_ms:
        return PursuitDecision(finding=Finding.STUCK, look_at_ms=now_ms + stuck_ms, since_ms=touched_ms)
    look_at_ms = max(now_ms + LOOK_MS_MIN, min(stuck_at_ms, now_ms + stuck_ms))
    return PursuitDecision(finding=Finding.FINE, look_at_ms=look_at_ms)


def _monitored(run: Run, now_ms: int, stuck_ms: int) -> PursuitDecision:
    """A run that is watched after its success is done; the watch ends by itself, and otherwise here."""
    until_ms = run.monitor_until_ms if run.monitor_until_ms is not None else run.updated_at_ms
    ends_at_ms = until_ms + min(stuck_ms, _SETTLED_MS)
    finding = Finding.MONITORED_TOO_LONG if now_ms >= ends_at_ms else Finding.FINE
    return PursuitDecision(finding=finding, look_at_ms=max(ends_at_ms, now_ms + LOOK_MS_MIN), since_ms=until_ms)


def _allowed_ms(run: Run, pipeline: Pipeline | None) -> int:
    """Return for how long a run may stay as it is without anything being wrong."""
    if pipeline is None:
        return 0
    if run.status is RunStatus.RUNNING and pipeline.trigger is not None:
        # It is asked after until its window closes, and then ended: only after that it is stuck.
        return round(1000 * (pipeline.trigger.poll_window + CHECK_SECONDS_MAX))
    # An evaluation is a sign of life, and there is one in every interval.
    return round(2000 * pipeline.readiness.interval)


class PursuitCheck:
    """Looks after periods that are pursued."""

    def __init__(self, parts: Parts, watches: Watches, lifecycle: Lifecycle, stuck_seconds: float) -> None:
        self._parts = parts
        self._watches = watches
        self._lifecycle = lifecycle
        self._orchestrate = lifecycle.orchestrate
        self._stuck_seconds = stuck_seconds

    def look(self, watch: Watch, now_ms: int) -> str | None:
        """Look at a period, do what is to be done, and return the name of the check that found something."""
        slot = watch.slot
        pursuit = self._read(slot)
        run = pursuit.run
        pipeline = None if run is None else self._parts.pipeline_of(run)
        decision = decide_pursuit(pursuit, pipeline, now_ms, self._stuck_seconds)
        match decision.finding:
            case Finding.OVER:
                self._watches.drop(watch)
                return None
            case Finding.STUCK if run is not None:
                return STUCK if self._tell_stuck(watch, run, decision) else None
            case Finding.GONE:
                return GONE if self._end(watch, pursuit, decision) else None
            case Finding.MONITORED_TOO_LONG if run is not None:
                self._orchestrate({**_call(slot, run.run_id), "action": "checkMonitoringExpired"})
                self._watches.postpone(watch, now_ms + LOOK_MS_MIN)
                return MONITORING
        self._watches.postpone(watch, decision.look_at_ms)
        return None

    def _read(self, slot: Slot) -> Pursuit:
        parts = self._parts
        log = parts.runs.log(slot)
        run = parts.runs.find(log.run_id) if log is not None and log.run_id else None
        lock = parts.locks.find(evaluation_key(slot))
        is_live = log is not None and log.is_live
        names = {
            *([run.execution] if is_live and run is not None else []),
            *([lock.owner] if lock is not None else []),
        } - {""}
        is_pending = is_live and run is not None and run.status is RunStatus.PENDING
        evaluation = parts.evaluations.latest(slot) if is_pending else None
        return Pursuit(
            log=log,
            run=run,
            lock=lock,
            is_open=any(map(self._lifecycle.is_open, sorted(names))) if names else None,
            evaluated_at_ms=0 if evaluation is None else evaluation.at_ms,
        )

    def _tell_stuck(self, watch: Watch, run: Run, decision: PursuitDecision) -> bool:
        done = f"stuck:{run.run_id}:{run.status.value}"
        if watch.done == done:
            self._watches.postpone(watch, decision.look_at_ms)
            return False
        detail = {"run_id": run.run_id, "status": run.status.value, "since": iso(moment_of(decision.since_ms))}
        told = self._parts.tells(EventName.RUN_STUCK, run.slot, detail)
        return self._watches.postpone(watch, decision.look_at_ms, done=done, also=told)

    def _end(self, watch: Watch, pursuit: Pursuit, decision: PursuitDecision) -> bool:
        """End what an execution that is gone has left. Told first, done then, and again until nothing is left."""
        parts, run, lock = self._parts, pursuit.run, pursuit.lock
        is_live = pursuit.log is not None and pursuit.log.is_live
        left = run.run_id if is_live and run is not None else "" if lock is None else lock.token
        done = f"gone:{left}"
        is_news = watch.done != done
        detail = {
            "run_id": "" if run is None else run.run_id,
            "execution": lock.owner if lock is not None else "" if run is None else run.execution,
            "since": iso(moment_of(decision.since_ms)),
        }
        told = parts.tells(EventName.SFN_TIMEOUT, watch.slot, detail) if is_news else []
        if not self._watches.postpone(watch, decision.look_at_ms, done=done, also=told):
            return False
        if is_live and run is not None:
            self._end_run(run)
        if lock is not None:
            parts.locks.release_owned(lock.key, lock.owner)
        return is_news

    def _end_run(self, run: Run) -> None:
        """End a run that nobody follows. A job that is done is done, whoever asks; any other is asked to end."""
        call = _call(run.slot, run.run_id)
        event = None
        if run.status is RunStatus.RUNNING:
            event = self._orchestrate({**call, "mode": "check-job"}).get("event")
        if event == JobEvent.SUCCESS.value:
            self._orchestrate({**call, "action": "logResult", "status": RunStatus.COMPLETED.value})
            self._orchestrate({**call, "action": "notifyDownstream"})
            return
        if event is None and run.status is RunStatus.RUNNING:
            # Before the run: if that is lost, the job is asked to end once more, which changes nothing.
            self._lifecycle.end_job(Call(**run.slot._asdict(), run_id=run.run_id))
        ended: dict[str, Any] = {**call, "action": "logResult", "status": RunStatus.FAILED.value}
        if event is None:
            ended |= {
                "jobEvent": JobEvent.TIMEOUT.value,
                "failureCategory": FailureCategory.TIMEOUT.value,
                "reason": f"its execution {run.execution} is gone",
            }
        self._orchestrate(ended)


def _call(slot: Slot, run_id: str) -> dict[str, Any]:
    return {"pipelineId": slot.pipeline_id, "scheduleId": slot.schedule_id, "date": slot.date, "runId": run_id}


# What is under way just now may look as if it were gone.
_SETTLED_MS: Final = 300_000
