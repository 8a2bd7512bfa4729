"""Resolution rules: which topics they are about, which dataset they name, when they are in force, and their rows."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.model import payload
from headgate.errors import CorruptionError, InvalidIdError, InvalidPayloadError
from headgate.health.model.timestamps import milliseconds, moment
from headgate.health.model.urns import dataset_urn
from headgate.health.resolution.conditions import Condition, Headers, Predicate
from headgate.store.catalogue.tables import DATASET_RESOLUTION, RESOLUTION_RULE, RULE_DATASET
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

PRIORITY_MAX: Final = 9999
CONDITIONS_MAX: Final = 40
TEXT_MAX: Final = 1000
WILDCARDS: Final = re.compile(r"[*?]")
ENABLED: Final = "ENABLED"
DISABLED: Final = "DISABLED"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# No spaces and nothing that is not printed; a topic may be longer than Kafka's, as those of other systems are.
_PATTERN: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,512}")


class ResolutionType(enum.StrEnum):
    """What a rule is. The earlier ones are asked first."""

    EXACT = "EXACT"
    CONDITIONAL = "CONDITIONAL"
    WILDCARD = "WILDCARD"


class RuleKey(Struct, frozen=True, order=True):
    """What names a rule."""

    topic_pattern: str
    name: str


class RuleSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people say of a rule. In a pattern `*` stands for any characters, dots included, and `?` for one.

    EXACT and WILDCARD rules name a dataset; CONDITIONAL ones name one in each condition, and perhaps a default. Of
    rules of one type the lower priority goes first. With a `schema_id` it is for messages of that schema alone.
    """

    topic_pattern: str
    name: str = "default"
    resolution_type: str = ResolutionType.EXACT
    dataset_urn: str | None = None
    conditions: tuple[Condition, ...] = ()
    default_dataset_urn: str | None = None
    schema_id: str | None = None
    priority: int = 100
    enabled: bool = True
    effective_from: str | None = None
    effective_until: str | None = None
    description: str = ""

    @property
    def key(self) -> RuleKey:
        return RuleKey(self.topic_pattern, self.name)

    def datasets(self) -> tuple[tuple[str, str], ...]:
        """Return each dataset that the rule names, with the field that does."""
        named = [("dataset_urn", self.dataset_urn), ("default_dataset_urn", self.default_dataset_urn)]
        named += [
            (f"conditions[{number}].dataset_urn", each.dataset_urn) for number, each in enumerate(self.conditions)
        ]
        return tuple((field, urn) for field, urn in named if urn is not None)


class Rule(RuleSpec, frozen=True, kw_only=True, omit_defaults=True):
    """A rule as it is kept. Each change gives it another `etag`, and is the one that made the set `set_version`."""

    version: int = 1
    set_version: int = 0
    etag: str = ""
    created_at: str = ""
    updated_at: str = ""
    updated_by: str = ""


class CompiledRule:
    """A rule made ready to be asked. Raises `InvalidPayloadError` or `InvalidIdError`, naming what is wrong with it."""

    __slots__ = ("default", "from_ms", "is_timed", "key", "order", "pattern", "predicates", "rule", "until_ms")

    def __init__(self, rule: RuleSpec) -> None:
        self.rule = rule
        self.key = rule.key
        kind = ResolutionType(rule.resolution_type)
        self.pattern = glob(rule.topic_pattern)
        self.predicates = tuple(
            Predicate(condition, field=f"{_what(rule)}: conditions[{number}]")
            for number, condition in enumerate(rule.conditions)
        )
        self.default = rule.default_dataset_urn if kind is ResolutionType.CONDITIONAL else rule.dataset_urn
        self.from_ms = None if rule.effective_from is None else milliseconds(rule.effective_from)
        self.until_ms = None if rule.effective_until is None else milliseconds(rule.effective_until)
        self.is_timed = self.from_ms is not None or self.until_ms is not None
        # What is for a schema goes before what is for any; then type, priority, specificity and name.
        self.order = (
            rule.schema_id is None,
            list(ResolutionType).index(kind),
            rule.priority,
            -specificity(rule.topic_pattern),
            rule.name,
            rule.topic_pattern,
        )

    def in_force(self, now_ms: int) -> bool:
        """Whether the moment is within what the rule is for."""
        is_begun = self.from_ms is None or self.from_ms <= now_ms
        return is_begun and (self.until_ms is None or now_ms < self.until_ms)

    def dataset(self, message: object, headers: Headers) -> str | None:
        """Return the dataset of the first condition that holds, or the default, or None."""
        for predicate in self.predicates:
            if predicate.holds(message, headers):
                return predicate.dataset_urn
        return self.default


