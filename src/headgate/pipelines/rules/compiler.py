"""Rule compiler: turns each rule into a node that computes its verdict from facts."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Json, Rule, Upstream
from headgate.pipelines.enums import OnUnknown, RunStatus, SensorPeriod, Severity, TraitStatus, Verdict
from headgate.pipelines.field_values import MISSING, field_of, number
from headgate.pipelines.rules.facts import Facts, Needs
from headgate.pipelines.rules.history import check_history, compare_with_history
from headgate.pipelines.rules.operators import (
    CHECKS,
    FAIL,
    ORDERINGS,
    PASS,
    UNKNOWN,
    Operator,
    OperatorResult,
    age,
    compare,
    compile_operator,
)
from headgate.pipelines.sensors import PROBE_PREFIX

# The nesting limit of a stored row: two levels for each of ours, and the row itself.
DEPTH_MAX: Final = 12
RULES_MAX: Final = 1_000
_COMPARABLE: Final = ORDERINGS | {"equals", "not_equals"}
_AGES: Final = ("age_lt", "age_gt")
_SHOWN_DATES: Final = 3


class RuleKind(enum.StrEnum):
    """What a rule reads, or how it combines others."""

    SENSOR = "sensor"
    ALL = "all"
    ANY = "any"
    N_OF = "n_of"
    NOT = "not"
    UPSTREAM = "upstream"
    DATASET = "dataset"
    TRAIT = "trait"


LeafCheck = Callable[[Facts, float], OperatorResult]


class RuleNode(Struct, frozen=True, kw_only=True):
    """A compiled rule. A leaf has `find`, a combination has `children`."""

    path: str
    name: str
    kind: RuleKind
    severity: Severity
    on_unknown: OnUnknown
    stable_for: int
    # The sensor, pipeline, dataset or trait that it reads.
    subject: str = ""
    find: LeafCheck | None = None
    children: tuple[RuleNode, ...] = ()
    needed: int = 0


def compile_node(rule: Rule, path: str) -> RuleNode:
    """Compile a rule with its nested ones. Raises `DefinitionError` that names its path."""
    try:
        return _node(rule, path)
    except DefinitionError as exc:
        if str(exc).startswith("rule "):
            raise
        raise DefinitionError(f"rule {path}{f' ({rule.name})' if rule.name else ''}: {exc}") from exc


def needs_of(rules: Sequence[Rule]) -> Needs:
    """Return the inputs of rules."""
    leaves = [leaf for rule in rules for leaf in leaves_of(rule)]
    if len(leaves) > RULES_MAX:
        raise DefinitionError(f"rules: {len(leaves)} are given; at most {RULES_MAX} can be")
    sensors = {leaf.key for leaf in leaves if leaf.key is not None}
    sensors |= {_other(leaf.other)[0] for leaf in leaves if leaf.other is not None}
    history: dict[str, int] = {}
    for leaf in leaves:
        if leaf.history is not None and leaf.key is not None:
            history[leaf.key] = max(history.get(leaf.key, 0), leaf.history.periods)
    return Needs(
        sensors=frozenset(sensors),
        any_period=_any_period(leaves),
        history=history,
        upstreams=tuple(dict.fromkeys(leaf.upstream for leaf in leaves if leaf.upstream is not None)),
        datasets=tuple(dict.fromkeys(leaf.dataset for leaf in leaves if leaf.dataset is not None)),
        traits=frozenset(leaf.trait for leaf in leaves if leaf.trait is not None),
    )


def _any_period(leaves: Sequence[Rule]) -> frozenset[str]:
    """Return the sensors of which every rule takes the newest value, whichever period it is of."""
    sensors = [leaf for leaf in leaves if leaf.key is not None]
    own = {leaf.key for leaf in sensors if not _is_of_any_period(leaf)}
    own |= {_other(leaf.other)[0] for leaf in leaves if leaf.other is not None}
    return frozenset(leaf.key for leaf in sensors if leaf.key is not None) - own


def _is_of_any_period(rule: Rule) -> bool:
    if rule.period is None:
        return rule.check in _AGES and rule.field is None and rule.history is None
    return rule.period is SensorPeriod.ANY


def leaves_of(rule: Rule) -> Iterator[Rule]:
    """Yield a rule and all rules below it."""
    yield rule
    for child in _below(rule):
        yield from leaves_of(child)


def _below(rule: Rule) -> tuple[Rule, ...]:
    if rule.n_of is not None:
        return rule.n_of.rules
    if rule.not_ is not None:
        return (rule.not_,)
    return rule.all if rule.all is not None else rule.any if rule.any is not None else ()


def _node(rule: Rule, path: str) -> RuleNode:
    kind = _kind(rule)
    if path.count(".") >= DEPTH_MAX:
        raise DefinitionError(f"it is nested deeper than {DEPTH_MAX} levels")
    if rule.stable_for < 1 or rule.future_max < 0:
        raise DefinitionError("stable_for is from 1, future_max from 0")
    below = _below(rule)
    _check_combination(rule, kind, below)
    return RuleNode(
        path=path,
        name=rule.name or _name(rule, kind),
        kind=kind,
        severity=rule.severity,
        on_unknown=rule.on_unknown,
        stable_for=rule.stable_for,
        subject=rule.key or (rule.upstream.pipeline if rule.upstream else "") or rule.dataset or rule.trait or "",
        find=_leaf(rule, kind),
        children=tuple(compile_node(child, f"{path}.{index}") for index, child in enumerate(below)),
        needed=rule.n_of.n if rule.n_of is not None else 0,
    )


def _kind(rule: Rule) -> RuleKind:
    forms = {
        RuleKind.SENSOR: rule.key,
        RuleKind.ALL: rule.all,
        RuleKind.ANY: rule.any,
        RuleKind.N_OF: rule.n_of,
        RuleKind.NOT: rule.not_,
        RuleKind.UPSTREAM: rule.upstream,
        RuleKind.DATASET: rule.dataset,
        RuleKind.TRAIT: rule.trait,
    }
    kinds = [kind for kind, value in forms.items() if value is not None]
    if len(kinds) != 1:
        names = "key, all, any, n_of, not, upstream, dataset, trait"
        raise DefinitionError(f"give exactly one of {names}; it has {', '.join(kinds) or 'none'}")
    return kinds[0]


def _check_combination(rule: Rule, kind: RuleKind, below: Sequence[Rule]) -> None:
    if kind is RuleKind.N_OF:
        # A rule that only warns is not counted.
        counted = sum(child.severity is Severity.BLOCK for child in below)
        needed = rule.n_of.n if rule.n_of is not None else 0
        if not 1 <= needed <= counted:
            raise DefinitionError(f"n_of: n is {needed}; give 1 to {counted}, as many as there are rules that count")
    if kind is RuleKind.NOT and below[0].severity is Severity.WARN:
        raise DefinitionError("not: severity belongs on the `not`, and not on the rule that it negates")


def _name(rule: Rule, kind: RuleKind) -> str:
    match kind:
        case RuleKind.SENSOR:
            return str(rule.key) if rule.field is None else f"{rule.key}.{rule.field}"
        case RuleKind.UPSTREAM if rule.upstream is not None:
            return rule.upstream.pipeline
        case RuleKind.N_OF if rule.n_of is not None:
            return f"{rule.n_of.n} of {len(rule.n_of.rules)}"
    return rule.dataset or rule.trait or kind.value


def _leaf(rule: Rule, kind: RuleKind) -> LeafCheck | None:
    match kind:
        case RuleKind.SENSOR:
            return _sensor(rule, str(rule.key))
        case RuleKind.UPSTREAM if rule.upstream is not None:
            return _upstream(rule.upstream)
        case RuleKind.DATASET:
            return _dataset(str(rule.dataset))
        case RuleKind.TRAIT:
            return _trait(str(rule.trait))
    return None


# Sensors.


def _sensor(rule: Rule, key: str) -> LeafCheck:
    if rule.check not in CHECKS:
        raise DefinitionError(f"check {rule.check!r} is not known; use one of {', '.join(CHECKS)}")
    probes = [each for each in (key, _other(rule.other)[0] if rule.other else "") if each.startswith(PROBE_PREFIX)]
    return _of_probes(probes, _of_sensor(rule, key)) if probes else _of_sensor(rule, key)


def _of_sensor(rule: Rule, key: str) -> LeafCheck:
    if rule.history is not None:
        return _history(rule, key)
    if rule.other is not None:
        return _against_other(rule, key)
    if rule.check == "exists":
        return _exists(key, rule.field)
    if rule.field is None:
        return _age_of_sensor(rule, key)
    return _field(key, rule.field, compile_operator(rule.check, rule.value, future_max_seconds=rule.future_max))


def _of_probes(keys: Sequence[str], find: LeafCheck) -> LeafCheck:
    """Return a check that is unknown unless each probe has a current result."""

    def find_current(facts: Facts, now_ms: float) -> OperatorResult:
        for key in keys:
            problem = _probe_problem(facts, key, now_ms)
            if problem:
                return UNKNOWN, f"{key} {problem}"
        return find(facts, now_ms)

    return find_current


def _probe_problem(facts: Facts, key: str, now_ms: float) -> str:
    sensor = facts.sensors.get(key)
    if sensor is None:
        return "has no result for this period yet"
    if "error" in sensor.data:
        return f"could not look: {sensor.data['error']}"
    valid_seconds = number(sensor.data.get("validSeconds"))
    age_seconds = (now_ms - sensor.pushed_at_ms) / 1000
    if valid_seconds is not None and age_seconds > valid_seconds:
        return f"has not looked for {age_seconds:.0f} s; its last result is too old"
    return ""


def _is_ready(key: str) -> LeafCheck:
    """Return the check of a probe as a whole: whether its expectations are met."""

    def find(facts: Facts, _: float) -> OperatorResult:
        data = facts.sensors[key].data
        return (PASS if data.get("ready") is True else FAIL), f"{key}: {data.get('reason', '')}"

    return find


def _exists(key: str, field: str | None) -> LeafCheck:
    if field is None and key.startswith(PROBE_PREFIX):
        return _is_ready(key)
    is_there = f"{key} is there" if field is None else f"{key}.{field} is there"
    no_field = f"{key} has no field {field}"

    def find(facts: Facts, _: float) -> OperatorResult:
        sensor = facts.sensors.get(key)
        if sensor is None:
            return FAIL, _missing(facts, key)
        if field is not None and field_of(sensor.data, field) is MISSING:
            return FAIL, no_field
        return PASS, is_there

    return find


def _field(key: str, field: str, operator: Operator) -> LeafCheck:
    subject = f"{key}.{field} "
    no_field = f"{key} has no field {field}"

    def find(facts: Facts, now_ms: float) -> OperatorResult:
        sensor = facts.sensors.get(key)
        if sensor is None:
            return UNKNOWN, _missing(facts, key)
        value = field_of(sensor.data, field)
        if value is MISSING:
            return UNKNOWN, no_field
        verdict, reason = operator(value, now_ms)
        return verdict, subject + reason

    return find


def _age_of_sensor(rule: Rule, key: str) -> LeafCheck:
    if rule.check not in _AGES:
        raise DefinitionError(f"check {rule.check} needs a field to look at")
    operator = age(rule.check, rule.value, future_max_seconds=rule.future_max)

    def find(facts: Facts, now_ms: float) -> OperatorResult:
        sensor = facts.sensors.get(key)
        if sensor is None:
            return UNKNOWN, _missing(facts, key)
        if not sensor.updated_at_ms:
            return UNKNOWN, f"{key} does not say when it was updated"
        verdict, reason = operator(sensor.updated_at_ms, now_ms)
        return verdict, f"{key} {reason}"

    return find


def _against_other(rule: Rule, key: str) -> LeafCheck:
    field, check = rule.field, rule.check
    if field is None or check not in _COMPARABLE or rule.value is not None:
        raise DefinitionError(
            f"other: give a field, no value, and a check of {', '.join(sorted(_COMPARABLE))}; check is {check}"
        )
    other_key, other_field = _other(str(rule.other))

    def find(facts: Facts, _: float) -> OperatorResult:
        left, problem = _value(facts, key, field)
        if problem:
            return UNKNOWN, problem
        right, problem = _value(facts, other_key, other_field)
        if problem:
            return UNKNOWN, problem
        verdict, reason = compare(check, left, right)
        return verdict, f"{key}.{field} {reason} ({other_key}.{other_field})"

    return find


def _history(rule: Rule, key: str) -> LeafCheck:
    history, field, check = rule.history, rule.field, rule.check
    if history is None or field is None or rule.value is not None or rule.other is not None:
        raise DefinitionError("history: give a field, and neither value nor other")
    check_history(history, check)

    def find(facts: Facts, _: float) -> OperatorResult:
        value, problem = _value(facts, key, field)
        if problem:
            return UNKNOWN, problem
        earlier = [field_of(data, field) for data in facts.history.get(key, ())[: history.periods]]
        verdict, reason = compare_with_history(history, check, value, earlier)
        return verdict, f"{key}.{field} {reason}"

    return find


def _value(facts: Facts, key: str, field: str) -> tuple[Any, str]:
    """Return a field of a sensor, or the reason why there is none."""
    sensor = facts.sensors.get(key)
    if sensor is None:
        return MISSING, _missing(facts, key)
    value: Json = field_of(sensor.data, field)
    return value, f"{key} has no field {field}" if value is MISSING else ""


def _missing(facts: Facts, key: str) -> str:
    stray = facts.strays.get(key)
    return f"{key} is missing" if stray is None else f"{key} is missing: its data is of {stray}"


def _other(other: str) -> tuple[str, str]:
    key, _, field = other.rpartition(".")
    if not key or not field:
        raise DefinitionError(f"other is {other!r}; write the key of a sensor and a field of it: orders.count")
    return key, field


# Upstreams, datasets, traits.


def _upstream(upstream: Upstream) -> LeafCheck:
    name = upstream.pipeline if upstream.schedule is None else f"{upstream.pipeline}/{upstream.schedule}"
    if upstream.missing_max < 0:
        raise DefinitionError(f"upstream {name}: missing_max is from 0")

    def find(facts: Facts, _: float) -> OperatorResult:
        fact = facts.upstreams.get(upstream)
        if fact is None or fact.problem:
            return UNKNOWN, f"{name} is unknown: {fact.problem if fact is not None else 'it was not read'}"
        open_dates = [date for date in fact.dates if not _is_done(fact.statuses.get(date))]
        if not open_dates:
            return PASS, f"{name} is done for {_dates(fact.dates)}"
        listed = ", ".join(f"{date} ({_status_text(fact.statuses.get(date))})" for date in open_dates[:_SHOWN_DATES])
        more = f" and {len(open_dates) - _SHOWN_DATES} more" if len(open_dates) > _SHOWN_DATES else ""
        done = f"{name} is done for {len(fact.dates) - len(open_dates)} of {len(fact.dates)}, not for {listed}{more}"
        if len(open_dates) <= upstream.missing_max:
            return PASS, f"{done}; {upstream.missing_max} may be missing"
        return FAIL, done

    return find


def _is_done(status: RunStatus | None) -> bool:
    return status is not None and status.is_done


def _status_text(status: RunStatus | None) -> str:
    return "not started" if status is None else status.value


def _dates(dates: Sequence[str]) -> str:
    return dates[0] if len(dates) == 1 else f"all {len(dates)} from {dates[0]} to {dates[-1]}"


def _dataset(dataset: str) -> LeafCheck:
    def find(facts: Facts, _: float) -> OperatorResult:
        fact = facts.datasets.get(dataset)
        if fact is None:
            return UNKNOWN, f"{dataset}: the gate has no answer for it"
        return fact.verdict, f"{dataset}: {fact.reason or _GATE_TEXTS[fact.verdict]}"

    return find


def _trait(trait: str) -> LeafCheck:
    def find(facts: Facts, _: float) -> OperatorResult:
        fact = facts.traits.get(trait)
        if fact is None:
            return UNKNOWN, f"trait {trait} has no result"
        because = f": {fact.reason}" if fact.reason else ""
        return _OF_TRAIT[fact.status], f"trait {trait} is {fact.status.value}{because}"

    return find


_GATE_TEXTS: Final = {PASS: "it may be read", FAIL: "it may not be read", UNKNOWN: "the gate's decision is unknown"}
# A failed evaluation or an expired result is unknown here; the readiness verdict reports the error.
_OF_TRAIT: Final[dict[TraitStatus, Verdict]] = {
    TraitStatus.PASS: PASS,
    TraitStatus.FAIL: FAIL,
    TraitStatus.ERROR: UNKNOWN,
    TraitStatus.STALE: UNKNOWN,
}
