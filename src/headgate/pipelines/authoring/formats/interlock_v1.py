"""First-generation definitions (`name`, `archetype`, `traits`, typed trigger blocks), converted to ours."""

from __future__ import annotations

import re
from typing import Final

from headgate.pipelines.authoring.formats.field_moves import Moves, foreign, placed_like, taken
from headgate.pipelines.authoring.formats.foreign_triggers import trigger_config, trigger_type
from headgate.pipelines.definition.node_edits import mapping_at, node_of, put, set_default
from headgate.pipelines.definition.problems import one_of
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import DecodeReport

# Defaults of that generation: every half minute, for a day.
_INTERVAL_SECONDS: Final = 30
_WINDOW_SECONDS: Final = 86_400
_TIME: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_BLOCKS: Final = ("http", "command", "airflow", "glue", "emr", "emr_serverless", "step_function", "databricks")
_WATCHED: Final = "~watched"
_TIMEOUT: Final = "~timeout"
_EXCLUDE: Final = "~exclude"
_BLOCK: Final = "~block"
_MOVES: Final = Moves(
    {
        "name": "id",
        "archetype": "archetype",
        "tier": "tier",
        "traits": "readiness.traits",
        "trigger.type": "trigger.type",
        "trigger.pollInterval": "trigger.check_interval",
        **{f"trigger.{block}": f"{_BLOCK}.{block}" for block in _BLOCKS},
        "retry.maxAttempts": "retry.attempts",
        "retry.backoffSeconds": "retry.backoff",
        "retry.backoffMultiplier": "retry.multiplier",
        "retry.retryableFailures": "retry.categories",
        "sla.evaluationDeadline": "sla.evaluation_deadline",
        "sla.completionDeadline": "sla.deadline",
        "sla.validationTimeout": _TIMEOUT,
        "sla.atRiskLeadTime": "sla.at_risk",
        "sla.timezone": "sla.timezone",
        "watch.enabled": _WATCHED,
        "watch.interval": "readiness.interval",
        "watch.monitoring.enabled": "post_run.monitoring.enabled",
        "watch.monitoring.duration": "post_run.monitoring.duration",
        "schedules": "schedules",
        "exclusions": _EXCLUDE,
        "cascade.delayBetween": "cascade.delay_between",
        "quarantine.blocking": "quarantine.blocking",
    }
)


def from_older(document: Node, reading: DecodeReport) -> Node:
    """Convert a first-generation definition, with its defaults where they differ."""
    ours = _MOVES.apply(document, reading)
    for name in ("trigger", "sla", "retry"):
        placed_like(ours, name, document.at(name))
    _evaluators(ours)
    _trigger(ours, document, reading)
    _schedules(ours, document, reading)
    _sla(ours, reading)
    readiness = mapping_at(ours, "readiness")
    if readiness is not None:
        set_default(readiness, "interval", _INTERVAL_SECONDS)
        set_default(readiness, "window", _WINDOW_SECONDS)
    categories = ours.at("retry", "categories")
    if categories is not None and categories.value == []:
        # An absent list means the defaults there.
        del ours.mapping()["retry"].mapping()["categories"]
    return ours


def _evaluators(ours: Node) -> None:
    """Mark evaluators that are neither built in nor URLs as commands."""
    traits = ours.at("readiness", "traits")
    for trait in () if traits is None else traits.mapping().values():
        found = trait.at("evaluator")
        if (
            found is not None
            and isinstance(found.value, str)
            and not re.match(r"builtin:|https?://|push$", found.value)
        ):
            trait.mapping()["evaluator"] = node_of(f"command:{found.value}", found)


def _trigger(ours: Node, document: Node, reading: DecodeReport) -> None:
    blocks = taken(ours, _BLOCK)
    trigger = ours.at("trigger")
    if trigger is None and blocks is not None:
        trigger = mapping_at(ours, "trigger")
        placed_like(ours, "trigger", document.at("trigger"))
    if trigger is None:
        return
    kind = trigger.at("type")
    if kind is None or not isinstance(kind.value, str):
        return
    type_name = trigger_type(kind.value)
    trigger.mapping()["type"] = node_of(type_name, kind)
    for name, block in (blocks.mapping() if blocks is not None else {}).items():
        if trigger_type(name) != type_name:
            fact = f"the trigger is of type {kind.value}: this would not be used"
            reading.refuse(block, foreign(f"trigger.{name}"), fact, allowed="leave it out")
        else:
            # A command may be given as text alone.
            given = node_of({"command": block}, block) if isinstance(block.value, str | list) else block
            put(trigger, "config", trigger_config(trigger, given, type_name))


def _schedules(ours: Node, document: Node, reading: DecodeReport) -> None:
    watched, exclude = taken(ours, _WATCHED), taken(ours, _EXCLUDE)
    zone = document.at("sla", "timezone")
    if zone is not None and zone.value is not None:
        put(ours, "timezone", zone)
    if watched is not None and watched.value is False:
        given = taken(ours, "schedules")
        if given is not None:
            fact = (
                "watch.enabled is false, so that only markers and people begin runs, and schedules would have no effect"
            )
            reading.refuse(given, foreign("schedules"), fact, allowed="leave one of them out")
        return
    if watched is not None and not isinstance(watched.value, bool):
        reading.refuse(
            watched, foreign("watch.enabled"), "it is neither true nor false", allowed=one_of(("true", "false"))
        )
    schedules = ours.at("schedules")
    if schedules is None or schedules.value == []:
        schedules = node_of([{"name": "daily"}], ours, "schedules")
        put(ours, "schedules", schedules)
    for schedule in schedules.value if isinstance(schedules.value, list) else ():
        if exclude is not None:
            set_default(schedule, "exclude", exclude)


def _sla(ours: Node, reading: DecodeReport) -> None:
    timeout = taken(ours, _TIMEOUT)
    if timeout is not None:
        put(ours, "readiness.timeout", _timeout(timeout, ours, reading))
    sla = ours.at("sla")
    if sla is not None and not sla.mapping().keys() & {"deadline", "evaluation_deadline"}:
        if sla.at("at_risk") is not None:
            fact = "there is no deadline to warn of"
            reading.refuse(sla.mapping()["at_risk"], foreign("sla.atRiskLeadTime"), fact, allowed="give one")
        # Its zone and time-out have been moved.
        taken(ours, "sla")


def _timeout(timeout: Node, ours: Node, reading: DecodeReport) -> Node:
    """Convert a time-out given as a time of day to seconds from the start of the run."""
    match = _TIME.fullmatch(timeout.value) if isinstance(timeout.value, str) else None
    if match is None:
        return timeout
    schedules = ours.at("schedules")
    listed = schedules.value if schedules is not None and isinstance(schedules.value, list) else []
    starts = {_minutes(schedule.at("after")) for schedule in listed} or {0}
    minutes = int(match.group(1)) * 60 + int(match.group(2))
    start = starts.pop()
    if starts or minutes <= start:
        fact = "as a time of the day it must be later than `after`, the same for all schedules"
        reading.refuse(timeout, foreign("sla.validationTimeout"), fact, allowed='give a duration, such as "2h"')
    return node_of(max(60, 60 * (minutes - start)), timeout)


def _minutes(after: Node | None) -> int:
    match = _TIME.fullmatch(after.value) if after is not None and isinstance(after.value, str) else None
    return 0 if match is None else int(match.group(1)) * 60 + int(match.group(2))
