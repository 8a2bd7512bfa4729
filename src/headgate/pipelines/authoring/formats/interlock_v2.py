"""Second-generation definitions (`pipeline.id`, `schedule`, `validation`, `job`), converted to ours."""

from __future__ import annotations

import re
from typing import Final

from headgate.pipelines.authoring.formats.field_moves import Moves, foreign, placed_like, taken
from headgate.pipelines.authoring.formats.foreign_triggers import trigger_config
from headgate.pipelines.definition.node_edits import node_of, put, set_default
from headgate.pipelines.definition.problems import shown
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import DecodeReport

_RETRIES_MAX: Final = 10
_HOURLY_CRON: Final = re.compile(r"(\S+\s+)?[0-9*/,-]+\s+\*(/1)?\s+\*\s+\*\s+\*")
# Temporary fields for values that are checked before they are placed.
_SCHEDULE: Final = "~schedule"
_TIME: Final = "~time"
_RETRIES: Final = "~retries"
_MOVES: Final = Moves(
    {
        "pipeline.id": "id",
        "pipeline.owner": "owner",
        "pipeline.description": "description",
        "schedule.cron": f"{_SCHEDULE}.cron",
        "schedule.timezone": f"{_SCHEDULE}.timezone",
        "schedule.trigger": f"{_SCHEDULE}.sensor",
        "schedule.exclude.weekends": f"{_SCHEDULE}.exclude.weekends",
        "schedule.exclude.holidays": f"{_SCHEDULE}.exclude.holidays",
        "schedule.exclude.dates": f"{_SCHEDULE}.exclude.dates",
        "schedule.calendar": f"{_SCHEDULE}.exclude.calendar",
        "schedule.include": f"{_SCHEDULE}.include",
        "schedule.time": _TIME,
        "schedule.evaluation.window": "readiness.window",
        "schedule.evaluation.interval": "readiness.interval",
        "sla.deadline": "sla.deadline",
        "sla.expectedDuration": "sla.expected_duration",
        "sla.maxDuration": "sla.max_duration",
        "sla.timezone": "sla.timezone",
        "sla.critical": "sla.critical",
        "validation.trigger": "readiness.mode",
        "validation.rules": "readiness.rules",
        "job.type": "trigger.type",
        "job.config": "trigger.config",
        "job.maxRetries": _RETRIES,
        "job.maxCodeRetries": "retry.permanent_retries",
        "job.maxDriftReruns": "budgets.drift",
        "job.maxManualReruns": "budgets.manual",
        "job.jobPollWindowSeconds": "trigger.poll_window",
        "postRun.rules": "post_run.rules",
        "postRun.driftField": "post_run.drift_field",
        "postRun.driftThreshold": "post_run.drift_threshold",
        "postRun.sensorTimeout": "post_run.sensor_timeout",
        "dryRun": "dry_run",
    },
    {
        "postRun.evaluation": "it has had no effect since rules are looked at when a sensor arrives; "
        "leave it out, and say how long to wait in postRun.sensorTimeout",
    },
)


def from_newer(document: Node, reading: DecodeReport) -> Node:
    """Convert a second-generation definition, with its defaults where they differ."""
    ours = _MOVES.apply(document, reading)
    head = document.at("pipeline") or document
    if ours.at("id") is None:
        reading.refuse_missing(head, ("id",), "id", allowed="give the id of the pipeline")
    for name, original in (("trigger", "job"), ("sla", "sla"), ("post_run", "postRun"), ("retry", "job")):
        placed_like(ours, name, document.at(original))
    _schedule(ours, document, reading)
    _job(ours, document, reading)
    return ours


