"""Response structs of the pipeline API. Times are UTC text."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from headgate.pipelines.enums import (
    Cause,
    ControlState,
    FailureCategory,
    JobEvent,
    RerunReason,
    RunStatus,
    Severity,
    TraitStatus,
    Verdict,
)
from headgate.pipelines.operations.backfill_plans import Backfill, BackfillState
from headgate.pipelines.readiness.evaluation_log import Purpose, StoredEvaluation
from headgate.pipelines.rules.readiness import Blocker, ReadinessResult
from headgate.pipelines.rules.rules import RuleResult
from headgate.pipelines.runs.controls import Control
from headgate.pipelines.runs.job_log import JobLogPage
from headgate.pipelines.runs.rerun_rows import Rerun, RerunStatus
from headgate.pipelines.runs.rows import Directive, Order, Run, RunLog
from headgate.serve.http.views import shown

# Shared parameter types.
Date = Annotated[
    str,
    Meta(
        min_length=4,
        max_length=40,
        description="A period in the pipeline's granularity: a day, hour, week or month, or its start.",
        examples=["2026-03-03", "2026-03-03T07", "2026-W10", "2026-03", "2026-03-03T07:15"],
    ),
]
ScheduleName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="The schedule; optional if the pipeline has one.",
        examples=["daily", "cron", "stream"],
    ),
]
Reason = Annotated[
    str,
    Meta(min_length=1, max_length=1024, description="Recorded in the audit log.", examples=["the source is back"]),
]


# Runs.


class TransitionView(Struct, frozen=True):
    """A status transition of a run."""

    status: RunStatus
    at: str | None


class RunView(Struct, frozen=True, kw_only=True):
    """One attempt at a period. `version` increases with every change."""

    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    attempt: int
    cause: Cause
    by: str
    note: str
    category: FailureCategory | None
    event: JobEvent | None
    reason: str
    recovered_from: str
    definition_version: int
    execution: str
    job_id: str
    evaluation_id: str
    rerun_id: str
    backfill_id: str
    is_dry_run: bool
    traceparent: str
    created_at: str | None
    updated_at: str | None
    sensor_arrival_at: str | None
    triggered_at: str | None
    started_at: str | None
    ended_at: str | None
    heartbeat_at: str | None
    monitor_until: str | None
    duration_ms: int | None
    transitions: list[TransitionView]


class RunPage(Struct, frozen=True):
    """A page of runs, latest first."""

    runs: list[RunView]
    cursor: str | None = None


class AttemptView(Struct, frozen=True, kw_only=True):
    """One attempt in the run log of a period."""

    number: int
    run_id: str
    status: RunStatus
    cause: Cause
    by: str
    execution: str
    category: FailureCategory | None
    event: JobEvent | None
    reason: str
    recovered_from: str
    begun_at: str | None
    ended_at: str | None


class DirectiveView(Struct, frozen=True):
    """A directive for a period, and its reason."""

    order: Order
    by: str
    reason: str
    at: str | None


class RunLogView(Struct, frozen=True, kw_only=True):
    """State of a period over all its attempts."""

    pipeline_id: str
    schedule_id: str
    date: str
    status: RunStatus
    version: int
    attempts: int
    run_id: str
    cause: Cause | None
    by: str
    execution: str
    category: FailureCategory | None
    event: JobEvent | None
    reason: str
    recovered_from: str
    failures: int
    permanent_failures: int
    reruns: dict[str, int]
    rerun_id: str
    is_rerun_due: bool
    succeeded_run_id: str
    created_at: str | None
    updated_at: str | None
    begun_at: str | None
    ended_at: str | None
    succeeded_at: str | None
    hold: DirectiveView | None
    order: DirectiveView | None
    history: list[AttemptView]


class RunLogPage(Struct, frozen=True):
    """A page of run logs, latest period first."""

    run_logs: list[RunLogView]
    cursor: str | None = None


class JobView(Struct, frozen=True, kw_only=True):
    """One event of the job of a period."""

    event: JobEvent
    at: str | None
    run_id: str
    attempt: int
    job_id: str
    category: FailureCategory | None
    error: str
    duration_ms: int | None
    by: str
    detail: dict[str, Any]


class JobPage(Struct, frozen=True):
    """Job events of a period, latest first."""

    entries: list[JobView]
    cursor: str | None = None


class RerunView(Struct, frozen=True, kw_only=True):
    """A rerun request and its outcome; `rule` and `decision` explain it."""

    rerun_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    reason: RerunReason
    status: RerunStatus
    by: str
    note: str
    is_forced: bool
    rule: str
    decision: str
    execution: str
    run_id: str
    requested_at: str | None
    decided_at: str | None
    ended_at: str | None


class RerunPage(Struct, frozen=True):
    """A page of reruns, latest request first."""

    reruns: list[RerunView]
    cursor: str | None = None


class BackfillView(Struct, frozen=True, kw_only=True):
    """A backfill. Lists omit the dates."""

    backfill_id: str
    pipeline_id: str
    schedule_id: str
    state: BackfillState
    version: int
    by: str
    reason: str
    concurrency: int
    redo: bool
    while_paused: bool
    stop_on_failure: bool
    dates_count: int
    taken: int
    succeeded: int
    skipped: int
    running: list[str]
    failed: dict[str, str]
    dates: list[str]
    created_at: str | None
    updated_at: str | None
    ended_at: str | None


class BackfillPage(Struct, frozen=True):
    """A page of backfills, latest first."""

    backfills: list[BackfillView]
    cursor: str | None = None


class ControlView(Struct, frozen=True, kw_only=True):
    """Control state of a pipeline. `state` is the effective one: a pause may have expired."""

    pipeline_id: str
    state: ControlState
    version: int
    reason: str
    by: str
    since: str | None
    until: str | None
    failures_in_a_row: int
    last_failed_run_id: str


# Readiness.


class BlockerView(Struct, frozen=True, kw_only=True):
    """One unmet condition."""

    kind: str
    name: str
    status: str
    reason: str
    since: str | None


class RuleView(Struct, frozen=True, kw_only=True):
    """Result of a rule, and of its children."""

    path: str
    name: str
    kind: str
    verdict: Verdict
    reason: str
    subject: str
    severity: Severity
    since: str | None
    children: list[RuleView]


class TraitSeen(Struct, frozen=True, kw_only=True):
    """Value of a trait at the evaluation."""

    status: TraitStatus
    reason: str
    category: FailureCategory | None
    evaluated_at: str | None


class EvaluationView(Struct, frozen=True, kw_only=True):
    """Results of rules and traits at an evaluation."""

    evaluation_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    purpose: Purpose
    at: str | None
    result: ReadinessResult
    reason: str
    category: FailureCategory | None
    shadowed: ReadinessResult | None
    blocking: list[BlockerView]
    warnings: list[BlockerView]
    rules: list[RuleView]
    traits: dict[str, TraitSeen]
    run_id: str
    execution: str
    next_at: str | None
    window_closes_at: str | None


def run_view(run: Run) -> RunView:
    """Return the view of a run."""
    return shown(RunView, run, transitions=[shown(TransitionView, each) for each in run.transitions])


def run_log_view(log: RunLog) -> RunLogView:
    """Return the view of a run log."""
    return shown(
        RunLogView,
        log,
        hold=_directive(log.hold),
        order=_directive(log.order),
        history=[shown(AttemptView, each) for each in log.history],
    )


def job_page(page: JobLogPage) -> JobPage:
    """Return a page of job events."""
    return JobPage([shown(JobView, each) for each in page.entries], page.cursor)


def rerun_view(rerun: Rerun) -> RerunView:
    """Return the view of a rerun."""
    return shown(RerunView, rerun)


def backfill_view(backfill: Backfill) -> BackfillView:
    """Return the view of a backfill."""
    return shown(BackfillView, backfill)


def control_view(control: Control, now_ms: int) -> ControlView:
    """Return the effective control state of a pipeline."""
    return shown(ControlView, control, state=control.state_at(now_ms))


def blocker_view(blocker: Blocker) -> BlockerView:
    """Return the view of an unmet condition."""
    return shown(BlockerView, blocker)


def rule_view(result: RuleResult) -> RuleView:
    """Return the view of a rule result, with its children."""
    return shown(RuleView, result, children=[rule_view(each) for each in result.children])


def evaluation_view(stored: StoredEvaluation) -> EvaluationView:
    """Return the view of an evaluation."""
    verdict = stored.verdict
    return shown(
        EvaluationView,
        stored,
        result=verdict.result,
        reason=verdict.reason,
        category=verdict.category,
        shadowed=verdict.shadowed,
        blocking=[blocker_view(each) for each in verdict.blocking],
        warnings=[blocker_view(each) for each in verdict.warnings],
        rules=[rule_view(each) for each in stored.evaluation.results],
        traits={name: shown(TraitSeen, fact) for name, fact in stored.traits.items()},
    )


def _directive(directive: Directive | None) -> DirectiveView | None:
    return None if directive is None else shown(DirectiveView, directive)
