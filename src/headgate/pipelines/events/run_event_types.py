"""Event types of runs: readiness, jobs, reruns, post-run checks and dry runs."""

from __future__ import annotations

from typing import Final

from headgate.notify.enums import Severity
from headgate.pipelines.events.event_types import EventType, Scope, inform, note, page, warn
from headgate.pipelines.events.names import EventName as E

# The alerts of a period that its completion resolves.
_OVER: Final = (
    E.VALIDATION_EXHAUSTED, E.VALIDATION_TIMEOUT, E.EVALUATOR_FAILED, E.JOB_FAILED, E.JOB_TIMEOUT,
    E.JOB_POLL_EXHAUSTED, E.TRIGGER_EXHAUSTED, E.RETRY_EXHAUSTED, E.PIPELINE_FAILED, E.INFRA_FAILURE,
    E.SLA_WARNING, E.EVALUATION_SLA_WARNING, E.RELATIVE_SLA_WARNING, E.SLA_BREACH, E.EVALUATION_SLA_BREACH,
    E.RELATIVE_SLA_BREACH, E.SCHEDULE_MISSED, E.IRREGULAR_SCHEDULE_MISSED, E.SENSOR_DEADLINE_EXPIRED, E.RUN_STUCK,
    E.SFN_TIMEOUT, E.DATASET_HOLD,
)  # fmt: skip

_READINESS: Final = (
    note(E.TRAIT_EVALUATED, "{pipeline}: trait {trait} is {status}", "trait", "status"),
    note(E.TRAIT_PUSHED, "{pipeline}: trait {trait} was pushed as {status}", "trait", "status", scope=Scope.PIPELINE),
    note(E.READINESS_CHECKED, "{pipeline} {date}: readiness is {status}", "status"),
    note(E.VALIDATION_PASSED, "{pipeline} {schedule} {date}: everything it waits for is there"),
    page(
        E.VALIDATION_EXHAUSTED,
        "{pipeline} {schedule} {date}: its window closed before it was ready",
        "'headgate period why PIPELINE' says what was missing; request a rerun when it is there",
    ),
    page(
        E.VALIDATION_TIMEOUT,
        "{pipeline} {schedule} {date}: not ready within its time-out",
        "'headgate period why PIPELINE' says what was missing; request a rerun when it is there",
    ),
    page(
        E.EVALUATOR_FAILED,
        "{pipeline} {date}: trait {trait} could not be evaluated: {error}",
        "look at the evaluator: what it was asked is unknown, which is not the same as not ready",
        "trait",
        "error",
    ),
    warn(
        E.EVALUATOR_BREAKER_OPENED,
        "{pipeline}: evaluator {evaluator} kept failing and is left alone for a while",
        "look at the evaluator; it is tried again by itself",
        "evaluator",
        scope=Scope.PIPELINE,
    ),
    warn(
        E.RULE_WARNED,
        "{pipeline} {date}: rule {rule} fails, which does not hold the run back",
        "see whether what was made of it is good enough",
        "rule",
    ),
)

