"""Rule editor: changes and lists resolution rules; each change commits with the rule-set row and an audit entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from headgate.auth.audit_entry import AuditEntry, AuditLog, change_digest, changed_fields
from headgate.clock import Clock
from headgate.errors import (
    AlreadyExistsError,
    ConflictError,
    CursorError,
    DatasetNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    QueryLimitError,
    StoreBusyError,
    VersionConflictError,
)
from headgate.health.model.datasets import Dataset
from headgate.health.model.timestamps import instant
from headgate.health.resolution.loader import RuleBook, RuleSet, rule_set_item, rule_set_of
from headgate.health.resolution.rules import (
    DISABLED,
    ENABLED,
    Rule,
    RuleKey,
    RuleSpec,
    checked,
    mark,
    reference_items,
    rule_item,
    rule_key,
    rule_of,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import DATASET_RESOLUTION, RULE_SET
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 64
LIMIT_MAX: Final = 1000
UNCHECKED: Final = -1
REMOVE: Final = "rule.remove"
_RULES: Final = "RULE#"

# Returns the dataset of a URN. Raises `DatasetNotFoundError`.
Registered = Callable[[str], Dataset]


class Rules(Struct, frozen=True):
    """A page of rules, and the cursor of the next page."""

    rules: list[Rule]
    cursor: str | None = None


class RuleEditor:
    """Changes and lists rules. Safe to use from many threads."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdMaker, audit: AuditLog, book: RuleBook, registered: Registered
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        self._book = book
        self._registered = registered

    def add(self, spec: RuleSpec, *, actor: str, reason: str = "") -> Rule:
        """Add a rule. Raises `AlreadyExistsError`, `InvalidPayloadError`, or `DatasetNotFoundError`."""
        wanted = self._checked(spec)

        def decide(held: Rule | None) -> RuleSpec:
            if held is not None:
                raise AlreadyExistsError(
                    f"{_what(wanted.key)}: already exists, at version {held.version}; update it, or use another name",
                    current=msgspec.to_builtins(held),
                )
            return wanted

        made = self._change(wanted.key, decide, actor, "rule.add", reason)
        assert made is not None
        return made

    def update(self, spec: RuleSpec, *, expected_version: int, actor: str, reason: str = "") -> Rule:
        """Replace a rule. Repeating it changes nothing. Raises `VersionConflictError`, `NotFoundError`."""
        wanted = self._checked(spec)

        def decide(held: Rule | None) -> RuleSpec:
            found = _found(wanted.key, held)
            versions = (UNCHECKED, found.version, found.version - 1)
            if _spec_of(found) == wanted and expected_version in versions:
                return found
            _check_version(found, expected_version)
            return wanted

        made = self._change(wanted.key, decide, actor, "rule.update", reason)
        assert made is not None
        return made

    def remove(
        self, topic_pattern: str, name: str, *, actor: str, expected_version: int = UNCHECKED, reason: str = ""
    ) -> None:
        """Delete a rule. Raises `NotFoundError` and `VersionConflictError`."""
        key = RuleKey(topic_pattern, name)

        def decide(held: Rule | None) -> None:
            _check_version(_found(key, held), expected_version)

        self._change(key, decide, actor, REMOVE, reason)

    def get(self, topic_pattern: str, name: str) -> Rule:
        """Return a rule from the store. Raises `NotFoundError`."""
        key = RuleKey(topic_pattern, name)
        item = self._store.get(DATASET_RESOLUTION, rule_key(key), consistent=True)
        return _found(key, None if item is None else rule_of(item))

    def of_dataset(self, urn: str) -> list[Rule]:
        """Return the rules of a dataset, disabled ones included, by pattern and name. Reads an index that may lag."""
        keys: set[RuleKey] = set()
        cursor: str | None = None
        while True:
            query = Query(
                table=DATASET_RESOLUTION, index="dataset-index", partition=urn, limit=LIMIT_MAX, cursor=cursor
            )
            page = self._store.query(query)
            keys |= {RuleKey(item["topic_pattern"], item["name"]) for item in page.items}
            cursor = page.cursor
            if cursor is None:
                break
        ordered = sorted(keys)
        found: list[Rule] = []
        for start in range(0, len(ordered), 100):
            batch = [rule_key(key) for key in ordered[start : start + 100]]
            items = self._store.get_many(DATASET_RESOLUTION, batch, consistent=True)
            found += [rule_of(item) for item in items if item is not None]
        return [rule for rule in found if urn in {named for _, named in rule.datasets()}]

    def ls(
        self,
        *,
        topic_pattern: str | None = None,
        enabled: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Rules:
        """Return rules: of one pattern by name, read consistently, or all by pattern, enabled ones first.

        Of one pattern with `enabled`, a page is filtered from a page of all.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise QueryLimitError(f"limit is {limit}: give 1 to {LIMIT_MAX}")
        if topic_pattern is not None:
            query = Query(
                table=DATASET_RESOLUTION,
                partition=rule_key(RuleKey(topic_pattern, "x")).partition,
                sort=Sort(Range.BEGINS_WITH, _RULES),
                limit=limit,
                cursor=cursor,
                consistent=True,
            )
            page = self._store.query(query)
            rules = [rule_of(item) for item in page.items]
            return Rules([rule for rule in rules if enabled in (None, rule.enabled)], page.cursor)
        wanted = {None: (ENABLED, DISABLED), True: (ENABLED,), False: (DISABLED,)}[enabled]
        return self._partitions(wanted, limit, cursor)

    def _partitions(self, partitions: Sequence[str], limit: int, cursor: str | None) -> Rules:
        """Return rules of one partition after the other. A cursor has its partition."""
        at, _, inner = (cursor or partitions[0]).partition(":")
        if at not in partitions:
            raise CursorError("cursor belongs to another query; use it with the same filters")
        found: list[Rule] = []
        while True:
            query = Query(
                table=DATASET_RESOLUTION,
                index="enabled-index",
                partition=at,
                limit=limit - len(found),
                cursor=inner or None,
            )
            page = self._store.query(query)
            found += [rule_of(item) for item in page.items]
            if page.cursor is not None:
                return Rules(found, f"{at}:{page.cursor}")
            following = partitions[partitions.index(at) + 1 :]
            if not following:
                return Rules(found)
            at, inner = following[0], ""
            if len(found) == limit:
                return Rules(found, at)

    def _checked(self, spec: RuleSpec) -> RuleSpec:
        wanted = checked(RuleSpec(**{name: getattr(spec, name) for name in RuleSpec.__struct_fields__}))
        for field, urn in wanted.datasets():
            try:
                self._registered(urn)
            except DatasetNotFoundError as exc:
                raise DatasetNotFoundError(f"{_what(wanted.key)}: {field}: {exc}") from exc
        return wanted

    def _change(
        self, key: RuleKey, decide: Callable[[Rule | None], RuleSpec | None], actor: str, action: str, reason: str
    ) -> Rule | None:
        """Make a change, deciding again after each conflict. Return the rule, or None if it was deleted."""
        etag = self._ids.ulid()
        keys = [rule_key(key), RULE_SET.key()]
        is_unknown = False
        for _ in range(ATTEMPTS_MAX):
            item, set_item = self._store.get_many(DATASET_RESOLUTION, keys, consistent=True)
            held = None if item is None else rule_of(item)
            rules = rule_set_of(set_item)
            is_removed = is_unknown and held is None and action == REMOVE
            if is_removed or (held is not None and held.etag == etag):
                # An earlier attempt was committed, and its answer was lost.
                self._book.wrote(rules, key, held)
                return held
            wanted = decide(held)
            if isinstance(wanted, Rule):
                # Nothing to change.
                return wanted
            made = None if wanted is None else self._made(wanted, held, rules, etag, actor)
            after = _following(rules, held, made)
            entry = _entry(key, held, made, actor, action, reason)
            try:
                self._audit.commit(_writes(key, held, made, rules, after), entry)
            except ConflictError as exc:
                is_unknown = isinstance(exc, OutcomeUnknownError)
                continue
            self._book.wrote(after, key, made)
            return made
        raise StoreBusyError(f"{_what(key)}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _made(self, wanted: RuleSpec, held: Rule | None, rules: RuleSet, etag: str, actor: str) -> Rule:
        now = instant(int(self._clock.seconds() * 1000))
        return Rule(
            **asdict(wanted),
            version=1 if held is None else held.version + 1,
            set_version=rules.version + 1,
            etag=etag,
            created_at=now if held is None else held.created_at,
            updated_at=now,
            updated_by=actor,
        )


def _writes(key: RuleKey, held: Rule | None, made: Rule | None, before: RuleSet, after: RuleSet) -> list[Write]:
    """Return all writes of one change."""
    unchanged = absent() if held is None else version_is(held.version)
    own: Write = Delete(DATASET_RESOLUTION, rule_key(key), unchanged)
    if made is not None:
        own = Put(DATASET_RESOLUTION, rule_item(made), unchanged)
    of_all = version_is(before.version) if before.version else absent()
    references = [] if made is None else reference_items(made)
    kept = {DATASET_RESOLUTION.key_of(item) for item in references}
    left = [DATASET_RESOLUTION.key_of(item) for item in (reference_items(held) if held is not None else [])]
    return [
        own,
        Put(DATASET_RESOLUTION, rule_set_item(after), of_all),
        *(Put(DATASET_RESOLUTION, item) for item in references),
        *(Delete(DATASET_RESOLUTION, each) for each in left if each not in kept),
    ]


def _following(rules: RuleSet, held: Rule | None, made: Rule | None) -> RuleSet:
    combined = int(rules.marks, 16)
    for rule in (held, made):
        if rule is not None and rule.enabled:
            combined ^= mark(rule)
    return RuleSet(version=rules.version + 1, marks=f"{combined:016x}")


def _entry(key: RuleKey, held: Rule | None, made: Rule | None, actor: str, action: str, reason: str) -> AuditEntry:
    before = None if held is None else msgspec.to_builtins(_spec_of(held))
    after = None if made is None else msgspec.to_builtins(_spec_of(made))
    return AuditEntry(
        actor=actor,
        action=action,
        entity=_what(key),
        before_version=None if held is None else held.version,
        after_version=None if made is None else made.version,
        changed=changed_fields(before, after),
        reason=reason,
        digest=change_digest(before, after),
    )


def _spec_of(rule: Rule) -> RuleSpec:
    return RuleSpec(**{name: getattr(rule, name) for name in RuleSpec.__struct_fields__})


def _found(key: RuleKey, held: Rule | None) -> Rule:
    if held is None:
        raise NotFoundError(f"{_what(key)}: not found")
    return held


def _check_version(held: Rule, expected_version: int) -> None:
    if expected_version not in (UNCHECKED, held.version):
        raise VersionConflictError(
            f"{_what(held.key)}: it is at version {held.version}, not {expected_version}; read it again",
            current=msgspec.to_builtins(held),
        )


def _what(key: RuleKey) -> str:
    return f"rule {key.name} of {key.topic_pattern}"