def glob(pattern: str) -> re.Pattern[str] | None:
    """Return what a pattern with wildcards matches, or None for a pattern that is a topic.

    The expression takes time in proportion to the topic for each `*`: what lies between two of them is looked for once,
    and never again at another place.
    """
    if not WILDCARDS.search(pattern):
        return None
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern))
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    searched = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(f"{first}{searched}.*{last}", re.DOTALL)


def specificity(pattern: str) -> int:
    """Return how much of a topic a pattern pins down: its characters that are no wildcards."""
    return len(WILDCARDS.sub("", pattern))


def checked(rule: RuleSpec) -> RuleSpec:
    """Return a rule in its one form. Raises `InvalidPayloadError` or `InvalidIdError`, naming the field."""
    what = _what(rule)
    kind = _kind(rule)
    if not _PATTERN.fullmatch(rule.topic_pattern):
        raise InvalidPayloadError(f"{what}: topic_pattern: use 1 to 512 characters without spaces")
    if not _NAME.fullmatch(rule.name):
        raise InvalidPayloadError(f"{what}: name: use 1 to 128 letters, digits and . _ -, beginning with one of these")
    if not (type(rule.priority) is int and 0 <= rule.priority <= PRIORITY_MAX):
        raise InvalidPayloadError(
            f"{what}: priority is {rule.priority}; use 0 to {PRIORITY_MAX}, the lowest goes first"
        )
    for field, text in (("schema_id", rule.schema_id), ("description", rule.description)):
        if text is not None and len(text) > TEXT_MAX:
            raise InvalidPayloadError(f"{what}: {field} has {len(text)} characters; at most {TEXT_MAX}")
    _check_kind(rule, kind, what)
    _check_urns(rule, what)
    since = None if rule.effective_from is None else moment(rule.effective_from, field=f"{what}: effective_from")
    until = None if rule.effective_until is None else moment(rule.effective_until, field=f"{what}: effective_until")
    if since is not None and until is not None and since >= until:
        raise InvalidPayloadError(f"{what}: effective_until {until} is not after effective_from {since}")
    conditions = [_plain(each, f"{what}: conditions[{number}].value") for number, each in enumerate(rule.conditions)]
    made = replace(
        rule,
        resolution_type=kind.value,
        effective_from=since,
        effective_until=until,
        conditions=tuple(conditions),
        schema_id=rule.schema_id or None,
    )
    CompiledRule(made)
    return made


def read_rule(given: Mapping[str, Any]) -> RuleSpec:
    """Return the rule that someone sent. Raises `InvalidPayloadError`, naming the field."""
    unknown = given.keys() - {*RuleSpec.__struct_fields__}
    if unknown:
        raise InvalidPayloadError(
            f"rule: no field {sorted(unknown)[0]!r}; it has {', '.join(RuleSpec.__struct_fields__)}"
        )
    fields = {name: value for name, value in given.items() if value is not None}
    try:
        return checked(typed_decode.convert(fields, RuleSpec))
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"rule: {exc}") from exc


def rule_key(key: RuleKey) -> Key:
    """Return where a rule is kept."""
    return RESOLUTION_RULE.key(topic_pattern=key.topic_pattern, name=key.name)


def rule_item(rule: Rule) -> Item:
    """Return the row of a rule."""
    fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
    fields["conditions"] = [msgspec.to_builtins(each) for each in rule.conditions] or None
    item = {**DATASET_RESOLUTION.key_attributes(rule_key(rule.key)), **fields}
    item["enabled_pk"] = ENABLED if rule.enabled else DISABLED
    # An attribute that an index is keyed by cannot be null.
    return {name: value for name, value in item.items() if value is not None or name == "conditions"}


