"""The first generation's definitions (`name`, `archetype`, `traits`, typed trigger blocks) in our words."""

from __future__ import annotations

import re
from typing import Final

from headgate.pipelines.authoring.formats.field_moves import Moves, foreign, placed_like, taken
from headgate.pipelines.authoring.formats.foreign_triggers import trigger_config, trigger_type
from headgate.pipelines.definition.node_edits import give, made, mapping_at, put
from headgate.pipelines.definition.problems import one_of
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import Reading

# That generation looks every half minute, all day long, unless it is told otherwise.
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


def from_older(document: Node, reading: Reading) -> Node:
    """Return a definition of the first generation in ours, with its defaults where they differ."""
    ours = _MOVES.apply(document, reading)
    for name in ("trigger", "sla", "retry"):
        placed_like(ours, name, document.at(name))
    _evaluators(ours)
    _trigger(ours, document, reading)
    _schedules(ours, document, reading)
    _sla(ours, reading)
    readiness = mapping_at(ours, "readiness")
    if readiness is not None:
        give(readiness, "interval", _INTERVAL_SECONDS)
        give(readiness, "window", _WINDOW_SECONDS)
    categories = ours.at("retry", "categories")
    if categories is not None and categories.value == []:
        # None at all means the usual ones there.
        del ours.mapping()["retry"].mapping()["categories"]
    return ours


def _evaluators(ours: Node) -> None:
    """Say of an evaluator that is neither built in nor a URL that it is a program."""
    traits = ours.at("readiness", "traits")
    for trait in () if traits is None else traits.mapping().values():
        found = trait.at("evaluator")
        if (
            found is not None
            and isinstance(found.value, str)
            and not re.match(r"builtin:|https?://|push$", found.value)
        ):
            trait.mapping()["evaluator"] = made(f"command:{found.value}", found)


def _trigger(ours: Node, document: Node, reading: Reading) -> None:
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
    trigger.mapping()["type"] = made(type_name, kind)
    for name, block in (blocks.mapping() if blocks is not None else {}).items():
        if trigger_type(name) != type_name:
            fact = f"the trigger is of type {kind.value}: this would not be used"
            reading.refuse(block, foreign(f"trigger.{name}"), fact, allowed="leave it out")
        else:
            # A command may be given as its text alone.
            given = made({"command": block}, block) if isinstance(block.value, str | list) else block
            put(trigger, "config", trigger_config(trigger, given, type_name))


def _schedules(ours: Node, document: Node, reading: Reading) -> None:
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
        schedules = made([{"name": "daily"}], ours, "schedules")
        put(ours, "schedules", schedules)
    for schedule in schedules.value if isinstance(schedules.value, list) else ():
        if exclude is not None:
            give(schedule, "exclude", exclude)


def _sla(ours: Node, reading: Reading) -> None:
    timeout = taken(ours, _TIMEOUT)
    if timeout is not None:
        put(ours, "readiness.timeout", _timeout(timeout, ours, reading))
    sla = ours.at("sla")
    if sla is not None and not sla.mapping().keys() & {"deadline", "evaluation_deadline"}:
        if sla.at("at_risk") is not None:
            fact = "there is no deadline to warn of"
            reading.refuse(sla.mapping()["at_risk"], foreign("sla.atRiskLeadTime"), fact, allowed="give one")
        # Its zone and its time-out have found their places.
        taken(ours, "sla")


def _timeout(timeout: Node, ours: Node, reading: Reading) -> Node:
    """Return a time-out that is given as a time of the day as the seconds from the start of the run."""
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
    return made(max(60, 60 * (minutes - start)), timeout)


def _minutes(after: Node | None) -> int:
    match = _TIME.fullmatch(after.value) if after is not None and isinstance(after.value, str) else None
    return 0 if match is None else int(match.group(1)) * 60 + int(match.group(2))
