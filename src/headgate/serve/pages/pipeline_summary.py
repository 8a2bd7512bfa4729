"""The definition of a pipeline in words: when it is due, what it waits for and starts, and what is promised of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import UNSET, Struct, json

from headgate.pipelines.definition.model import Exclusions, Pipeline, Rule, Schedule, Sla, TriggerSpec, Upstream
from headgate.pipelines.enums import CatchUp, Severity
from headgate.pipelines.rules.compiler import needs_of
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.serve.pages.labels import span

_NAMED_MAX: Final = 4
_VALUE_CHARS_MAX: Final = 80
# Which field of its configuration says what a trigger starts, the first that is there.
_STARTED: Final = (
    "workflow", "handler", "command", "dag_id", "job_name", "job_id", "function", "state_machine_arn", "cluster_id",
    "application_id", "url",
)  # fmt: skip
_PERIODS: Final = {
    "same": "of the same period",
    "previous": "of the period before",
    "all": "of all its periods in ours",
}
_CATCH_UP: Final = {
    CatchUp.ALL: "after an outage every one is made up for",
    CatchUp.LATEST: "after an outage the last one is made up for",
    CatchUp.NONE: "after an outage none is made up for",
}


class Fact(Struct, frozen=True):
    """One thing that a definition says, in lines."""

    name: str
    lines: list[str]


def definition_facts(pipeline: Pipeline) -> list[Fact]:
    """Return what a definition says, as far as it says anything."""
    readiness = pipeline.readiness
    rules = [rule_words(rule) for rule in readiness.rules]
    traits = [f"trait {name} ({trait.evaluator})" for name, trait in readiness.traits.items()]
    every = f" of {span(pipeline.every)}" if pipeline.every else ""
    found = [
        Fact("Due", [_schedule(each, pipeline) for each in pipeline.schedules] or ["by a marker or by hand"]),
        Fact("Period", [f"{pipeline.period.value}{every}, {pipeline.timezone}"]),
        Fact("Waits for", [*_mode(readiness.mode, len(rules)), *rules, *traits]),
        Fact("Looks", [f"every {span(readiness.interval)}, for {span(readiness.window)}"] if rules or traits else []),
        Fact("Starts", [] if pipeline.trigger is None else [_trigger(pipeline.trigger)]),
        Fact("Tries", [f"{pipeline.retry.attempts} times, the first again after {span(pipeline.retry.backoff)}"]),
        Fact("Promised", [] if pipeline.sla is None else list(_sla(pipeline.sla, pipeline.timezone))),
        Fact("Reads", list(pipeline.reads)),
        Fact("Writes", list(pipeline.writes)),
        Fact("Not for real", _unreal(pipeline)),
    ]
    return [each for each in found if each.lines]


def rule_words(rule: Rule) -> str:
    """Return what a rule asks for."""
    said = _asked(rule)
    named = f"{rule.name}: {said}" if rule.name else said
    return f"{named} (warns only)" if rule.severity is Severity.WARN else named


def sensor_keys(pipeline: Pipeline) -> list[str]:
    """Return the keys of the sensors that a pipeline is begun by, waits for, or looks at afterwards."""
    begun = {schedule.sensor.key for schedule in pipeline.schedules if schedule.sensor is not None}
    return sorted(begun | needs_of((*pipeline.readiness.rules, *pipeline.post_run.rules)).sensors)


def _asked(rule: Rule) -> str:
    if rule.upstream is not None:
        return _upstream(rule.upstream)
    if rule.dataset is not None:
        return f"dataset {rule.dataset} may be read"
    if rule.trait is not None:
        return f"trait {rule.trait}"
    if rule.not_ is not None:
        return f"not ({rule_words(rule.not_)})"
    for rules, joined in ((rule.all, " and "), (rule.any, " or ")):
        if rules is not None:
            return f"({_joined(map(rule_words, rules), joined)})"
    if rule.n_of is not None:
        return f"{rule.n_of.n} of ({_joined(map(rule_words, rule.n_of.rules), ', ')})"
    return _compared(rule)


def _compared(rule: Rule) -> str:
    subject = f"{rule.key}.{rule.field}" if rule.field else str(rule.key)
    if rule.history is not None:
        return f"{subject} as in the last {rule.history.periods} periods"
    if rule.other is not None:
        return f"{subject} {rule.check} {rule.other}"
    value = "" if rule.value is None else f" {_value(rule.value)}"
    return f"{subject} {rule.check}{value}"


def _schedule(schedule: Schedule, pipeline: Pipeline) -> str:
    zone = schedule.timezone or pipeline.timezone
    said: list[str] = []
    if schedule.cron is not None:
        said.append(f'at "{schedule.cron}" in {zone}, {_CATCH_UP[schedule.catch_up]}')
    if schedule.after is not None:
        said.append(f"not before {schedule.after} in {zone}")
    if schedule.sensor is not None:
        said.append(f"when sensor {schedule.sensor.key} comes")
    said += [f"when it is done: {_upstream(each)}" for each in schedule.upstream]
    if schedule.event is not None:
        said.append(f"on event {schedule.event}")
    if schedule.deadline is not None:
        said.append(f"to be looked at by {schedule.deadline}")
    said += _days(schedule)
    return f"{schedule_id_of(schedule)}: {'; '.join(said) or f'each period as it begins, in {zone}'}"


def _days(schedule: Schedule) -> Iterator[str]:
    left_out = list(_excluded(schedule.exclude))
    if left_out:
        yield f"not on {_joined(left_out, ', ')}"
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
    what = next((_value(trigger.config[name]) for name in _STARTED if name in trigger.config), "")
    asked = "it says itself how it ended" if trigger.callback else f"asked every {span(trigger.check_interval)}"
    return f"{trigger.type} {what}".strip() + f"; {asked}, for {span(trigger.poll_window)}"


def _sla(sla: Sla, timezone: str) -> Iterator[str]:
    zone = sla.timezone or timezone
    offset = "" if sla.day_offset is UNSET or not sla.day_offset else f", {sla.day_offset} d later"
    if sla.deadline is not None:
        yield f"done {_deadline(sla.deadline, zone)}{offset}{', critical' if sla.critical else ''}"
    if sla.evaluation_deadline is not None:
        yield f"ready {_deadline(sla.evaluation_deadline, zone)}"
    if sla.max_duration is not None:
        yield f"done within {span(sla.max_duration)} of its first sensor or its start"
    if sla.expected_duration is not None:
        yield f"takes about {span(sla.expected_duration)}"


def _deadline(text: str, zone: str) -> str:
    if ":" not in text:
        return f"within {text} of when it is due"
    return f"by {text} of the hour after ({zone})" if text.startswith(":") else f"by {text} ({zone})"


def _unreal(pipeline: Pipeline) -> list[str]:
    dry = ["dry run: no job is started"] if pipeline.dry_run else []
    return [*dry, *(["shadow: its rules are told and hold nothing back"] if pipeline.shadow else [])]


def _mode(mode: str, rules: int) -> list[str]:
    return ["one of these"] if mode == "ANY" and rules > 1 else []


def _joined(parts: Iterable[str], by: str) -> str:
    found = list(parts)
    more = [f"{len(found) - _NAMED_MAX} more"] if len(found) > _NAMED_MAX else []
    return by.join([*found[:_NAMED_MAX], *more])


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"