def _schedule(ours: Node, document: Node, reading: DecodeReport) -> None:
    schedule = taken(ours, _SCHEDULE)
    time = taken(ours, _TIME)
    zone = document.at("schedule", "timezone")
    if zone is not None and zone.value is not None:
        # Run dates are days of that zone; deadlines are in UTC by default.
        put(ours, "timezone", zone)
        if ours.at("sla") is not None:
            set_default(ours.mapping()["sla"], "timezone", "UTC")
    if schedule is None:
        return
    original = document.at("schedule") or document
    schedule.line, schedule.column, schedule.path = original.line, original.column, original.path
    cron, sensor, include = (schedule.at(name) for name in ("cron", "sensor", "include"))
    _holidays(schedule, reading)
    if cron is not None and include is not None:
        fact = "schedule.cron and schedule.include exclude each other"
        reading.refuse(include, foreign("schedule.include"), fact, allowed="give one of them")
    if time is not None:
        # Without another start condition it is the start time; otherwise the latest start.
        put(schedule, "after" if cron is None and sensor is None else "deadline", time)
    if cron is None and sensor is None and include is None:
        # Only a cron, a sensor or dates start a run; a time zone alone does not make it due every day.
        return
    set_default(schedule, "name", "cron" if cron is not None else "stream")
    put(ours, "schedules", node_of([schedule], schedule, "schedule"))
    if _is_hourly(ours, schedule):
        set_default(ours, "period", "hourly")


def _holidays(schedule: Node, reading: DecodeReport) -> None:
    exclude = schedule.at("exclude")
    found = None if exclude is None else exclude.at("holidays")
    if exclude is None or found is None or not isinstance(found.value, bool):
        return
    if found.value:
        fact = "it does not say whose holidays"
        allowed = 'name a country ("DE", "US"), a part of one ("DE-BY") or a market ("NYSE")'
        reading.refuse(found, foreign("schedule.exclude.holidays"), fact, allowed=allowed)
    del exclude.mapping()["holidays"]


def _is_hourly(ours: Node, schedule: Node) -> bool:
    """Whether its runs are hourly, which that format does not state: by its deadlines and cron expression."""
    deadlines = (ours.at("sla", "deadline"), schedule.at("sensor", "deadline"))
    if any(node is not None and isinstance(node.value, str) and node.value.startswith(":") for node in deadlines):
        return True
    cron = schedule.at("cron")
    text = cron.value if cron is not None and isinstance(cron.value, str) else ""
    return text.strip() == "@hourly" or _HOURLY_CRON.fullmatch(text.strip()) is not None


def _job(ours: Node, document: Node, reading: DecodeReport) -> None:
    retries = taken(ours, _RETRIES)
    if document.at("job") is None:
        return
    if retries is None:
        put(ours, "retry.attempts", 1, document.at("job"))
    elif type(retries.value) is not int:
        put(ours, "retry.attempts", retries)
    elif 0 <= retries.value <= _RETRIES_MAX:
        put(ours, "retry.attempts", node_of(retries.value + 1, retries))
    else:
        fact, allowed = f"{shown(retries.value)} is out of bounds", f"use 0 to {_RETRIES_MAX}"
        reading.refuse(retries, ("retry", "attempts"), fact, allowed=allowed)
    retry = ours.at("retry")
    if retry is not None:
        set_default(retry, "permanent_retries", 1)
    trigger = ours.at("trigger")
    if trigger is not None:
        period = ours.at("period")
        is_hourly = period is not None and period.value == "hourly"
        kind = trigger.at("type")
        config = trigger_config(trigger, trigger.at("config"), "" if kind is None else str(kind.value))
        _dates(config, "" if kind is None else str(kind.value), is_hourly=is_hourly)
        if config.mapping():
            put(ours, "trigger.config", config)


def _dates(config: Node, kind: str, *, is_hourly: bool) -> None:
    """Pass the date to the job, as that generation does by default."""
    dates = {"par_day": "${day_compact}"} | ({"par_hour": "${hour}"} if is_hourly else {})
    if kind == "glue":
        set_default(config, "arguments", {})
        arguments = config.at("arguments")
        for name, value in dates.items():
            if arguments is not None:
                set_default(arguments, f"--{name}", value)
    elif kind == "http":
        set_default(config, "body", dates)