_JOBS: Final = (
    # An execution of the lifecycle and a job are two things with two events.
    note(E.EXECUTION_STARTED, "{pipeline} {schedule} {date}: execution {execution} began", "execution"),
    note(E.RUN_STATE_CHANGED, "{pipeline} {schedule} {date}: {before} became {after}", "before", "after"),
    note(E.JOB_TRIGGERED, "{pipeline} {schedule} {date}: the job was started ({trigger})", "trigger"),
    inform(E.JOB_COMPLETED, "{pipeline} {schedule} {date}: the job succeeded", ""),
    page(
        E.JOB_FAILED,
        "{pipeline} {schedule} {date}: the job failed ({category}): {error}",
        "read the job's log; a transient failure is retried, a permanent one needs a fix and a rerun",
        "category",
        "error",
    ),
    page(
        E.JOB_TIMEOUT,
        "{pipeline} {schedule} {date}: the job ran into its time-out",
        "see why it takes longer than usual, or allow it more time",
    ),
    page(
        E.JOB_POLL_EXHAUSTED,
        "{pipeline} {schedule} {date}: the job was not seen to end within its poll window",
        "see whether it still runs; allow it a longer poll window, or cancel it",
    ),
    note(E.CALLBACK_RECEIVED, "{pipeline} {schedule} {date}: the job reported {status}", "status"),
    note(
        E.TRIGGER_FAILED,
        "{pipeline} {schedule} {date}: the job could not be started, attempt {attempt}: {error}",
        "attempt",
        "error",
        severity=Severity.WARNING,
    ),
    page(
        E.TRIGGER_EXHAUSTED,
        "{pipeline} {schedule} {date}: the job could not be started in {attempts} attempts: {error}",
        "check what starts it: permissions, quotas, whether the service is up; then request a rerun",
        "attempts",
        "error",
    ),
    note(
        E.RETRY_SCHEDULED,
        "{pipeline} {schedule} {date}: attempt {attempt} follows in {delay_seconds} s",
        "attempt",
        "delay_seconds",
    ),
    page(
        E.RETRY_EXHAUSTED,
        "{pipeline} {schedule} {date}: the job failed {attempts} times and is not retried",
        "fix the cause, then request a rerun",
        "attempts",
    ),
    note(E.PIPELINE_COMPLETED, "{pipeline} {schedule} {date}: done", resolves=_OVER),
    page(
        E.PIPELINE_FAILED,
        "{pipeline} {schedule} {date}: failed: {reason}",
        "'headgate run show' has its attempts; request a rerun when the cause is fixed",
        "reason",
    ),
    note(E.RUN_RECOVERED, "{pipeline} {schedule} {date}: its job was repaired; it had failed: {failure}", "failure"),
    warn(
        E.RUN_NOT_RECOVERED,
        "{pipeline} {schedule} {date}: the job of run {run_id} was repaired, but the run stays failed: {reason}",
        "'headgate period ls' has the attempts of the period; the data may have been written twice",
        "run_id",
        "reason",
    ),
    inform(
        E.PIPELINE_EXCLUDED,
        "{pipeline} {schedule} {date}: not run, the calendar excludes the day ({source})",
        "nothing, unless the calendar is wrong",
        "source",
    ),
    warn(
        E.MARKER_REFUSED,
        "{pipeline} {schedule}: the marker {marker} started nothing: {reason}",
        "write it again with the attribute date, in the form of the pipeline's periods",
        "marker",
        "reason",
    ),
    page(
        E.INFRA_FAILURE,
        "{pipeline} {schedule} {date}: the lifecycle itself failed: {error}",
        "this is not the job; look at the server's log and 'headgate doctor'",
        "error",
    ),
    page(
        E.INFRA_ALARM,
        "alarm {alarm} is in state {state}",
        "follow the alarm to what it watches",
        "alarm",
        "state",
        scope=Scope.INSTALLATION,
    ),
    page(
        E.LOCK_NOT_RELEASED,
        "{pipeline} {schedule} {date}: its lock could not be released: {error}",
        "the period cannot begin again before the lock expires; the run itself is as it ended",
        "error",
    ),
    note(E.CASCADE_SENT, "{pipeline} {schedule} {date}: {downstream} was notified", "downstream"),
    warn(
        E.CASCADE_FAILED,
        "{pipeline} {schedule} {date}: {downstream} could not be notified: {error}",
        "start it by hand if it is due; the run that is done stays done",
        "downstream",
        "error",
    ),
)

_RERUNS: Final = (
    note(E.RERUN_REQUESTED, "{pipeline} {schedule} {date}: a rerun was requested ({reason})", "reason"),
    inform(E.RERUN_ACCEPTED, "{pipeline} {schedule} {date}: the rerun was accepted ({reason})", "", "reason"),
    warn(
        E.RERUN_REJECTED,
        "{pipeline} {schedule} {date}: the rerun was rejected ({reason}): {refusal}",
        "force it with a reason if it must be",
        "reason",
        "refusal",
    ),
    note(E.RERUN_COMPLETED, "{pipeline} {schedule} {date}: the rerun has ended as {status}", "status"),
    warn(
        E.RERUN_CAP_REACHED,
        "{pipeline} {schedule} {date}: its reruns for {reason} are used up ({limit})",
        "see why the data keeps changing, or allow more",
        "reason",
        "limit",
    ),
    warn(
        E.LATE_DATA_ARRIVAL,
        "{pipeline} {schedule} {date}: data came after it was done ({sensor_key})",
        "a rerun was requested; check that it is accepted",
        "sensor_key",
    ),
    note(E.BACKFILL_STARTED, "{pipeline}: backfill {backfill_id} of {periods} periods began", "backfill_id", "periods"),
    inform(
        E.BACKFILL_COMPLETED,
        "{pipeline}: backfill {backfill_id} is done",
        "",
        "backfill_id",
        scope=Scope.PIPELINE,
        resolves=(E.BACKFILL_FAILED,),
    ),
    warn(
        E.BACKFILL_FAILED,
        "{pipeline}: {failed} periods of backfill {backfill_id} failed",
        "'headgate run ls' has them; resume the backfill when the cause is fixed",
        "backfill_id",
        "failed",
        scope=Scope.PIPELINE,
    ),
)

