"""The words of pipelines: every status, category and kind that is stored, sent or shown."""

from __future__ import annotations

import enum
from typing import Final

from headgate.triggers.contract import FailureCategory as FailureCategory
from headgate.triggers.contract import JobState as JobState


class RunStatus(enum.StrEnum):
    """Where a run stands."""

    PENDING = "PENDING"
    TRIGGERING = "TRIGGERING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    # Done, and watched for a while longer: what it was made from may still change.
    COMPLETED_MONITORING = "COMPLETED_MONITORING"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to the run by itself."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)

    @property
    def is_done(self) -> bool:
        """Whether its job has succeeded."""
        return self in (RunStatus.COMPLETED, RunStatus.COMPLETED_MONITORING)


# What a run may become. Every change is a compare-and-swap on its version.
TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    RunStatus.PENDING: frozenset({RunStatus.TRIGGERING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.TRIGGERING: frozenset(
        {RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.COMPLETED_MONITORING, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.RUNNING: frozenset(
        {RunStatus.COMPLETED, RunStatus.COMPLETED_MONITORING, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.COMPLETED_MONITORING: frozenset({RunStatus.COMPLETED, RunStatus.FAILED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}


class Verdict(enum.StrEnum):
    """What a rule, a trait or a readiness comes to. UNKNOWN: what it looks at is not there or cannot be read."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class TraitStatus(enum.StrEnum):
    """What a trait came to. ERROR is a failure to find out, never waited on in silence; STALE is one that expired."""

    PASS = "PASS"
    FAIL = "FAIL"
    ERROR = "ERROR"
    STALE = "STALE"


class OnUnknown(enum.StrEnum):
    """What to do about a rule that cannot be told."""

    WAIT = "wait"
    FAIL = "fail"
    PASS = "pass"


class Severity(enum.StrEnum):
    """Whether a rule that fails holds the run back or is only told."""

    BLOCK = "block"
    WARN = "warn"


class Cause(enum.StrEnum):
    """What made a run begin."""

    CRON = "cron"
    SENSOR = "sensor"
    MARKER = "marker"
    UPSTREAM = "upstream"
    EVENT = "event"
    MANUAL = "manual"
    BACKFILL = "backfill"
    RERUN = "rerun"
    REPLAY = "replay"
    RECOVERY = "recovery"


class RerunReason(enum.StrEnum):
    """Why a period is done again. Whatever else a person gives counts as manual."""

    JOB_FAIL_RETRY = "job-fail-retry"
    DATA_DRIFT = "data-drift"
    LATE_DATA = "late-data"
    MANUAL = "manual"


class JobEvent(enum.StrEnum):
    """What is noted in the job log."""

    SUCCESS = "success"
    FAIL = "fail"
    TIMEOUT = "timeout"
    INFRA_TRIGGER_FAILURE = "infra-trigger-failure"
    INFRA_TRIGGER_EXHAUSTED = "infra-trigger-exhausted"
    LATE_DATA_ARRIVAL = "late-data-arrival"
    RERUN_ACCEPTED = "rerun-accepted"
    RERUN_REJECTED = "rerun-rejected"
    VALIDATION_EXHAUSTED = "validation-exhausted"
    JOB_POLL_EXHAUSTED = "job-poll-exhausted"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the period is over with this, unless someone asks for a rerun."""
        return self in _TERMINAL_EVENTS


_TERMINAL_EVENTS: Final = frozenset(
    {
        JobEvent.SUCCESS,
        JobEvent.FAIL,
        JobEvent.TIMEOUT,
        JobEvent.INFRA_TRIGGER_EXHAUSTED,
        JobEvent.VALIDATION_EXHAUSTED,
        JobEvent.JOB_POLL_EXHAUSTED,
        JobEvent.CANCELLED,
    }
)


class CatchUp(enum.StrEnum):
    """What to do about slots that passed while nobody was looking."""

    ALL = "all"
    LATEST = "latest"
    NONE = "none"


class ExpectationKind(enum.StrEnum):
    """What is expected by a time. Each has one verdict, once."""

    SCHEDULE = "schedule"
    IRREGULAR_DATE = "irregular-date"
    EVALUATION_SLA = "evaluation-sla"
    COMPLETION_SLA = "completion-sla"
    RELATIVE_SLA = "relative-sla"
    TRIGGER_DEADLINE = "trigger-deadline"
    POST_RUN_SENSOR = "post-run-sensor"


class ExpectationVerdict(enum.StrEnum):
    """How an expectation was judged."""

    OPEN = "OPEN"
    MET = "MET"
    MISSED = "MISSED"
    # Nobody has to account for it: excluded, skipped or dry.
    WAIVED = "WAIVED"


class ControlState(enum.StrEnum):
    """What people have said about a pipeline."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    # The breaker opened after too many failures in a row.
    TRIPPED = "TRIPPED"
