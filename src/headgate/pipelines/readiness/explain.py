"""Why a run has not started, or what became of it, in a sentence and a tree, from what is stored about its period."""

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
from headgate.pipelines.runs.rows import Order, RunLog, Slot, run_log_key, run_log_of
from headgate.pipelines.schedule.due_checks import Due
from headgate.pipelines.schedule.local_time import zone_of
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.port import Store

_NAMED_MAX: Final = 2


class Standing(enum.StrEnum):
    """Where a period stands, as far as someone who asks is concerned."""

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
    LOCKED = "locked"
    UNASKED = "unasked"


class Circumstances(Struct, frozen=True, kw_only=True):
    """Everything stored about one period of one pipeline. What there is none of is left out."""

    pipeline: Pipeline
    slot: Slot
    now: datetime
    log: RunLog | None = None
    control: Control | None = None
    lock: Lock | None = None
    evaluation: StoredEvaluation | None = None
    due: Due = Due()


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the tree: what, how it stands, and why."""

    label: str
    status: str
    reason: str = ""
    children: tuple[Line, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    """Why."""

    standing: Standing
    sentence: str
    tree: Line


_Told = tuple[Standing, str]


def why(circumstances: Circumstances) -> Explanation:
    """Return why a period stands where it does: of everything that is so, what comes first in the way of a run."""
    standing, said = next(told for told in (step(circumstances) for step in _STEPS) if told is not None)
    slot = circumstances.slot
    subject = f"{slot.pipeline_id} of {slot.date}"
    tree = Line(label=subject, status=standing.value, reason=said, children=tuple(_branches(circumstances)))
    return Explanation(standing=standing, sentence=f"{subject} {said}", tree=tree)


class Explainer:
    """Reads what is stored about a period, and explains it."""

    def __init__(
        self, store: Store, clock: Clock, *, evaluations: Evaluations, controls: Controls, locks: Locks
    ) -> None:
        self._store = store
        self._clock = clock
        self._evaluations = evaluations
        self._controls = controls
        self._locks = locks

    def why(self, pipeline: Pipeline, slot: Slot, due: Due) -> Explanation:
        """Return why a period of a pipeline stands where it does. `due` is what its calendars and schedules say."""
        log = self._store.get(PIPELINES, run_log_key(slot), consistent=True)
        return why(
            Circumstances(
                pipeline=pipeline,
                slot=slot,
                now=self._clock.now(),
                log=None if log is None else run_log_of(log),
                control=self._controls.get(slot.pipeline_id),
                lock=self._locks.find(evaluation_key(slot)),
                evaluation=self._evaluations.latest(slot),
                due=due,
            )
        )


def as_text(line: Line, *, indent: str = "") -> str:
    """Return a tree as indented lines."""
    reason = f": {line.reason}" if line.reason else ""
    below = "".join(f"\n{as_text(child, indent=indent + '  ')}" for child in line.children)
    return f"{indent}[{line.status}] {line.label}{reason}{below}"


# What comes first.


def _over(given: Circumstances) -> _Told | None:
    log = given.log
    if log is None:
        return None
    at = _clock(given, log.ended_at_ms or log.updated_at_ms)
    if log.status.is_done:
        by = f"by {log.succeeded_run_id}" if log.succeeded_run_id else f"by the word of {_by_whom(log)}"
        watched = ", and is watched for changes" if log.status is RunStatus.COMPLETED_MONITORING else ""
        return Standing.DONE, f"is done since {at}, {by}{watched}"
    if log.order is not None and log.order.order is Order.SKIP:
        return (
            Standing.SKIPPED,
            f"was skipped by {log.order.by} at {_clock(given, log.order.at_ms)}: {log.order.reason}",
        )
    if log.status is RunStatus.CANCELLED:
        return Standing.CANCELLED, f"was cancelled at {at}{_because(log)}"
    if log.status is RunStatus.FAILED:
        return _failed(given, log, at)
    if log.status in (RunStatus.TRIGGERING, RunStatus.RUNNING):
        since = _clock(given, log.begun_at_ms or log.updated_at_ms)
        return Standing.RUNNING, f"is {log.status.value.lower()} since {since}, attempt {log.attempts} ({log.run_id})"
    return None


def _failed(given: Circumstances, log: RunLog, at: str) -> _Told:
    if log.event is JobEvent.VALIDATION_EXHAUSTED:
        seen = given.evaluation
        rest = f": {_rules_hold(seen)}{_not_holding(given, seen)}" if seen is not None else ""
        return Standing.EXHAUSTED, f"never became ready before its window closed at {at}{rest}"
    kind = f" ({log.category.value})" if log.category is not None else ""
    return Standing.FAILED, f"failed at {at}, attempt {log.attempts}{kind}{_because(log)}"


def _controlled(given: Circumstances) -> _Told | None:
    control = given.control
    state = ControlState.ACTIVE if control is None else control.state_at(_now_ms(given))
    if control is None or state is ControlState.ACTIVE:
        return None
    since = _clock(given, control.since_ms)
    if state is ControlState.TRIPPED:
        return Standing.TRIPPED, (
            f"has not started: {control.failures_in_a_row} failures in a row stopped the pipeline at {since}; "
            "resume it when the cause is mended"
        )
    until = f" until {_clock(given, control.until_ms)}" if control.until_ms is not None else ""
    return Standing.PAUSED, (f"has not started: {control.by} paused the pipeline at {since}{until}: {control.reason}")


def _held(given: Circumstances) -> _Told | None:
    hold = given.log.hold if given.log is not None else None
    if hold is None:
        return None
    at = _clock(given, hold.at_ms)
    return Standing.HELD, f"has not started: {hold.by} holds it since {at} until someone approves it: {hold.reason}"


def _excluded(given: Circumstances) -> _Told | None:
    if not given.due.excluded:
        return None
    return Standing.EXCLUDED, f"has not started and will not: the calendar leaves it out, {given.due.excluded}"


def _evaluated(given: Circumstances) -> _Told | None:
    stored = given.evaluation
    # What was evaluated before someone took the lock was for an earlier attempt.
    if stored is None or (given.lock is not None and given.lock.acquired_at_ms > stored.at_ms):
        return None
    verdict = stored.verdict
    if verdict.result is ReadinessResult.PROCEED:
        at = _clock(given, stored.at_ms)
        return Standing.READY, f"is ready since {at} and about to start: {verdict.reason.removeprefix('ready: ')}"
    closes_at_ms = stored.window_closes_at_ms
    if closes_at_ms is not None and closes_at_ms <= _now_ms(given):
        closed = _clock(given, closes_at_ms)
        said = f"has not started and its window closed at {closed}: {_rules_hold(stored)}{_not_holding(given, stored)}"
        return Standing.EXHAUSTED, said
    if verdict.result is ReadinessResult.ERROR:
        return Standing.ERROR, f"has not started: {verdict.reason}{_what_next(given, stored)}"
    return Standing.WAITING, (
        f"has not started: {_rules_hold(stored)}{_not_holding(given, stored)}{_what_next(given, stored)}"
    )


def _locked(given: Circumstances) -> _Told | None:
    if given.lock is None or given.lock.expires_at * 1000 <= _now_ms(given):
        return None
    since = _clock(given, given.lock.acquired_at_ms)
    until = _clock(given, given.lock.expires_at * 1000)
    return Standing.LOCKED, (
        f"has not started: {given.lock.owner} is at it since {since} and has evaluated nothing yet; "
        f"its lock runs out at {until}"
    )


def _due(given: Circumstances) -> _Told | None:
    due = given.due
    if due.unscheduled:
        return Standing.NOT_DUE, f"has not started: {due.unscheduled}"
    if due.due_at_ms is not None and due.due_at_ms > _now_ms(given):
        by = f" ({due.schedule})" if due.schedule else ""
        return Standing.NOT_DUE, f"has not started: it is not due before {_clock(given, due.due_at_ms)}{by}"
    if due.awaited:
        return Standing.AWAITING, f"has not started: it waits for {due.awaited}"
    return None


def _unasked(given: Circumstances) -> _Told:
    due = given.due
    if due.due_at_ms is not None:
        by = f" ({due.schedule})" if due.schedule else ""
        return Standing.UNASKED, (
            f"has not started though it was due at {_clock(given, due.due_at_ms)}{by}: "
            "nothing was evaluated, nobody holds its lock; is the engine running?"
        )
    return Standing.UNASKED, "has not started: nothing has asked for it, and no schedule names it"


_STEPS: Final[Sequence[Callable[[Circumstances], _Told | None]]] = (
    _over, _controlled, _held, _excluded, _evaluated, _locked, _due, _unasked,
)  # fmt: skip


# Words.


def _rules_hold(stored: StoredEvaluation) -> str:
    counted = stored.evaluation.counted
    if not counted:
        return "it has no rules"
    needed = ", one is needed" if stored.evaluation.mode == ANY else ""
    return f"{stored.evaluation.passed_count} of {len(counted)} rules hold{needed}"


def _not_holding(given: Circumstances, stored: StoredEvaluation) -> str:
    blocking = stored.verdict.blocking
    named = [_blocker(given, blocker) for blocker in blocking[:_NAMED_MAX]]
    more = [f"{len(blocking) - _NAMED_MAX} more"] if len(blocking) > _NAMED_MAX else []
    return "".join(f"; {each}" for each in [*named, *more])


def _blocker(given: Circumstances, blocker: Blocker) -> str:
    if not blocker.since_ms:
        return blocker.reason
    return f"{blocker.reason} since {_clock(given, blocker.since_ms)}"


def _what_next(given: Circumstances, stored: StoredEvaluation) -> str:
    parts = []
    if stored.next_at_ms is not None:
        parts.append(f"next evaluation at {_clock(given, stored.next_at_ms)}")
    if stored.window_closes_at_ms is not None:
        parts.append(f"the window closes at {_clock(given, stored.window_closes_at_ms)}")
    return f"; {', '.join(parts)}" if parts else ""


def _because(log: RunLog) -> str:
    return f": {log.reason}" if log.reason else ""


def _by_whom(log: RunLog) -> str:
    return (log.order.by if log.order is not None else log.by) or "someone"


def _now_ms(given: Circumstances) -> int:
    return int(given.now.timestamp() * 1000)


def _clock(given: Circumstances, ms: int) -> str:
    """Return a moment on the wall of the pipeline: the time alone if it is today, or else with the day."""
    zone: ZoneInfo = zone_of(given.pipeline.timezone)
    moment = datetime.fromtimestamp(ms / 1000, UTC).astimezone(zone)
    is_today = moment.date() == given.now.astimezone(zone).date()
    return f"{moment:%H:%M}" if is_today else f"{moment:%Y-%m-%d %H:%M}"


# The tree.


def _branches(given: Circumstances) -> list[Line]:
    branches = [_due_line(given)]
    control = given.control
    if control is not None and control.state_at(_now_ms(given)) is not ControlState.ACTIVE:
        branches.append(Line(label="control", status=control.state.value, reason=control.reason))
    if given.lock is not None:
        until = _clock(given, given.lock.expires_at * 1000)
        branches.append(Line(label="lock", status="HELD", reason=f"by {given.lock.owner} until {until}"))
    if given.evaluation is not None:
        branches.append(_evaluation_line(given, given.evaluation))
    if given.log is not None and given.log.attempts:
        branches.append(_attempts_line(given, given.log))
    return branches


def _due_line(given: Circumstances) -> Line:
    due = given.due
    if due.excluded:
        return Line(label="calendar", status="EXCLUDED", reason=due.excluded)
    if due.due_at_ms is not None:
        status = "DUE" if due.due_at_ms <= _now_ms(given) else "NOT_DUE"
        reason = _clock(given, due.due_at_ms) + (f" ({due.schedule})" if due.schedule else "")
        return Line(label="due", status=status, reason=reason)
    if due.unscheduled:
        return Line(label="due", status="NOT_DUE", reason=due.unscheduled)
    return Line(label="due", status="AWAITING" if due.awaited else "UNSCHEDULED", reason=due.awaited)


def _evaluation_line(given: Circumstances, stored: StoredEvaluation) -> Line:
    rules = tuple(_rule_line(given, result) for result in stored.evaluation.results)
    required = given.pipeline.readiness.traits
    traits = tuple(
        Line(
            label=f"trait {name}",
            status=stored.traits[name].status.value if name in stored.traits else "MISSING",
            reason=stored.traits[name].reason if name in stored.traits else "no result",
        )
        for name in sorted(required)
    )
    at = _clock(given, stored.at_ms)
    reason = f"{_rules_hold(stored)} at {at}{_what_next(given, stored)}"
    return Line(
        label=f"evaluation {stored.evaluation_id}",
        status=stored.verdict.result.value,
        reason=reason,
        children=rules + traits,
    )


def _rule_line(given: Circumstances, result: RuleResult) -> Line:
    warns = " (warns only)" if result.severity is Severity.WARN else ""
    since = f", since {_clock(given, result.since_ms)}" if result.verdict is not Verdict.PASS else ""
    return Line(
        label=f"{result.name}{warns}",
        status=result.verdict.value,
        reason=f"{result.reason}{since}",
        children=tuple(_rule_line(given, child) for child in result.children),
    )


def _attempts_line(given: Circumstances, log: RunLog) -> Line:
    lines = tuple(
        Line(
            label=f"attempt {attempt.number} ({attempt.run_id})",
            status=attempt.status.value,
            reason=f"{attempt.cause.value}, begun at {_clock(given, attempt.begun_at_ms)}"
            + (f": {attempt.reason}" if attempt.reason else ""),
        )
        for attempt in log.history
    )
    return Line(label="attempts", status=log.status.value, reason=f"{log.attempts} in all", children=lines)
