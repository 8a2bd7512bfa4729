"""Rerun decisions: whether a period may run again, by its calendar, its budgets and new data."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from headgate.pipelines.definition.model import Budgets, RetryPolicy
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rerun_rows import Budget, Rerun
from headgate.pipelines.runs.retries import decide_retry
from headgate.pipelines.runs.rows import RunLog

# Numbers from this on are milliseconds since 1970, smaller ones seconds.
_MILLISECONDS_FROM: Final = 10**12
_UPDATED: Final = ("updatedAt", "updated_at")


class RerunRule(enum.StrEnum):
    """The rule that decided on a rerun."""

    ALLOWED = "allowed"
    FORCED = "forced"
    EXCLUDED = "excluded"
    DISABLED = "disabled"
    BUDGET_SPENT = "budget-spent"
    UNDER_WAY = "under-way"
    # The last run is done and monitored for drift: the request waits for the end of the monitoring.
    MONITORED = "monitored"
    NOTHING_NEW = "nothing-new"


class Situation(Struct, frozen=True, kw_only=True):
    """The facts about a period besides its log."""

    budgets: Budgets
    retry: RetryPolicy = RetryPolicy()
    is_excluded: bool = False
    # Another execution holds the lock of the period.
    is_locked: bool = False
    # When a sensor of the pipeline was last updated. None: unknown.
    newest_update_ms: int | None = None


class RerunDecision(Struct, frozen=True):
    """The decision on a rerun: its rule, and the reason in a sentence."""

    rule: RerunRule
    reason: str

    @property
    def is_accepted(self) -> bool:
        """Whether the period runs again."""
        return self.rule in (RerunRule.ALLOWED, RerunRule.FORCED)

    @property
    def is_rejected(self) -> bool:
        """Whether it is refused. A rerun that is neither accepted nor rejected waits."""
        return not self.is_accepted and self.rule is not RerunRule.MONITORED


def decide_rerun(rerun: Rerun, log: RunLog | None, situation: Situation) -> RerunDecision:
    """Decide on a rerun."""
    if situation.is_locked and log is not None:
        if log.status is RunStatus.COMPLETED_MONITORING:
            return RerunDecision(
                RerunRule.MONITORED, f"run {log.run_id} is monitored for drift; the rerun waits for the end"
            )
        if log.is_live:
            return RerunDecision(
                RerunRule.UNDER_WAY, f"run {log.run_id} is under way; cancel it, or ask when it has ended"
            )
    if rerun.is_forced:
        return RerunDecision(RerunRule.FORCED, f"forced by {rerun.by or 'someone'}")
    if situation.is_excluded:
        return RerunDecision(RerunRule.EXCLUDED, "its date is excluded by the calendar")
    refusal = _budget_refusal(rerun, log, situation)
    if refusal is not None:
        return refusal
    if log is not None and log.status.is_done and not _is_new(log, situation.newest_update_ms):
        done = f"run {log.succeeded_run_id} ended" if log.succeeded_run_id else "it was marked as done"
        return RerunDecision(RerunRule.NOTHING_NEW, f"no sensor was updated since {done}; force it to do it anyway")
    return RerunDecision(RerunRule.ALLOWED, "within its budget")


def updated_at_ms(fields: Mapping[str, Any]) -> int | None:
    """Return the update time that a sensor states: seconds or milliseconds since 1970 as number or text, or ISO 8601.

    None: it states none, or in an unknown format. Text without an offset counts as UTC.
    """
    for name in _UPDATED:
        if name in fields:
            return _ms_of(fields[name])
    data = fields.get("data")
    return updated_at_ms(data) if isinstance(data, Mapping) else None


def newest_update_ms(sensors: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the latest update time of some sensors, None if none states one."""
    return max((moment for moment in map(updated_at_ms, sensors) if moment is not None), default=None)


def limit_of(budget: Budget, budgets: Budgets) -> int:
    """Return the number of reruns that a budget allows for a period. 0: none."""
    return budgets.drift if budget is Budget.DRIFT else budgets.manual


def spent_limit(rerun: Rerun, budgets: Budgets, retry: RetryPolicy) -> int | None:
    """Return the limit of the budget that a rerun was refused for; None: it was not refused for a budget."""
    if rerun.rule != RerunRule.BUDGET_SPENT.value:
        return None
    return retry.attempts if rerun.budget is Budget.RETRY else limit_of(rerun.budget, budgets)


def _budget_refusal(rerun: Rerun, log: RunLog | None, situation: Situation) -> RerunDecision | None:
    if rerun.budget is Budget.RETRY:
        return _retry_refusal(log, situation)
    limit = limit_of(rerun.budget, situation.budgets)
    spent = 0 if log is None else log.reruns.get(rerun.budget, 0)
    if limit <= 0:
        return RerunDecision(
            RerunRule.DISABLED, f"reruns for {rerun.reason} are switched off: budgets.{rerun.budget.value} is 0"
        )
    if spent >= limit:
        return RerunDecision(
            RerunRule.BUDGET_SPENT,
            f"{spent} of {limit} {rerun.budget} reruns of the period are used up; "
            f"force it, or raise budgets.{rerun.budget.value} of the pipeline",
        )
    return None


def _retry_refusal(log: RunLog | None, situation: Situation) -> RerunDecision | None:
    if log is None:
        return RerunDecision(RerunRule.BUDGET_SPENT, "nothing has failed that could be tried again")
    retry = decide_retry(situation.retry, log)
    return None if retry.is_retryable else RerunDecision(RerunRule.BUDGET_SPENT, retry.reason)


def _is_new(log: RunLog, newest_ms: int | None) -> bool:
    # Unknown times count as new: a check that cannot decide must not block work.
    return newest_ms is None or log.succeeded_at_ms is None or newest_ms > log.succeeded_at_ms


def _ms_of(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _ms_of_text(value.strip())
    if not isinstance(value, int | float) or not 0 < value < 10**15:
        return None
    return round(value) if value >= _MILLISECONDS_FROM else round(value * 1000)


def _ms_of_text(text: str) -> int | None:
    try:
        return _ms_of(float(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