_AFTERWARDS: Final = (
    note(E.POST_RUN_BASELINE_CAPTURED, "{pipeline} {schedule} {date}: the baseline was captured"),
    warn(
        E.BASELINE_CAPTURE_FAILED,
        "{pipeline} {schedule} {date}: the baseline could not be captured: {error}",
        "drift of this period will not be detected",
        "error",
    ),
    note(E.POST_RUN_PASSED, "{pipeline} {schedule} {date}: the post-run checks passed", resolves=(E.POST_RUN_FAILED,)),
    warn(
        E.POST_RUN_FAILED,
        "{pipeline} {schedule} {date}: post-run rule {rule} failed",
        "inspect the output of the run before consumers read it",
        "rule",
    ),
    warn(
        E.POST_RUN_DRIFT,
        "{pipeline} {schedule} {date}: {sensor_key} went from {previous} to {current} after it was done",
        "a rerun was requested; check that it is accepted",
        "sensor_key",
        "previous",
        "current",
    ),
    inform(
        E.POST_RUN_DRIFT_INFLIGHT,
        "{pipeline} {schedule} {date}: {sensor_key} went from {previous} to {current} while it runs",
        "the run may have read either; it is compared again when it is done",
        "sensor_key",
        "previous",
        "current",
    ),
    warn(
        E.POST_RUN_SENSOR_MISSING,
        "{pipeline} {schedule} {date}: no sensor reported after the run",
        "check that the job wrote its output and that the sensor still reports",
    ),
    note(E.MONITORING_STARTED, "{pipeline} {schedule} {date}: its inputs are watched for {duration_seconds} s",
         "duration_seconds"),
    warn(
        E.MONITORING_DRIFT_DETECTED,
        "{pipeline} {schedule} {date}: trait {trait} no longer passes after it was done",
        "a rerun was requested; check that it is accepted",
        "trait",
    ),
    note(E.MONITORING_COMPLETED, "{pipeline} {schedule} {date}: its inputs did not change"),
    warn(
        E.DATA_QUARANTINED,
        "{pipeline} {date}: {count} records are quarantined",
        "inspect them; downstream runs are held if the definition says so",
        "count",
    ),
    note(E.QUARANTINE_CLEARED, "{pipeline} {date}: no record is quarantined any more", resolves=(E.DATA_QUARANTINED,)),
)  # fmt: skip

_DRY_RUNS: Final = (
    inform(E.DRY_RUN_WOULD_TRIGGER, "{pipeline} {schedule} {date}: dry run: the job would have started", ""),
    inform(E.DRY_RUN_LATE_DATA, "{pipeline} {schedule} {date}: dry run: data came late ({late_by})", "", "late_by"),
    inform(E.DRY_RUN_SLA_PROJECTION, "{pipeline} {schedule} {date}: dry run: its deadline would be {status}", "",
         "status"),
    inform(E.DRY_RUN_DRIFT, "{pipeline} {schedule} {date}: dry run: {sensor_key} changed afterwards", "", "sensor_key"),
    inform(E.DRY_RUN_COMPLETED, "{pipeline} {schedule} {date}: dry run: over, deadline {sla_status}", "", "sla_status"),
    inform(E.DRY_RUN_WOULD_RERUN, "{pipeline} {schedule} {date}: dry run: a rerun would be requested ({reason})", "",
         "reason"),
    inform(E.DRY_RUN_RERUN_REJECTED, "{pipeline} {schedule} {date}: dry run: a rerun would be refused: {refusal}", "",
         "refusal"),
    inform(E.DRY_RUN_WOULD_RETRY, "{pipeline} {schedule} {date}: dry run: the job would be retried", ""),
    inform(E.DRY_RUN_RETRY_EXHAUSTED, "{pipeline} {schedule} {date}: dry run: the job would not be retried", ""),
)  # fmt: skip

RUN_EVENT_TYPES: Final[tuple[EventType, ...]] = (*_READINESS, *_JOBS, *_RERUNS, *_AFTERWARDS, *_DRY_RUNS)