def reference_items(rule: Rule) -> list[Item]:
    """Return the rows by which the datasets of a conditional rule find it; other rules are found by their own."""
    if rule.resolution_type != ResolutionType.CONDITIONAL:
        return []
    urns = sorted({urn for _, urn in rule.datasets()})
    keys = (
        RULE_DATASET.key(topic_pattern=rule.topic_pattern, name=rule.name, number=number) for number in range(len(urns))
    )
    return [
        {
            **DATASET_RESOLUTION.key_attributes(key),
            "dataset_urn": urn,
            "topic_pattern": rule.topic_pattern,
            "name": rule.name,
        }
        for key, urn in zip(keys, urns, strict=True)
    ]


def rule_of(item: Item) -> Rule:
    """Return the rule that a row holds. Raises `CorruptionError`."""
    try:
        return typed_decode.convert({name: value for name, value in item.items() if value is not None}, Rule)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"row {item.get('PK')} {item.get('SK')}: not a rule ({exc})") from exc


def mark(rule: Rule) -> int:
    """Return a number that stands for this rule as it is now; those of a set of rules are combined by exclusive or."""
    text = msgspec.json.encode([rule.topic_pattern, rule.name, rule.etag])
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def marks(rules: Iterable[Rule]) -> int:
    """Return the number that stands for a set of rules."""
    combined = 0
    for rule in rules:
        combined ^= mark(rule)
    return combined


def _what(rule: RuleSpec) -> str:
    return f"rule {rule.name[:60]!r} of {rule.topic_pattern[:80]!r}"


def _kind(rule: RuleSpec) -> ResolutionType:
    try:
        return ResolutionType(rule.resolution_type.strip().upper())
    except ValueError as exc:
        allowed = ", ".join(ResolutionType)
        raise InvalidPayloadError(
            f"{_what(rule)}: resolution_type {rule.resolution_type[:40]!r}: not one of {allowed}"
        ) from exc


def _check_kind(rule: RuleSpec, kind: ResolutionType, what: str) -> None:
    """Refuse fields that do not go together."""
    has_wildcards = WILDCARDS.search(rule.topic_pattern) is not None
    wrong: str | None = None
    if kind is ResolutionType.CONDITIONAL:
        if not 1 <= len(rule.conditions) <= CONDITIONS_MAX:
            wrong = f"conditions: a CONDITIONAL rule has 1 to {CONDITIONS_MAX}, not {len(rule.conditions)}"
        elif rule.dataset_urn is not None:
            wrong = "dataset_urn: a CONDITIONAL rule names a dataset in each condition, and a default_dataset_urn"
    elif rule.dataset_urn is None:
        wrong = f"dataset_urn is missing; an {kind} rule names a dataset"
    elif rule.conditions or rule.default_dataset_urn is not None:
        wrong = f"conditions and default_dataset_urn are for CONDITIONAL rules, not for {kind} ones"
    elif has_wildcards and kind is ResolutionType.EXACT:
        wrong = "topic_pattern: an EXACT rule has no * or ?; make it a WILDCARD one"
    elif not has_wildcards and kind is ResolutionType.WILDCARD:
        wrong = "topic_pattern: a WILDCARD rule has a * or ?; make it an EXACT one"
    if wrong is not None:
        raise InvalidPayloadError(f"{what}: {wrong}")


def _plain(condition: Condition, field: str) -> Condition:
    """Return a condition as a row gives it back. Raises `InvalidPayloadError` for a value that JSON cannot hold."""
    value = payload.decode(payload.encode(condition.value, what=field), Any, what=field)
    return replace(condition, operator=condition.operator.strip().upper(), value=value)


def _check_urns(rule: RuleSpec, what: str) -> None:
    for field, urn in rule.datasets():
        try:
            dataset_urn(urn)
        except InvalidIdError as exc:
            raise InvalidIdError(f"{what}: {field}: {exc}") from exc
