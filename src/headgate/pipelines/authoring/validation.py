"""Validation: checks of a definition as a whole: invalid combinations of fields, and warnings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from headgate.durable.model.duration import Seconds
from headgate.errors import UserError
from headgate.pipelines.authoring.rule_checks import RuleChecks
from headgate.pipelines.authoring.schedule_checks import check_deadline, check_schedules, check_zone
from headgate.pipelines.definition.bounds import UPSTREAMS_MAX, WRITES_MAX, bounds_text, excesses
from headgate.pipelines.definition.model import POLL_WINDOW_SECONDS, Period, Pipeline, Sla, Trait, TriggerSpec
from headgate.pipelines.definition.problems import nearest, one_of, shown
from headgate.pipelines.definition.typed_decoder import DecodeReport, Path
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.dependencies import upstreams_of
from headgate.triggers.config import ConfigError, FieldProblem
from headgate.triggers.plugins import registered_types
from headgate.triggers.templates import CALLBACK_NAMES

ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,253}[a-z0-9]")
TRIGGER_TYPES: Final = (
    "command", "http", "airflow", "glue", "emr", "emr-serverless", "step-function", "databricks", "lambda", "workflow",
    "fan-out",
)  # fmt: skip
# These send the callback URL and its token by themselves.
_CALLING_BACK: Final = ("http", "lambda")
MODES: Final = ("ALL", "ANY")
TRAIT_RULES: Final = ("all-required-pass", "majority-pass")
BUILTIN: Final = "builtin:"
# The built-in evaluators; the evaluator registry decides which are available.
BUILTINS: Final = (
    "upstream-job-log", "sensor-threshold", "sensor-freshness", "window-completeness", "data-quality", "file-exists",
    "sql-count", "s3-object",
)  # fmt: skip
PUSH: Final = "push"
_EVALUATOR: Final = re.compile(r"(https?://|command:\s*|plugin:|probe:)\S")
_TRAIT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
# An example date for each kind of period.
_DATE_EXAMPLES: Final = {
    Period.HOURLY: "2026-03-03T07",
    Period.DAILY: "2026-03-03",
    Period.WEEKLY: "2026-W10",
    Period.MONTHLY: "2026-03",
    Period.CUSTOM: "2026-03-03T07:15",
}


def trigger_types() -> tuple[str, ...]:
    """Return the types that a trigger may have: the built-in ones, and those of installed packages."""
    return (*TRIGGER_TYPES, *(type for type in registered_types() if type not in TRIGGER_TYPES))


class TriggerCheck(Protocol):
    """Checks whether a trigger can be started; see the trigger registry."""

    def __call__(self, type: str, config: dict[str, Any], *, date_example: str | None = None) -> None:
        """Raise `DefinitionError` if it cannot, naming the field and the allowed values."""


# Returns a problem for each file that a trigger's config names and that does not exist.
MissingFiles = Callable[[str, dict[str, Any]], Sequence[FieldProblem]]
# Checks whether a trait can be evaluated; see `Evaluators.check`.
TraitCheck = Callable[[Trait], None]


class DefinitionChecks:
    """Checks one definition. None for a set of names: unknown, and not checked."""

    def __init__(  # noqa: PLR0913 - one set of names for each kind that a definition refers to
        self,
        pipeline: Pipeline,
        reading: DecodeReport,
        *,
        archetypes: Collection[str] | None = None,
        calendars: Calendars | None = None,
        check_trigger: TriggerCheck | None = None,
        missing_files: MissingFiles | None = None,
        check_trait: TraitCheck | None = None,
        is_stored: bool = False,
        pools: Mapping[str, int] | None = None,
        probes: Collection[str] | None = None,
    ) -> None:
        """`is_stored`: the definition is in use already, so that checks newer than it are warnings."""
        self._is_stored = is_stored
        self._pipeline = pipeline
        self._reading = reading
        self._archetypes = archetypes
        self._calendars = calendars
        self._check_trigger_config = check_trigger
        self._missing_files = missing_files
        self._check_evaluator_of = check_trait
        self._pools = pools
        self._probes = probes

    def check(self) -> None:
        """Report all problems."""
        pipeline, reading = self._pipeline, self._reading
        for excess in excesses(pipeline):
            shown_value = f"{excess.value:g}{' s' if isinstance(excess.value, Seconds) else ''}"
            reading.refuse_read(excess.path, f"{shown_value} is out of bounds", allowed=bounds_text(excess))
        are_traits_known = pipeline.archetype is None or pipeline.archetype in (self._archetypes or ())
        rules = RuleChecks(pipeline, pipeline.readiness.traits if are_traits_known else None, reading, self._probes)
        for name, trait in pipeline.readiness.traits.items():
            rules.check_probe(trait.evaluator, ("readiness", "traits", name, "evaluator"))
        self._check_identity()
        check_schedules(pipeline, rules, self._calendars, reading, is_stored=self._is_stored)
        self._check_readiness()
        rules.check_all(pipeline.readiness.rules, ("readiness", "rules"))
        rules.check_all(pipeline.post_run.rules, ("post_run", "rules"))
        self._check_trigger()
        self._check_pool()
        self._check_retry()
        if pipeline.sla is not None:
            self._check_sla(pipeline.sla)
        self._check_upstreams()
        self._check_texts()
        self._warn()

    def _check_identity(self) -> None:
        pipeline, report = self._pipeline, self._reading.report
        if not ID.fullmatch(pipeline.id):
            allowed = "use 2 to 255 lower-case letters, digits, '.', '_' and '-', with a letter or digit at both ends"
            report(("id",), f"{shown(pipeline.id)} cannot be an id", allowed=allowed)
        check_zone(pipeline.timezone, ("timezone",), self._reading)
        if pipeline.archetype is not None and self._archetypes is not None:
            known = sorted(self._archetypes)
            if pipeline.archetype not in known:
                hint = nearest(pipeline.archetype, known)
                fact = f"there is no archetype {shown(pipeline.archetype)}"
                report(("archetype",), fact, suggestion=hint, allowed=one_of(known))
        if (pipeline.period is Period.CUSTOM) != (pipeline.every is not None):
            allowed = 'a custom period has a length, such as every: "15m"; others have none'
            where = "every" if pipeline.every is not None else "period"
            report((where,), f"period is {pipeline.period.value}", allowed=allowed, involved=(("period",), ("every",)))
        if pipeline.every is not None and pipeline.every % 60:
            report(("every",), f"{pipeline.every:g} s is no whole number of minutes", allowed="use whole minutes")

    def _check_readiness(self) -> None:
        readiness, report = self._pipeline.readiness, self._reading.report
        path: Path = ("readiness",)
        if readiness.mode.upper() not in MODES:
            report((*path, "mode"), f"{shown(readiness.mode)} is not known", allowed=one_of(MODES))
        elif readiness.mode.upper() == "ANY" and not readiness.rules:
            report((*path, "mode"), "any of no rules can never be: it would never be ready", allowed="give rules")
        if readiness.trait_rule not in TRAIT_RULES:
            hint = nearest(readiness.trait_rule, TRAIT_RULES)
            fact = f"{shown(readiness.trait_rule)} is not known"
            report((*path, "trait_rule"), fact, suggestion=hint, allowed=one_of(TRAIT_RULES))
        if readiness.window < readiness.interval:
            fact = f"the window of {readiness.window:g} s is over before the interval of {readiness.interval:g} s is"
            where = "window" if self._reading.is_given((*path, "window")) else "interval"
            involved = ((*path, "window"), (*path, "interval"))
            report((*path, where), fact, allowed="make the window at least as long", involved=involved)
        for name, trait in readiness.traits.items():
            self._check_trait(name, trait)
        self._check_threshold()

    def _check_threshold(self) -> None:
        readiness = self._pipeline.readiness
        if readiness.threshold is None:
            return
        required = sum(trait.required for trait in readiness.traits.values())
        path: Path = ("readiness", "threshold")
        involved: tuple[Path, ...] = (("readiness", "traits"), ("readiness", "trait_rule"))
        if readiness.trait_rule != "majority-pass":
            self._reading.report(
                path, "it goes with trait_rule majority-pass", allowed="leave it out", involved=involved
            )
        elif not 1 <= readiness.threshold <= required:
            fact = f"{readiness.threshold} of {required} required traits can never be"
            self._reading.report(path, fact, allowed=f"use 1 to {required}", involved=involved)

    def _check_trait(self, name: str, trait: Trait) -> None:
        path: Path = ("readiness", "traits", name)
        report = self._reading.report
        if not _TRAIT_NAME.fullmatch(name):
            allowed = "use up to 127 letters, digits, '.', '_' and '-', beginning with a letter or digit"
            report(path, f"{shown(name)} cannot be the name of a trait", allowed=allowed)
        if self._check_evaluator_of is None:
            self._check_evaluator(trait.evaluator, (*path, "evaluator"))
            return
        try:
            self._check_evaluator_of(trait)
        except UserError as exc:
            report((*path, "evaluator"), str(exc).removeprefix("evaluator "), involved=((*path, "timeout"),))

    def _check_evaluator(self, evaluator: str, path: Path) -> None:
        """Report an evaluator reference with an invalid form."""
        report = self._reading.report
        if evaluator.startswith(BUILTIN):
            wanted = evaluator.removeprefix(BUILTIN)
            if wanted not in BUILTINS:
                report(path, f"there is no {evaluator}", suggestion=nearest(wanted, BUILTINS), allowed=one_of(BUILTINS))
        elif evaluator != PUSH and not _EVALUATOR.match(evaluator):
            allowed = 'use "builtin:NAME", "plugin:NAME", "probe:NAME", "https://…", "command:…" or "push"'
            report(path, f"{shown(evaluator)} is no evaluator", allowed=allowed)

    def _check_trigger(self) -> None:
        pipeline, report = self._pipeline, self._reading.report
        trigger = pipeline.trigger
        if trigger is None:
            if pipeline.dry_run:
                report(
                    ("dry_run",), "a dry run says what would be started, and there is no trigger", allowed="give one"
                )
            return
        types = trigger_types()
        if trigger.type not in types:
            hint = nearest(trigger.type, types)
            fact = f"{shown(trigger.type)} is no trigger"
            if trigger.type in ("cron", "schedule"):
                fact += ": when it is due belongs under schedules"
            report(("trigger", "type"), fact, suggestion=hint, allowed=one_of(types))
        elif self._check_trigger_config is not None:
            try:
                example = _DATE_EXAMPLES[pipeline.period]
                self._check_trigger_config(trigger.type, trigger.config, date_example=example)
                if self._missing_files is not None:
                    self._report_config(trigger, self._missing_files(trigger.type, trigger.config), warning=True)
            except ConfigError as exc:
                self._report_config(trigger, exc.problems)
            except UserError as exc:
                fact = str(exc).removeprefix(f"trigger {trigger.type}: ")
                where: Path = ("trigger", "config") if trigger.config else ("trigger",)
                report(where, fact, involved=(("trigger", "type"),))
        self._check_callback(trigger)
        if trigger.poll_window and trigger.check_interval > trigger.poll_window:
            fact = f"the job would not be asked once in {trigger.poll_window:g} s"
            involved: tuple[Path, ...] = (("trigger", "check_interval"), ("trigger", "poll_window"))
            allowed = "use at most the poll_window"
            report(("trigger", "check_interval"), fact, allowed=allowed, involved=involved)

    def _check_pool(self) -> None:
        pipeline, report = self._pipeline, self._reading.report
        if not pipeline.pool:
            if self._reading.is_given(("slots",)):
                report(("slots",), "it names no pool", allowed="give pool too, or leave slots out")
            return
        if self._pools is None:
            return
        size = self._pools.get(pipeline.pool)
        if size is None:
            known = sorted(self._pools)
            allowed = one_of(known) if known else "declare it in headgate.toml, under [pipelines.pools]"
            report(
                ("pool",),
                f"there is no pool {shown(pipeline.pool)}",
                suggestion=nearest(pipeline.pool, known),
                allowed=allowed,
            )
        elif pipeline.slots > size:
            fact = f"pool {pipeline.pool} has {size} slots, and a run would need {pipeline.slots}"
            report(("slots",), fact, allowed=f"use 1 to {size}", involved=(("pool",),))

    def _report_config(self, trigger: TriggerSpec, problems: Sequence[FieldProblem], *, warning: bool = False) -> None:
        base: Path = ("trigger", "config") if trigger.config else ("trigger",)
        for each in problems:
            self._reading.report(
                (*base, *each.path),
                each.fact,
                allowed=each.allowed,
                suggestion=each.suggestion,
                warning=warning,
                involved=(("trigger", "type"),),
            )

    def _check_callback(self, trigger: TriggerSpec) -> None:
        report, path = self._reading.report, ("trigger", "callback")
        uses = any(f"${{{name}}}" in str(trigger.config) for name in CALLBACK_NAMES)
        if trigger.callback and not uses and trigger.type in TRIGGER_TYPES and trigger.type not in _CALLING_BACK:
            fact = f"a trigger of type {trigger.type} sends no callback URL by itself"
            allowed = "use ${callback_url} and ${callback_token} in its config, or leave it out"
            involved: tuple[Path, ...] = (("trigger", "type"), ("trigger", "config"))
            report(path, fact, allowed=allowed, involved=involved, warning=self._is_stored)
        if uses and not trigger.callback:
            fact = "${callback_url} or ${callback_token} is used, and the job does not call back"
            report(("trigger", "config"), fact, allowed="set trigger.callback: true", involved=(path,))
        if trigger.heartbeat is None:
            return
        path = ("trigger", "heartbeat")
        if not trigger.callback:
            report(path, "only a job that calls back sends heartbeats", allowed="set trigger.callback: true")
        elif trigger.heartbeat > (trigger.poll_window or POLL_WINDOW_SECONDS):
            fact = f"the job is out of time before {trigger.heartbeat:g} s of silence"
            report(path, fact, allowed="use at most the poll_window", involved=(("trigger", "poll_window"),))

    def _check_retry(self) -> None:
        retry = self._pipeline.retry
        if retry.backoff > retry.backoff_max:
            fact = f"backoff {retry.backoff:g} s is more than backoff_max {retry.backoff_max:g} s"
            where = "backoff_max" if self._reading.is_given(("retry", "backoff_max")) else "backoff"
            self._reading.report(
                ("retry", where), fact, allowed="the first wait is not longer than the longest", involved=(("retry",),)
            )

    def _check_sla(self, sla: Sla) -> None:
        report = self._reading.report
        for name in ("deadline", "evaluation_deadline"):
            text: str | None = getattr(sla, name)
            if text is not None:
                check_deadline(text, ("sla", name), self._reading)
        if sla.timezone is not None:
            check_zone(sla.timezone, ("sla", "timezone"), self._reading)
        if sla.deadline is None and sla.evaluation_deadline is None and sla.max_duration is None:
            allowed = "give deadline, evaluation_deadline or max_duration"
            report(("sla",), "it says nothing that could be kept or missed", allowed=allowed)
        is_of_day = [text for text in (sla.deadline, sla.evaluation_deadline) if text and re.match(r"\d+:", text)]
        if isinstance(sla.day_offset, int) and not is_of_day:
            report(("sla", "day_offset"), 'it goes with a deadline of the form "HH:MM"', allowed="leave it out")
        if sla.max_duration is not None and (sla.expected_duration or 0) > sla.max_duration:
            fact = f"more is expected than the {sla.max_duration:g} s of max_duration"
            report(("sla", "expected_duration"), fact, involved=(("sla", "max_duration"),))

    def _check_upstreams(self) -> None:
        upstreams = {each.upstream.pipeline for each in upstreams_of(self._pipeline)}
        if len(upstreams) > UPSTREAMS_MAX:
            self._reading.report((), f"it waits for {len(upstreams)} pipelines", allowed=f"at most {UPSTREAMS_MAX}")

    def _check_texts(self) -> None:
        pipeline = self._pipeline
        if len(pipeline.writes) > WRITES_MAX:
            fact = f"it writes {len(pipeline.writes)} datasets"
            self._reading.report(("writes",), fact, allowed=f"at most {WRITES_MAX}; make it several pipelines")
        lists: list[tuple[Path, tuple[str, ...]]] = [
            (("reads",), pipeline.reads),
            (("writes",), pipeline.writes),
            (("alerts", "channels"), pipeline.alerts.channels),
            (("alerts", "mute"), pipeline.alerts.mute),
        ]
        for path, texts in lists:
            for index, text in enumerate(texts):
                if not text.strip():
                    self._reading.report((*path, index), "it is empty")
                elif text in texts[:index]:
                    self._reading.report((*path, index), f"{shown(text)} is given twice", allowed="leave it out")

    def _warn(self) -> None:
        """Report surprising definitions: without a start condition, or without a job."""
        pipeline, report = self._pipeline, self._reading.report
        if not pipeline.schedules and not self._reading.is_bad(("schedules",)):
            fact = "nothing ever starts it but a marker, a person or a backfill"
            report(
                ("schedules",), fact, allowed="give it schedules: with cron, sensor, upstream or event", warning=True
            )
        if pipeline.trigger is None and not pipeline.dry_run:
            report(
                ("trigger",), "its readiness is reported, and no job is started", allowed="give a trigger", warning=True
            )
