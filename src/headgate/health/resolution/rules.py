"""Resolution rules: their topic patterns, datasets and validity periods, with validation and rows."""

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
from headgate.ids import check_new_path
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
# Printable, without spaces; longer than Kafka topics, for other systems.
_PATTERN: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,512}")


class ResolutionType(enum.StrEnum):
    """The type of a rule, in the order of evaluation."""

    EXACT = "EXACT"
    CONDITIONAL = "CONDITIONAL"
    WILDCARD = "WILDCARD"


class RuleKey(Struct, frozen=True, order=True):
    """The key of a rule."""

    topic_pattern: str
    name: str


class RuleSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The definition of a rule. In a pattern `*` matches any characters, dots included, and `?` one character.

    EXACT and WILDCARD rules name a dataset; CONDITIONAL ones name one in each condition, and optionally a default.
    Among rules of one type the lower priority goes first. With a `schema_id` it is for messages of that schema only.
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
        """Return each dataset that the rule names, with its field."""
        named = [("dataset_urn", self.dataset_urn), ("default_dataset_urn", self.default_dataset_urn)]
        named += [
            (f"conditions[{number}].dataset_urn", each.dataset_urn) for number, each in enumerate(self.conditions)
        ]
        return tuple((field, urn) for field, urn in named if urn is not None)


class Rule(RuleSpec, frozen=True, kw_only=True, omit_defaults=True):
    """A stored rule. Each change gives it a new `etag`; `set_version` is the rule-set version of its last change."""

    version: int = 1
    set_version: int = 0
    etag: str = ""
    created_at: str = ""
    updated_at: str = ""
    updated_by: str = ""


class CompiledRule:
    """A compiled rule. Raises `InvalidPayloadError` or `InvalidIdError`, naming the invalid field."""

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
        # Rules for a schema before rules for any; then type, priority, specificity and name.
        self.order = (
            rule.schema_id is None,
            list(ResolutionType).index(kind),
            rule.priority,
            -specificity(rule.topic_pattern),
            rule.name,
            rule.topic_pattern,
        )

    def in_force(self, now_ms: int) -> bool:
        """Whether the time is within the validity period."""
        is_begun = self.from_ms is None or self.from_ms <= now_ms
        return is_begun and (self.until_ms is None or now_ms < self.until_ms)

    def dataset(self, message: object, headers: Headers) -> str | None:
        """Return the dataset of the first matching condition, or the default, or None."""
        for predicate in self.predicates:
            if predicate.holds(message, headers):
                return predicate.dataset_urn
        return self.default


def glob(pattern: str) -> re.Pattern[str] | None:
    """Return the regular expression of a wildcard pattern, or None for a plain topic.

    It takes linear time in the topic for each `*`: the literal between two of them is matched at its first position
    only, without backtracking.
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
    """Return the specificity of a pattern: its number of literal characters."""
    return len(WILDCARDS.sub("", pattern))


def checked(rule: RuleSpec) -> RuleSpec:
    """Return a rule in canonical form. Raises `InvalidPayloadError` or `InvalidIdError`, naming the field."""
    what = _what(rule)
    kind = _kind(rule)
    if not _PATTERN.fullmatch(rule.topic_pattern):
        raise InvalidPayloadError(f"{what}: topic_pattern: use 1 to 512 characters without spaces")
    check_new_path(f"{what}: topic_pattern", rule.topic_pattern, 512, is_foreign=True)
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
    """Return the rule of a request. Raises `InvalidPayloadError`, naming the field."""
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
    """Return the key of a rule's row."""
    return RESOLUTION_RULE.key(topic_pattern=key.topic_pattern, name=key.name)


def rule_item(rule: Rule) -> Item:
    """Return the row of a rule."""
    fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
    fields["conditions"] = [msgspec.to_builtins(each) for each in rule.conditions] or None
    item = {**DATASET_RESOLUTION.key_attributes(rule_key(rule.key)), **fields}
    item["enabled_pk"] = ENABLED if rule.enabled else DISABLED
    # A key attribute of an index cannot be null.
    return {name: value for name, value in item.items() if value is not None or name == "conditions"}


def reference_items(rule: Rule) -> list[Item]:
    """Return the rows that list a conditional rule under its datasets; other rules are listed by their own row."""
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
    """Return the rule of a row. Raises `CorruptionError`."""
    try:
        return typed_decode.convert({name: value for name, value in item.items() if value is not None}, Rule)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"row {item.get('PK')} {item.get('SK')}: not a rule ({exc})") from exc


def mark(rule: Rule) -> int:
    """Return the checksum of a rule; those of a rule set are combined by exclusive or."""
    text = msgspec.json.encode([rule.topic_pattern, rule.name, rule.etag])
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def marks(rules: Iterable[Rule]) -> int:
    """Return the checksum of a rule set."""
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
    """Raise `InvalidPayloadError` for fields that do not go together."""
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
    """Return a condition as a row returns it. Raises `InvalidPayloadError` for a value that JSON cannot represent."""
    value = payload.decode(payload.encode(condition.value, what=field), Any, what=field)
    return replace(condition, operator=condition.operator.strip().upper(), value=value)


def _check_urns(rule: RuleSpec, what: str) -> None:
    for field, urn in rule.datasets():
        try:
            dataset_urn(urn)
        except InvalidIdError as exc:
            raise InvalidIdError(f"{what}: {field}: {exc}") from exc
