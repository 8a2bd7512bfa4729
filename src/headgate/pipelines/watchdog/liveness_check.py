"""Liveness check: finds stuck runs, lost executions with the locks they left, and monitoring that does not end."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from headgate.errors import AlreadyStartedError
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import JOB_CHECK_SECONDS_MAX, Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.readiness.evaluation_log import Evaluations
from headgate.pipelines.runs.locks import Lock, evaluation_key
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.watchdog.followups import Followup, Followups
from headgate.pipelines.watchdog.period_facts import moment_of
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds
from headgate.pipelines.watchdog.verdicts import iso

STUCK: Final = "stuck-runs"
GONE: Final = "stale-locks"
MONITORING: Final = "overdue-monitoring"
# Shortest time between two checks of a period.
CHECK_MS_MIN: Final = 60_000


class Lifecycle(Struct, frozen=True, kw_only=True):
    """The operations on runs that the watchdog needs."""

    # Whether an execution of this name is running. Raises `TransientError` if the check fails.
    is_open: Callable[[str], bool]
    # The functions of the lifecycle, by action and mode.
    orchestrate: Callable[[dict[str, Any]], Answer]
    # Cancels the job of a run.
    end_job: Callable[[Call], None]


class LivenessFinding(enum.Enum):
    """The state of a period with a run or a lock."""

    OVER = enum.auto()
    FINE = enum.auto()
    STUCK = enum.auto()
    # Its execution is lost, and left the run open or the lock held.
    GONE = enum.auto()
    MONITORED_TOO_LONG = enum.auto()


class RunLiveness(Struct, frozen=True, kw_only=True):
    """The run, lock and execution of a period."""

    log: RunLog | None
    run: Run | None
    lock: Lock | None
    # Whether the execution of the run or of the lock is running. None: neither names one.
    is_open: bool | None
    evaluated_at_ms: int = 0


class LivenessDecision(Struct, frozen=True, kw_only=True):
    """The finding, and when to check again."""

    finding: LivenessFinding
    next_check_ms: int
    since_ms: int = 0


def decide_liveness(
    liveness: RunLiveness, pipeline: Pipeline | None, now_ms: int, thresholds: Thresholds = DEFAULTS
) -> LivenessDecision:
    """Return the state of a period. A run within the times of its definition is never stuck."""
    limits = thresholds.of(pipeline)
    stuck_ms, lost_ms = round(1000 * limits.stuck_seconds), round(1000 * limits.lost_seconds)
    run, lock = liveness.run, liveness.lock
    is_live = liveness.log is not None and liveness.log.is_live and run is not None
    if run is not None and run.status is RunStatus.COMPLETED_MONITORING:
        return _monitored(run, now_ms, min(stuck_ms, lost_ms))
    if not is_live and lock is None:
        return LivenessDecision(finding=LivenessFinding.OVER, next_check_ms=now_ms)
    touched_ms = max(
        run.updated_at_ms if is_live and run is not None else 0,
        liveness.evaluated_at_ms,
        0 if lock is None else lock.acquired_at_ms,
    )
    if liveness.is_open is False and now_ms - touched_ms >= min(stuck_ms, lost_ms):
        return LivenessDecision(finding=LivenessFinding.GONE, next_check_ms=now_ms + CHECK_MS_MIN, since_ms=touched_ms)
    if not is_live or run is None or (liveness.log is not None and liveness.log.hold is not None):
        return LivenessDecision(finding=LivenessFinding.FINE, next_check_ms=now_ms + stuck_ms)
    stuck_at_ms = touched_ms + max(stuck_ms, _allowed_ms(run, pipeline))
    if now_ms >= stuck_at_ms:
        return LivenessDecision(finding=LivenessFinding.STUCK, next_check_ms=now_ms + stuck_ms, since_ms=touched_ms)
    next_check_ms = max(now_ms + CHECK_MS_MIN, min(stuck_at_ms, now_ms + stuck_ms))
    return LivenessDecision(finding=LivenessFinding.FINE, next_check_ms=next_check_ms)


def _monitored(run: Run, now_ms: int, overdue_ms: int) -> LivenessDecision:
    """Monitoring after a success ends by itself; the watchdog ends it if that does not happen."""
    until_ms = run.monitor_until_ms if run.monitor_until_ms is not None else run.updated_at_ms
    ends_at_ms = until_ms + overdue_ms
    finding = LivenessFinding.MONITORED_TOO_LONG if now_ms >= ends_at_ms else LivenessFinding.FINE
    return LivenessDecision(finding=finding, next_check_ms=max(ends_at_ms, now_ms + CHECK_MS_MIN), since_ms=until_ms)


def _allowed_ms(run: Run, pipeline: Pipeline | None) -> int:
    """Return how long the definition allows a run to stay without activity."""
    if pipeline is None:
        return 0
    if run.status is RunStatus.RUNNING and pipeline.trigger is not None:
        # The lifecycle polls until the window closes and then ends the run: it is stuck only after that.
        return round(1000 * (window_seconds(pipeline.trigger) + JOB_CHECK_SECONDS_MAX))
    # Each evaluation counts as activity, and there is one in every interval.
    return round(2000 * pipeline.readiness.interval)


class LivenessCheck:
    """Checks periods that have a run or a lock."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        evaluations: Evaluations,
        events: EventWriter,
        followups: Followups,
        lifecycle: Lifecycle,
        starter: LifecycleStarter,
        thresholds: Thresholds = DEFAULTS,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._evaluations = evaluations
        self._events = events
        self._followups = followups
        self._lifecycle = lifecycle
        self._starter = starter
        self._orchestrate = lifecycle.orchestrate
        self._thresholds = thresholds

    def check(self, followup: Followup, now_ms: int) -> str | None:
        """Check a period and act on the finding. Return the name of the check that found something."""
        slot = followup.slot
        liveness = self._read(slot)
        run = liveness.run
        pipeline = None if run is None else self._definitions.of_run(run)
        decision = decide_liveness(liveness, pipeline, now_ms, self._thresholds)
        match decision.finding:
            case LivenessFinding.OVER:
                self._start_pending_rerun(followup)
                self._followups.drop(followup)
                return None
            case LivenessFinding.STUCK if run is not None:
                return STUCK if self._report_stuck(followup, run, decision) else None
            case LivenessFinding.GONE:
                return GONE if self._end(followup, liveness, decision) else None
            case LivenessFinding.MONITORED_TOO_LONG if run is not None:
                self._orchestrate({**_call(slot, run.run_id), "action": "checkMonitoringExpired"})
                self._followups.postpone(followup, now_ms + CHECK_MS_MIN)
                return MONITORING
        self._followups.postpone(followup, decision.next_check_ms)
        return None

    def _start_pending_rerun(self, followup: Followup) -> None:
        """Start a rerun that the lock refused. The execution that held the lock would have, but may be lost."""
        pending = self._stores.reruns.pending(followup.slot)
        if pending is None:
            return
        # The definition may have changed since a start under this name; the rerun is then started already.
        with suppress(AlreadyStartedError):
            self._starter.start_rerun(pending, f"watchdog#{followup.since_ms}#{followup.version}")

    def _read(self, slot: Slot) -> RunLiveness:
        log = self._stores.runs.log(slot)
        run = self._stores.runs.find(log.run_id) if log is not None and log.run_id else None
        lock = self._stores.locks.find(evaluation_key(slot))
        is_live = log is not None and log.is_live
        names = {
            *([run.execution] if is_live and run is not None else []),
            *([lock.owner] if lock is not None else []),
        } - {""}
        is_pending = is_live and run is not None and run.status is RunStatus.PENDING
        evaluation = self._evaluations.latest(slot) if is_pending else None
        return RunLiveness(
            log=log,
            run=run,
            lock=lock,
            is_open=any(map(self._lifecycle.is_open, sorted(names))) if names else None,
            evaluated_at_ms=0 if evaluation is None else evaluation.at_ms,
        )

    def _report_stuck(self, followup: Followup, run: Run, decision: LivenessDecision) -> bool:
        done = f"stuck:{run.run_id}:{run.status.value}"
        if followup.done == done:
            self._followups.postpone(followup, decision.next_check_ms)
            return False
        detail = {"run_id": run.run_id, "status": run.status.value, "since": iso(moment_of(decision.since_ms))}
        writes = self._events.writes(EventName.RUN_STUCK, run.slot, detail)
        return self._followups.postpone(followup, decision.next_check_ms, done=done, also=writes)

    def _end(self, followup: Followup, liveness: RunLiveness, decision: LivenessDecision) -> bool:
        """End the run and lock of a lost execution: publish first, then act, and repeat until nothing is left."""
        run, lock = liveness.run, liveness.lock
        is_live = liveness.log is not None and liveness.log.is_live
        left = run.run_id if is_live and run is not None else "" if lock is None else lock.token
        done = f"gone:{left}"
        is_new = followup.done != done
        detail = {
            "run_id": "" if run is None else run.run_id,
            "execution": lock.owner if lock is not None else "" if run is None else run.execution,
            "since": iso(moment_of(decision.since_ms)),
        }
        writes = self._events.writes(EventName.SFN_TIMEOUT, followup.slot, detail) if is_new else []
        if not self._followups.postpone(followup, decision.next_check_ms, done=done, also=writes):
            return False
        if is_live and run is not None:
            self._end_run(run)
        if lock is not None:
            self._stores.locks.release_owned(lock.key, lock.owner)
        return is_new

    def _end_run(self, run: Run) -> None:
        """End a run without an execution. A job that has succeeded completes the run; any other is cancelled."""
        call = _call(run.slot, run.run_id)
        event = None
        if run.status is RunStatus.RUNNING:
            event = self._orchestrate({**call, "mode": "check-job"}).get("event")
        if event == JobEvent.SUCCESS.value:
            self._orchestrate({**call, "action": "logResult", "status": RunStatus.COMPLETED.value})
            self._orchestrate({**call, "action": "notifyDownstream"})
            return
        if event is None and run.status is RunStatus.RUNNING:
            # Cancel the job first: if ending the run fails, the next check cancels again, which is idempotent.
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
