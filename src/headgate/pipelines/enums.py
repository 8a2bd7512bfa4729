"""Enumerations of the pipelines layer: every status, category and kind that is stored, sent or shown."""

from __future__ import annotations

import enum
from typing import Final

from headgate.triggers.contract import FailureCategory as FailureCategory
from headgate.triggers.contract import JobState as JobState


class RunStatus(enum.StrEnum):
    """The status of a run."""

    PENDING = "PENDING"
    TRIGGERING = "TRIGGERING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    # Done, and monitored for changes of its inputs.
    COMPLETED_MONITORING = "COMPLETED_MONITORING"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended. Only a repair of its job changes it further: FAILED becomes COMPLETED."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)

    @property
    def is_done(self) -> bool:
        """Whether its job has succeeded."""
        return self in (RunStatus.COMPLETED, RunStatus.COMPLETED_MONITORING)


# The allowed transitions of a run.
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
    """The verdict of a rule, a trait or the readiness. UNKNOWN: the input is missing or unreadable."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class TraitStatus(enum.StrEnum):
    """The status of a trait. ERROR: the evaluation failed; STALE: the result has expired."""

    PASS = "PASS"
    FAIL = "FAIL"
    ERROR = "ERROR"
    STALE = "STALE"


class OnUnknown(enum.StrEnum):
    """How to treat a rule with an unknown verdict."""

    WAIT = "wait"
    FAIL = "fail"
    PASS = "pass"


class SensorPeriod(enum.StrEnum):
    """Of which period a rule reads its sensor."""

    # The period of the run, or a value that was pushed for all periods.
    OWN = "own"
    # The newest value, whichever period it is of.
    ANY = "any"


class Severity(enum.StrEnum):
    """Whether a failing rule blocks the run or only warns."""

    BLOCK = "block"
    WARN = "warn"


class Cause(enum.StrEnum):
    """What started a run."""

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
    """Why a period runs again. Any other text counts as manual."""

    JOB_FAIL_RETRY = "job-fail-retry"
    DATA_DRIFT = "data-drift"
    LATE_DATA = "late-data"
    MANUAL = "manual"


class JobEvent(enum.StrEnum):
    """The events of the job log."""

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
        """Whether the period is over with this event, unless a rerun is requested."""
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
    """How to treat slots that passed during a downtime."""

    ALL = "all"
    LATEST = "latest"
    NONE = "none"


class ExpectationKind(enum.StrEnum):
    """The kind of an expectation. Each expectation gets one verdict."""

    SCHEDULE = "schedule"
    IRREGULAR_DATE = "irregular-date"
    EVALUATION_SLA = "evaluation-sla"
    COMPLETION_SLA = "completion-sla"
    RELATIVE_SLA = "relative-sla"
    TRIGGER_DEADLINE = "trigger-deadline"
    POST_RUN_SENSOR = "post-run-sensor"


class ExpectationVerdict(enum.StrEnum):
    """The verdict on an expectation."""

    OPEN = "OPEN"
    MET = "MET"
    MISSED = "MISSED"
    # Not counted: excluded, skipped or a dry run.
    WAIVED = "WAIVED"


class ControlState(enum.StrEnum):
    """Whether a pipeline may start runs."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    # The circuit breaker opened after too many failures in a row.
    TRIPPED = "TRIPPED"
