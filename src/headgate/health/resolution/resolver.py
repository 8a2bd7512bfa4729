"""Resolution: which dataset a message belongs to, by its topic, schema, headers and payload.

A header may name the dataset itself. Otherwise rules are asked: those for the message's schema before those for any;
EXACT before CONDITIONAL before WILDCARD; then the lower priority, the more specific pattern, the name. A message that
no rule knows belongs to `urn:dp:unknown:{topic}` and is flagged, so that nothing is dropped silently.
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
# Not v1 alone, which would be taken for the version of a dataset called unknown.
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
    """Where a message belongs. `rule` is None if a header said so, or if nothing did.

    `snapshot` names the rules as they were: equal snapshots give equal answers, unless a rule's time comes or ends.
    """

    dataset_urn: str
    rule: RuleKey | None
    is_mapped: bool
    snapshot: str
    warning: str | None = None


class Outcome(enum.StrEnum):
    """What became of a rule when a message was resolved."""

    MATCHED = "MATCHED"
    NOT_MATCHED = "NOT_MATCHED"
    NOT_REACHED = "NOT_REACHED"


class Step(Struct, frozen=True):
    """One rule that was looked at, or the header for None, and why it did or did not match."""

    rule: RuleKey | None
    outcome: Outcome
    why: str


class Explanation(Struct, frozen=True):
    """How a message was resolved. Rules whose pattern the topic does not match are only counted."""

    resolution: Resolution
    steps: list[Step]
    others: int


class Resolver:
    """Resolves messages, and keeps the rules. Safe to use from many threads."""

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
        """Take the parts; `registered` is the registry's `get`, and an empty `override_header` means there is none."""
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
        """Return the dataset of a message. Payloads are decoded JSON; without one, all its fields are missing.

        Raises `InvalidPayloadError` for what is no topic, and `TransientError` if the rules were never read and the
        store cannot be asked. Rules that were read before go on being used.
        """
        return self._resolve(self._book.matcher(), topic, payload, _texts(headers), schema_id)

    def explain(
        self,
        topic: str,
        payload: object = None,
        headers: Mapping[str, str | bytes] | None = None,
        schema_id: str | None = None,
    ) -> Explanation:
        """Resolve a message and say why it came out so: each rule for its topic, in the order they are asked."""
        matcher = self._book.matcher()
        texts = _texts(headers)
        resolution = self._resolve(matcher, topic, payload, texts, schema_id)
        rules = matcher.about(topic)
        steps = [self._header_step(texts)]
        # Whoever won, the header or a rule: those after it were not asked.
        is_over = steps[0].outcome is Outcome.MATCHED
        for rule in rules:
            if is_over:
                steps.append(Step(rule.key, Outcome.NOT_REACHED, "one before it matched"))
                continue
            step = _step(rule, payload, texts, schema_id, self._now_ms())
            is_over = step.outcome is Outcome.MATCHED
            steps.append(step)
        return Explanation(resolution, steps, len(matcher) - len(rules))

    def add(self, spec: RuleSpec, *, actor: str, reason: str = "") -> Rule:
        """Keep a new rule. Raises `AlreadyExistsError`; `InvalidPayloadError`, `InvalidIdError` or
        `DatasetNotFoundError`, naming the field that is wrong.
        """
        return self._editor.add(spec, actor=actor, reason=reason)

    def update(self, spec: RuleSpec, *, expected_version: int, actor: str, reason: str = "") -> Rule:
        """Replace a rule, all of it. Raises `NotFoundError`, `VersionConflictError`, and as `add` does."""
        return self._editor.update(spec, expected_version=expected_version, actor=actor, reason=reason)

    def remove(
        self, topic_pattern: str, name: str, *, actor: str, expected_version: int = UNCHECKED, reason: str = ""
    ) -> None:
        """Take a rule away. Raises `NotFoundError` and `VersionConflictError`."""
        self._editor.remove(topic_pattern, name, actor=actor, expected_version=expected_version, reason=reason)

    def get(self, topic_pattern: str, name: str) -> Rule:
        """Return a rule. Raises `NotFoundError`."""
        return self._editor.get(topic_pattern, name)

    def of_dataset(self, urn: str) -> list[Rule]:
        """Return the rules that name a dataset. An index: it may lag."""
        return self._editor.of_dataset(urn)

    def ls(
        self,
        *,
        topic_pattern: str | None = None,
        enabled: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Rules:
        """Return rules, a page at a time."""
        return self._editor.ls(topic_pattern=topic_pattern, enabled=enabled, limit=limit, cursor=cursor)

    def snapshot(self) -> str:
        """Return what names the rules that are in use now."""
        return self._book.matcher().snapshot

    def broken(self) -> dict[RuleKey, str]:
        """Return rows that should be rules and are not, which only edits by hand can bring about, and why."""
        return dict(self._book.matcher().broken)

    @property
    def stale_used(self) -> int:
        """How often rules were used that may have been out of date, as the store could not be asked."""
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
        """Return the dataset that a header names. What is no URN names nothing."""
        given = headers.get(self._override_header) if headers and self._override_header else None
        try:
            return None if given is None else dataset_urn(given.strip())
        except InvalidIdError:
            return None

    def _header_step(self, headers: Headers) -> Step:
        if self._named(headers) is not None:
            return Step(None, Outcome.MATCHED, f"header {self._override_header} names the dataset")
        is_there = self._override_header in headers
        why = "is not a dataset's URN" if is_there else "is not there"
        return Step(None, Outcome.NOT_MATCHED, f"header {self._override_header} {why}")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def unknown_urn(topic: str) -> str:
    """Return a URN for a topic that no rule knows. Different topics have different ones."""
    if _LEGAL.fullmatch(topic) and len(_UNKNOWN) + len(topic) <= LENGTH_MAX:
        return f"{_UNKNOWN}{topic}"
    digest = hashlib.blake2b(topic.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    room = LENGTH_MAX - len(_UNKNOWN) - len(digest) - 3
    return f"{_UNKNOWN}t.{_NOT_ALLOWED.sub('-', topic)[:room]}~{digest}"


def _step(rule: CompiledRule, payload: object, headers: Headers, schema_id: str | None, now_ms: int) -> Step:
    """Ask one rule, and say what came of it."""
    spec = rule.rule
    if spec.schema_id not in (None, schema_id):
        return Step(rule.key, Outcome.NOT_MATCHED, f"it is for schema {spec.schema_id}, not {schema_id}")
    if not rule.in_force(now_ms):
        since, until = spec.effective_from or "ever", spec.effective_until or "ever"
        return Step(rule.key, Outcome.NOT_MATCHED, f"it is in force from {since} until {until}")
    for predicate in rule.predicates:
        if predicate.holds(payload, headers):
            return Step(rule.key, Outcome.MATCHED, f"{predicate.text}: {predicate.dataset_urn}")
    if rule.default is None:
        return Step(rule.key, Outcome.NOT_MATCHED, "no condition holds, and it has no default")
    why = "no condition holds, its default" if rule.predicates else f"{spec.resolution_type} {spec.topic_pattern}"
    return Step(rule.key, Outcome.MATCHED, f"{why}: {rule.default}")


def _texts(headers: Mapping[str, str | bytes] | None) -> Headers:
    """Return headers as text under names in lower case. Kafka's are bytes."""
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
