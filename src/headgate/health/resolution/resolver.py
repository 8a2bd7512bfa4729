"""Resolver: finds the dataset of a message from its topic, schema, headers and payload.

A header may name the dataset. Otherwise rules are evaluated: those for the message's schema before those for any;
EXACT before CONDITIONAL before WILDCARD; then by priority, specificity of the pattern, and name. A message without a
matching rule belongs to `urn:dp:unknown:{topic}` and is flagged, so that nothing is dropped silently.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.audit_entry import AuditLog
from headgate.clock import Clock
from headgate.errors import InvalidIdError, InvalidPayloadError
from headgate.health.model.urns import LENGTH_MAX, dataset_urn
from headgate.health.resolution.conditions import Condition, Headers, Operator
from headgate.health.resolution.editor import UNCHECKED, Registered, RuleEditor, Rules
from headgate.health.resolution.loader import RuleBook
from headgate.health.resolution.matcher import Matcher
from headgate.health.resolution.rules import CompiledRule, ResolutionType, Rule, RuleKey, RuleSpec, read_rule
from headgate.ids import IdMaker
from headgate.store.cache.read_through import Cache
from headgate.store.port import Store

OVERRIDE_HEADER: Final = "x-dataset-urn"
UNMAPPED_TOPIC: Final = "UNMAPPED_TOPIC"
TOPIC_LENGTH_MAX: Final = 4096
_UNKNOWN: Final = "urn:dp:unknown:"
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._~+@-]")
# Not v1 alone, which would read as the version of a dataset called unknown.
_LEGAL: Final = re.compile(r"(?!v\d+\Z)[A-Za-z0-9][A-Za-z0-9._~+@-]*")

__all__ = [
    "OVERRIDE_HEADER",
    "UNCHECKED",
    "UNMAPPED_TOPIC",
    "Condition",
    "Explanation",
    "Operator",
    "Outcome",
    "Resolution",
    "ResolutionType",
    "Resolver",
    "Rule",
    "RuleKey",
    "RuleSpec",
    "Rules",
    "Step",
    "read_rule",
    "unknown_urn",
]


class Resolution(Struct, frozen=True):
    """The dataset of a message. `rule` is None if a header named it, or if no rule matched.

    `snapshot` identifies the rules: equal snapshots give equal answers, except for rules with a validity period.
    """

    dataset_urn: str
    rule: RuleKey | None
    is_mapped: bool
    snapshot: str
    warning: str | None = None


class Outcome(enum.StrEnum):
    """The outcome of a rule for a message."""

    MATCHED = "MATCHED"
    NOT_MATCHED = "NOT_MATCHED"
    NOT_REACHED = "NOT_REACHED"


class Step(Struct, frozen=True):
    """An evaluated rule, or the header for None, and why it did or did not match."""

    rule: RuleKey | None
    outcome: Outcome
    why: str


class Explanation(Struct, frozen=True):
    """How a message was resolved. Rules whose pattern does not match the topic are only counted."""

    resolution: Resolution
    steps: list[Step]
    others: int


class Resolver:
    """Resolves messages, and manages the rules. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        audit: AuditLog,
        registered: Registered,
        *,
        override_header: str = OVERRIDE_HEADER,
    ) -> None:
        """Take the parts; `registered` is the registry's `get`; an empty `override_header` disables the header."""
        self._clock = clock
        self._override_header = override_header.lower()
        self._book = RuleBook(store, clock, cache)
        self._editor = RuleEditor(store, clock, ids, audit, self._book, registered)

    def resolve(
        self,
        topic: str,
        payload: object = None,
        headers: Mapping[str, str | bytes] | None = None,
        schema_id: str | None = None,
    ) -> Resolution:
        """Return the dataset of a message. A payload is decoded JSON; without one, all its fields are missing.

        Raises `InvalidPayloadError` for an invalid topic, and `TransientError` if the rules were never loaded and the
        store is unavailable. Loaded rules stay in use during an outage.
        """
        return self._resolve(self._book.matcher(), topic, payload, _texts(headers), schema_id)

    def explain(
        self,
        topic: str,
        payload: object = None,
        headers: Mapping[str, str | bytes] | None = None,
        schema_id: str | None = None,
    ) -> Explanation:
        """Resolve a message and explain the result: each rule for its topic, in the order of evaluation."""
        matcher = self._book.matcher()
        texts = _texts(headers)
        resolution = self._resolve(matcher, topic, payload, texts, schema_id)
        rules = matcher.about(topic)
        steps = [self._header_step(texts)]
        # After the header or a rule matched, the remaining rules are not evaluated.
        is_over = steps[0].outcome is Outcome.MATCHED
        for rule in rules:
            if is_over:
                steps.append(Step(rule.key, Outcome.NOT_REACHED, "an earlier one matched"))
                continue
            step = _step(rule, payload, texts, schema_id, self._now_ms())
            is_over = step.outcome is Outcome.MATCHED
            steps.append(step)
        return Explanation(resolution, steps, len(matcher) - len(rules))

    def add(self, spec: RuleSpec, *, actor: str, reason: str = "") -> Rule:
        """Add a rule. Raises `AlreadyExistsError`; `InvalidPayloadError`, `InvalidIdError` or
        `DatasetNotFoundError`, naming the invalid field.
        """
        return self._editor.add(spec, actor=actor, reason=reason)

    def update(self, spec: RuleSpec, *, expected_version: int, actor: str, reason: str = "") -> Rule:
        """Replace a whole rule. Raises `NotFoundError`, `VersionConflictError`, and as `add` does."""
        return self._editor.update(spec, expected_version=expected_version, actor=actor, reason=reason)

    def remove(
        self, topic_pattern: str, name: str, *, actor: str, expected_version: int = UNCHECKED, reason: str = ""
    ) -> None:
        """Delete a rule. Raises `NotFoundError` and `VersionConflictError`."""
        self._editor.remove(topic_pattern, name, actor=actor, expected_version=expected_version, reason=reason)

    def get(self, topic_pattern: str, name: str) -> Rule:
        """Return a rule. Raises `NotFoundError`."""
        return self._editor.get(topic_pattern, name)

    def of_dataset(self, urn: str) -> list[Rule]:
        """Return the rules of a dataset. Reads an index that may lag."""
        return self._editor.of_dataset(urn)

    def ls(
        self,
        *,
        topic_pattern: str | None = None,
        enabled: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Rules:
        """Return a page of rules."""
        return self._editor.ls(topic_pattern=topic_pattern, enabled=enabled, limit=limit, cursor=cursor)

    def snapshot(self) -> str:
        """Return the id of the current rule snapshot."""
        return self._book.matcher().snapshot

    def broken(self) -> dict[RuleKey, str]:
        """Return invalid rule rows, which only manual edits of the table cause, with their errors."""
        return dict(self._book.matcher().broken)

    @property
    def stale_used(self) -> int:
        """How often possibly outdated rules were used because the store was unavailable."""
        return self._book.stale_used

    def _resolve(
        self, matcher: Matcher, topic: str, payload: object, headers: Headers, schema_id: str | None
    ) -> Resolution:
        named = self._named(headers)
        if named is not None:
            return Resolution(named, rule=None, is_mapped=True, snapshot=matcher.snapshot)
        for rule in matcher.about(_topic(topic)):
            if rule.rule.schema_id not in (None, schema_id):
                continue
            if rule.is_timed and not rule.in_force(self._now_ms()):
                continue
            found = rule.dataset(payload, headers)
            if found is not None:
                return Resolution(found, rule=rule.key, is_mapped=True, snapshot=matcher.snapshot)
        unknown = unknown_urn(topic)
        return Resolution(unknown, rule=None, is_mapped=False, snapshot=matcher.snapshot, warning=UNMAPPED_TOPIC)

    def _named(self, headers: Headers) -> str | None:
        """Return the dataset that a header names. An invalid URN is ignored."""
        given = headers.get(self._override_header) if headers and self._override_header else None
        try:
            return None if given is None else dataset_urn(given.strip())
        except InvalidIdError:
            return None

    def _header_step(self, headers: Headers) -> Step:
        if self._named(headers) is not None:
            return Step(None, Outcome.MATCHED, f"header {self._override_header} names the dataset")
        is_there = self._override_header in headers
        why = "is not a dataset URN" if is_there else "is missing"
        return Step(None, Outcome.NOT_MATCHED, f"header {self._override_header} {why}")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def unknown_urn(topic: str) -> str:
    """Return the URN for a topic without a matching rule, distinct for each topic."""
    if _LEGAL.fullmatch(topic) and len(_UNKNOWN) + len(topic) <= LENGTH_MAX:
        return f"{_UNKNOWN}{topic}"
    digest = hashlib.blake2b(topic.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    room = LENGTH_MAX - len(_UNKNOWN) - len(digest) - 3
    return f"{_UNKNOWN}t.{_NOT_ALLOWED.sub('-', topic)[:room]}~{digest}"


def _step(rule: CompiledRule, payload: object, headers: Headers, schema_id: str | None, now_ms: int) -> Step:
    """Evaluate one rule and return the outcome."""
    spec = rule.rule
    if spec.schema_id not in (None, schema_id):
        return Step(rule.key, Outcome.NOT_MATCHED, f"it is for schema {spec.schema_id}, not {schema_id}")
    if not rule.in_force(now_ms):
        since, until = spec.effective_from or "ever", spec.effective_until or "ever"
        return Step(rule.key, Outcome.NOT_MATCHED, f"valid only from {since} until {until}")
    for predicate in rule.predicates:
        if predicate.holds(payload, headers):
            return Step(rule.key, Outcome.MATCHED, f"{predicate.text}: {predicate.dataset_urn}")
    if rule.default is None:
        return Step(rule.key, Outcome.NOT_MATCHED, "no condition matches, and it has no default")
    why = "no condition matches, its default" if rule.predicates else f"{spec.resolution_type} {spec.topic_pattern}"
    return Step(rule.key, Outcome.MATCHED, f"{why}: {rule.default}")


def _texts(headers: Mapping[str, str | bytes] | None) -> Headers:
    """Return headers as text with lower-case names. Kafka headers are bytes."""
    if not headers:
        return _NO_HEADERS
    return {name.lower(): value if isinstance(value, str) else _text(value) for name, value in headers.items()}


def _text(value: Any) -> str:  # noqa: ANN401 - what a client library calls a header
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _topic(topic: str) -> str:
    if not 1 <= len(topic) <= TOPIC_LENGTH_MAX:
        raise InvalidPayloadError(f"topic {topic[:60]!r}: give 1 to {TOPIC_LENGTH_MAX} characters")
    return topic


_NO_HEADERS: Final[Headers] = {}
