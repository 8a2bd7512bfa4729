"""Pipeline summary: a definition in words (schedule, readiness, trigger, retries, SLA)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import UNSET, Struct, json

from headgate.pipelines.definition.model import (
    Exclusions,
    Pipeline,
    RetryPolicy,
    Rule,
    Schedule,
    Sla,
    TriggerSpec,
    Upstream,
)
from headgate.pipelines.enums import CatchUp, SensorPeriod, Severity
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.serve.pages.labels import span

_NAMED_MAX: Final = 4
_VALUE_CHARS_MAX: Final = 80
# Configuration fields that identify the target of a trigger, in order of preference.
_TARGET_FIELDS: Final = (
    "workflow", "handler", "command", "dag_id", "job_name", "job_id", "function", "state_machine_arn", "cluster_id",
    "application_id", "url",
)  # fmt: skip
_PERIODS: Final = {
    "same": "of the same period",
    "previous": "of the previous period",
    "all": "of all its periods within ours",
}
_CATCH_UP: Final = {
    CatchUp.ALL: "catches up all missed slots",
    CatchUp.LATEST: "catches up the last missed slot",
    CatchUp.NONE: "does not catch up",
}


class Fact(Struct, frozen=True):
    """One fact of a definition, in lines."""

    name: str
    lines: list[str]


def definition_facts(pipeline: Pipeline) -> list[Fact]:
    """Return the facts of a definition; empty ones are omitted."""
    readiness = pipeline.readiness
    rules = [rule_text(rule) for rule in readiness.rules]
    traits = [f"trait {name} ({trait.evaluator})" for name, trait in readiness.traits.items()]
    every = f" of {span(pipeline.every)}" if pipeline.every else ""
    facts = [
        Fact("Schedule", [_schedule(each, pipeline) for each in pipeline.schedules] or ["by marker or manually"]),
        Fact("Period", [f"{pipeline.period.value}{every}, {pipeline.timezone}"]),
        Fact("Waits for", [*_mode(readiness.mode, len(rules)), *rules, *traits]),
        Fact(
            "Evaluation", [f"every {span(readiness.interval)}, for {span(readiness.window)}"] if rules or traits else []
        ),
        Fact("Trigger", [] if pipeline.trigger is None else [_trigger(pipeline.trigger)]),
        Fact("Retries", [_retries(pipeline.retry)]),
        Fact("SLA", [] if pipeline.sla is None else list(_sla(pipeline.sla, pipeline.timezone))),
        Fact("Reads", list(pipeline.reads)),
        Fact("Writes", list(pipeline.writes)),
        Fact("Mode", _modes(pipeline)),
    ]
    return [each for each in facts if each.lines]


def rule_text(rule: Rule) -> str:
    """Return a rule in words."""
    condition = _condition(rule)
    named = f"{rule.name}: {condition}" if rule.name else condition
    return f"{named} (warning only)" if rule.severity is Severity.WARN else named


def _condition(rule: Rule) -> str:
    if rule.upstream is not None:
        return _upstream(rule.upstream)
    if rule.dataset is not None:
        return f"dataset {rule.dataset} may be read"
    if rule.trait is not None:
        return f"trait {rule.trait}"
    if rule.not_ is not None:
        return f"not ({rule_text(rule.not_)})"
    for rules, joined in ((rule.all, " and "), (rule.any, " or ")):
        if rules is not None:
            return f"({_joined(map(rule_text, rules), joined)})"
    if rule.n_of is not None:
        return f"{rule.n_of.n} of ({_joined(map(rule_text, rule.n_of.rules), ', ')})"
    return _compared(rule)


def _compared(rule: Rule) -> str:
    subject = f"{rule.key}.{rule.field}" if rule.field else str(rule.key)
    if rule.history is not None:
        return f"{subject} as in the last {rule.history.periods} periods"
    if rule.other is not None:
        return f"{subject} {rule.check} {rule.other}"
    value = "" if rule.value is None else f" {_value(rule.value)}"
    of_any = ", of any period" if rule.period is SensorPeriod.ANY else ""
    return f"{subject} {rule.check}{value}{of_any}"


def _retries(retry: RetryPolicy) -> str:
    backoff = f"first backoff {span(retry.backoff)}"
    return "1 attempt, no retry" if retry.attempts == 1 else f"{retry.attempts} attempts, {backoff}"


def _schedule(schedule: Schedule, pipeline: Pipeline) -> str:
    zone = schedule.timezone or pipeline.timezone
    parts: list[str] = []
    if schedule.cron is not None:
        parts.append(f'at "{schedule.cron}" in {zone}, {_CATCH_UP[schedule.catch_up]}')
    if schedule.after is not None:
        parts.append(f"not before {schedule.after} in {zone}")
    if schedule.sensor is not None:
        parts.append(f"when sensor {schedule.sensor.key} arrives")
    parts += [f"after {_upstream(each)}" for each in schedule.upstream]
    if schedule.event is not None:
        parts.append(f"on event {schedule.event}")
    if schedule.deadline is not None:
        parts.append(f"evaluated by {schedule.deadline}")
    parts += _days(schedule)
    return f"{schedule_id_of(schedule)}: {'; '.join(parts) or f'at the start of each period, in {zone}'}"


def _days(schedule: Schedule) -> Iterator[str]:
    excluded = list(_excluded(schedule.exclude))
    if excluded:
        yield f"not on {_joined(excluded, ', ')}"
    if schedule.include.dates:
        yield f"only on {_joined(schedule.include.dates, ', ')}"
    if schedule.include.business_days:
        yield f"only on business days {_joined(map(str, schedule.include.business_days), ', ')} of a month"


def _excluded(exclude: Exclusions) -> Iterator[str]:
    if exclude.weekends:
        yield "weekends"
    if exclude.holidays is not None:
        yield f"holidays of {exclude.holidays}"
    if exclude.calendar is not None:
        yield f"days of calendar {exclude.calendar}"
    yield from (*exclude.days, *exclude.dates)


def _upstream(upstream: Upstream) -> str:
    schedule = f"/{upstream.schedule}" if upstream.schedule else ""
    missing = f", {upstream.missing_max} may be missing" if upstream.missing_max else ""
    return f"{upstream.pipeline}{schedule} {_PERIODS.get(upstream.periods, upstream.periods)}{missing}"


def _trigger(trigger: TriggerSpec) -> str:
    what = next((_value(trigger.config[name]) for name in _TARGET_FIELDS if name in trigger.config), "")
    polling = "callback" if trigger.callback else f"polled every {span(trigger.check_interval)}"
    return f"{trigger.type} {what}".strip() + f"; {polling}, for {span(trigger.poll_window)}"


def _sla(sla: Sla, timezone: str) -> Iterator[str]:
    zone = sla.timezone or timezone
    offset = "" if sla.day_offset is UNSET or not sla.day_offset else f", {sla.day_offset} d later"
    if sla.deadline is not None:
        yield f"done {_deadline(sla.deadline, zone)}{offset}{', critical' if sla.critical else ''}"
    if sla.evaluation_deadline is not None:
        yield f"ready {_deadline(sla.evaluation_deadline, zone)}"
    if sla.max_duration is not None:
        yield f"done within {span(sla.max_duration)} of the first sensor or the start"
    if sla.expected_duration is not None:
        yield f"takes about {span(sla.expected_duration)}"


def _deadline(text: str, zone: str) -> str:
    if ":" not in text:
        return f"within {text} of the due time"
    return f"by {text} of the hour after ({zone})" if text.startswith(":") else f"by {text} ({zone})"


def _modes(pipeline: Pipeline) -> list[str]:
    dry = ["dry run: no job is started"] if pipeline.dry_run else []
    return [*dry, *(["shadow: rules are evaluated but do not block"] if pipeline.shadow else [])]


def _mode(mode: str, rules: int) -> list[str]:
    return ["any of these"] if mode == "ANY" and rules > 1 else []


def _joined(parts: Iterable[str], by: str) -> str:
    names = list(parts)
    more = [f"{len(names) - _NAMED_MAX} more"] if len(names) > _NAMED_MAX else []
    return by.join([*names[:_NAMED_MAX], *more])


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"
