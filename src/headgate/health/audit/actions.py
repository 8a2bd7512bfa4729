"""Action log: audits actions whose effect is more than one transaction.

The intent is stored before the effect, and the audit entry replaces it afterwards. If the process ends in between, the
intent stays, and `recover` writes the entry: an action that may have changed something always has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import structlog
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, Outcome, change_digest, changed_fields
from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError, HeadgateError, InvalidItemError, OutcomeUnknownError, UserError
from headgate.health.audit.hash_chain import CHAINS, CHANGED_MAX, ENTITY_MAX, TEXT_MAX, chain_of
from headgate.health.audit.log import Audit
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT, AUDIT_INTENT
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Delete, Poll, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, canonical_item
from headgate.store.port import Store

# No request runs as long as this: an older intent belongs to a process that has ended.
INTERRUPTED_SECONDS: Final = 900.0
_log = structlog.get_logger(__name__)
R = TypeVar("R")
# The resource as its API shows it, without secrets; None if it does not exist.
State = Mapping[str, Any] | None


class Action(Struct, frozen=True, kw_only=True):
    """An action: the caller, the verb such as `pipeline.pause`, the resource and the caller's reason."""

    actor: str
    action: str
    entity: str
    reason: str = ""


class ActionRefused(Exception):
    """Raised by an effect that refused the action and changed nothing."""


class _Intent(Struct, frozen=True, kw_only=True):
    """A stored intent."""

    id: str
    at_ms: int
    about: Action


_REFUSALS: Final = (UserError, ConflictError, ActionRefused)


class ActionLog:
    """Runs actions and audits them. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, audit: Audit) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        # Intents that the last `recover` could not read.
        self._unreadable: frozenset[str] = frozenset()

    def run(
        self,
        action: Action,
        effect: Callable[[], R],
        *,
        state: Callable[[R | None], State],
        entity_of: Callable[[R], str] | None = None,
    ) -> R:
        """Run `effect` and write its audit entry. Raises the errors of `effect`, and `CorruptionError`.

        `state` returns the resource before (with None) and after the effect (with its result). A refused action
        (invalid or in conflict) has changed nothing and leaves no entry. An action that failed otherwise leaves one
        with the outcome FAILED. `entity_of` names a resource that the effect created. If the entry cannot be written
        now, `recover` does it later.
        """
        action = _bounded(action)
        # A tampered chain accepts no entries, and so no changes.
        self._audit.require_intact(action.entity)
        before = state(None)
        intent = _Intent(id=self._ids.make("act"), at_ms=epoch_ms(self._clock), about=action)
        self._store.put(AUDIT, _row(intent), condition=absent())
        try:
            result = effect()
        except Exception as exc:
            if isinstance(exc, _REFUSALS) and not isinstance(exc, OutcomeUnknownError):
                self._store.delete(AUDIT, _key(intent))
            else:
                self._finish(intent, _entry(action, before, before, Outcome.FAILED))
            raise
        if entity_of is not None:
            action = _bounded(msgspec.structs.replace(action, entity=entity_of(result)))
        self._finish(intent, _entry(action, before, state(result), Outcome.DONE))
        return result

    def recover(self, *, limit: int) -> int:
        """Write the entries of actions whose process ended before it wrote them; return their number."""
        oldest_ms = epoch_ms(self._clock) - round(INTERRUPTED_SECONDS * 1000)
        recovered, unreadable = 0, set[str]()
        for chain in range(CHAINS):
            page = self._store.query(
                Query(table=AUDIT, partition=_partition(chain), limit=limit, consistent=True, poll=Poll.RELAXED)
            )
            for row in page.items:
                try:
                    intent = typed_decode.convert(row.get("intent"), _Intent)
                except msgspec.ValidationError as exc:
                    # It must not keep the others from their entries. Logged once, not at each sweep.
                    name = f"{row.get('PK')} {row.get('SK')}"
                    unreadable.add(name)
                    if name not in self._unreadable:
                        _log.error("audit intent unreadable", action="audit.recover", intent=name, error=str(exc))
                    continue
                if intent.at_ms < oldest_ms:
                    self._finish(intent, _entry(intent.about, None, None, Outcome.INTERRUPTED))
                    recovered += 1
        self._unreadable = frozenset(unreadable)
        return recovered

    def _finish(self, intent: _Intent, entry: AuditEntry) -> None:
        """Replace the intent by the entry."""
        try:
            self._audit.commit([Delete(AUDIT, _key(intent), exists())], entry)
        except HeadgateError as exc:
            # The effect is done and the intent is stored: the caller's result stands, and `recover` writes the entry.
            _log.warning(
                "audit entry delayed", action="audit.delay", audited=entry.action, entity=entry.entity, error=str(exc)
            )


def _entry(action: Action, before: State, after: State, outcome: Outcome) -> AuditEntry:
    before, after = _storable(before), _storable(after)
    return AuditEntry(
        action.actor,
        action.action,
        action.entity,
        _version(before),
        _version(after),
        changed=changed_fields(before, after)[:CHANGED_MAX],
        reason=action.reason,
        digest="" if before is None and after is None else change_digest(before, after),
        outcome=outcome,
    )


def _storable(state: State) -> State:
    """Return a state whose digest can be computed: with the JSON text of each value that a row cannot hold.

    A user's JSON, such as a definition, is stored as text and may be nested more deeply than a row.
    """
    return None if state is None else {name: _storable_value(value) for name, value in state.items()}


def _storable_value(value: object) -> object:
    try:
        canonical_item({"value": value})
    except InvalidItemError:
        return msgspec.json.encode(value, order="sorted").decode()
    return value


def _version(state: State) -> int | None:
    version = None if state is None else state.get("version")
    return version if isinstance(version, int) else None


def _bounded(action: Action) -> Action:
    """Return the action with texts that fit an entry."""
    entity = action.entity.encode()[:ENTITY_MAX].decode(errors="ignore")
    return msgspec.structs.replace(action, entity=entity, reason=action.reason[:TEXT_MAX])


def _row(intent: _Intent) -> Item:
    return {**AUDIT.key_attributes(_key(intent)), "intent": msgspec.to_builtins(intent)}


def _key(intent: _Intent) -> Key:
    return AUDIT_INTENT.key(chain=chain_of(intent.about.entity), id=intent.id)


def _partition(chain: int) -> str:
    return str(AUDIT_INTENT.key(chain=chain, id="_").partition)
