"""Rule checks: whether each rule can be evaluated and is unambiguous. Problems carry the position of the field."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headgate.errors import DefinitionError, UserError
from headgate.pipelines.definition.model import Pipeline, Rule, SensorTrigger, Upstream
from headgate.pipelines.definition.problems import nearest, one_of, shown
from headgate.pipelines.definition.typed_decoder import DecodeReport, Path, name_in_files
from headgate.pipelines.enums import SensorPeriod, Severity
from headgate.pipelines.rules.compiler import DEPTH_MAX, compile_node, leaves_of, needs_of
from headgate.pipelines.rules.operators import CHECKS
from headgate.pipelines.schedule.dependencies import PROBE
from headgate.pipelines.schedule.related_periods import ALL, CHOICES, PREVIOUS

FORMS: Final = ("key", "all", "any", "n_of", "not_", "upstream", "dataset", "trait")
_OF_SENSORS: Final = ("check", "field", "value", "period", "other", "history", "future_max")
_KEY_CHARS_MAX: Final = 256
_ROOT: Final = "0"


class RuleChecks:
    """Checks the rules of one pipeline. `traits` and `probes` are the known ones; None: not all are known."""

    def __init__(
        self,
        pipeline: Pipeline,
        traits: Collection[str] | None,
        reading: DecodeReport,
        probes: Collection[str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._traits = traits
        self._reading = reading
        self._probes = probes

    def check_all(self, rules: tuple[Rule, ...], path: Path) -> None:
        """Report the problems of a list of rules."""
        of_any_period: Collection[str] = {
            leaf.key for rule in rules for leaf in leaves_of(rule) if leaf.key is not None
        }
        try:
            of_any_period = needs_of(rules).any_period
        except UserError as exc:
            # The inputs of a rule with invalid fields are unknown; those are reported below.
            if str(exc).startswith("rules:"):
                self._reading.report(path, str(exc).removeprefix("rules: "))
        for index, rule in enumerate(rules):
            self._check(rule, (*path, index), 1)
            for leaf in leaves_of(rule):
                if leaf.period is SensorPeriod.ANY and leaf.key is not None and leaf.key not in of_any_period:
                    fact = f"another rule reads sensor {shown(leaf.key)} of the run's own period"
                    self._reading.report((*path, index), fact, allowed="give both the same period: own or any")

    def check_sensor(self, sensor: SensorTrigger, path: Path) -> None:
        """Report the problems of a sensor trigger's condition."""
        rule = Rule(key=sensor.key, check=sensor.check, field=sensor.field, value=sensor.value)
        self._check_leaf(rule, path)

    def check_probe(self, reference: str, path: Path) -> None:
        """Report a reference to a probe that is not defined."""
        name = reference.removeprefix(PROBE)
        if not reference.startswith(PROBE) or self._probes is None or name in self._probes:
            return
        fact = f"there is no probe {shown(name)}"
        allowed = "define it in the folder probes beside the pipelines"
        self._reading.report(path, fact, suggestion=nearest(name, self._probes), allowed=allowed)

    def check_upstream(self, upstream: Upstream, path: Path) -> None:
        """Report the problems of an upstream."""
        report = self._reading.report
        if upstream.periods not in CHOICES:
            hint = nearest(upstream.periods, CHOICES)
            report(
                (*path, "periods"), f"{shown(upstream.periods)} is not known", suggestion=hint, allowed=one_of(CHOICES)
            )
        if upstream.missing_max and upstream.periods != ALL:
            report((*path, "missing_max"), f'it counts only with periods "{ALL}"', allowed="leave it out")
        if not upstream.pipeline.strip():
            report((*path, "pipeline"), "it is empty", allowed="give the id of a pipeline")
        if upstream.pipeline == self._pipeline.id and upstream.periods != PREVIOUS:
            report(
                (*path, "pipeline"),
                "the pipeline would wait for itself",
                allowed=f'name another, or use periods "{PREVIOUS}"',
                involved=((*path, "periods"), ("id",)),
            )

    def _check(self, rule: Rule, path: Path, depth: int) -> None:
        forms = [name for name in FORMS if getattr(rule, name) is not None]
        if len(forms) != 1:
            fact = f"it has {' and '.join(map(name_in_files, forms))}" if forms else "it has none"
            self._reading.report(path, fact, allowed=f"give exactly one of {', '.join(map(name_in_files, FORMS))}")
            return
        if depth >= DEPTH_MAX:
            self._reading.report(path, f"it is nested deeper than {DEPTH_MAX} levels")
            return
        if forms == ["key"]:
            self._check_leaf(rule, path)
            return
        for name in _OF_SENSORS:
            if self._reading.is_given((*path, name)):
                self._reading.report((*path, name), "it goes with key", allowed="leave it out")
        self._check_below(rule, path, depth)
        if rule.upstream is not None:
            self.check_upstream(rule.upstream, (*path, "upstream"))
        self._check_names(rule, path)

    def _check_names(self, rule: Rule, path: Path) -> None:
        for name in ("dataset", "trait"):
            if getattr(rule, name) is not None and not getattr(rule, name).strip():
                self._reading.report((*path, name), "it is empty")
        if rule.trait and self._traits is not None and rule.trait not in self._traits:
            self._reading.report(
                (*path, "trait"),
                f"the pipeline has no trait {shown(rule.trait)}",
                suggestion=nearest(rule.trait, self._traits),
                allowed="define it under readiness.traits",
                involved=(("readiness", "traits"),),
            )

    def _check_below(self, rule: Rule, path: Path, depth: int) -> None:
        for name in ("all", "any"):
            rules: tuple[Rule, ...] | None = getattr(rule, name)
            if rules is not None:
                self._check_group(rules, (*path, name), depth)
        if rule.n_of is not None:
            self._check_group(rule.n_of.rules, (*path, "n_of", "rules"), depth)
            counted = sum(each.severity is Severity.BLOCK for each in rule.n_of.rules)
            if counted and not 1 <= rule.n_of.n <= counted:
                fact = f"{rule.n_of.n} of {counted} rules that count can never be"
                self._reading.report((*path, "n_of", "n"), fact, allowed=f"use 1 to {counted}")
        if rule.not_ is not None:
            if rule.not_.severity is Severity.WARN:
                fact = "severity belongs on the rule around the `not`"
                self._reading.report((*path, "not_", "severity"), fact, allowed="move it there")
            self._check(rule.not_, (*path, "not_"), depth + 1)

    def _check_group(self, rules: tuple[Rule, ...], path: Path, depth: int) -> None:
        if not rules:
            self._reading.report(path, "it has no rules", allowed="give at least one")
        for index, rule in enumerate(rules):
            self._check(rule, (*path, index), depth + 1)

    def _check_leaf(self, rule: Rule, path: Path) -> None:
        report = self._reading.report
        key = rule.key or ""
        if not key.strip() or "#" in key or len(key) > _KEY_CHARS_MAX:
            allowed = f"give the key of a sensor without its period: up to {_KEY_CHARS_MAX} characters, no '#'"
            report((*path, "key"), f"{shown(key)} is no key", allowed=allowed)
        self.check_probe(key, (*path, "key"))
        if rule.field is not None and not rule.field.strip():
            report((*path, "field"), "it is empty", allowed="name a field, or leave it out")
            return
        if rule.check not in CHECKS:
            hint = nearest(rule.check, CHECKS)
            report((*path, "check"), f"{shown(rule.check)} is not known", suggestion=hint, allowed=one_of(CHECKS))
            return
        try:
            compile_node(rule, _ROOT)
        except (DefinitionError, UserError) as exc:
            fact = str(exc).removeprefix(f"rule {_ROOT}").removeprefix(f" ({rule.name})").removeprefix(": ")
            involved = tuple((*path, name) for name in (*_OF_SENSORS, "stable_for"))
            where = "value" if self._reading.is_given((*path, "value")) else "check"
            # Numbers out of bounds are reported with all the others.
            if not fact.startswith("stable_for"):
                report((*path, where), fact, involved=involved)
