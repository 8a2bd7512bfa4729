"""Audit entries: the record of a change, and the log that commits it together with the change."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from headgate.store.model.requests import Write
from headgate.store.model.values import canonical_item, dump_ordered, same


class Outcome(enum.StrEnum):
    """The result of an audited action."""

    DONE = ""
    # It raised an error and may have changed something.
    FAILED = "FAILED"
    # The process ended before it recorded the result.
    INTERRUPTED = "INTERRUPTED"


class AuditEntry(Struct, frozen=True):
    """Actor, action, entity and reason of a change. Names the changed fields, but not their possibly secret values."""

    actor: str
    action: str
    entity: str
    before_version: int | None
    after_version: int | None
    changed: tuple[str, ...] = ()
    reason: str = ""
    ticket: str | None = None
    digest: str = ""
    outcome: Outcome = Outcome.DONE


class AuditLog(Protocol):
    """Commits changes together with their audit entries."""

    def commit(self, writes: Sequence[Write], entry: AuditEntry) -> None:
        """Apply `writes` and store `entry` atomically. Raises the `ConflictError` of the caller's own writes."""


def changed_fields(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the fields in which two rows differ, in order."""
    old, new = before or {}, after or {}
    return tuple(
        sorted(
            name
            for name in {*old, *new}
            if name not in old or name not in new or not same(_stored(old[name]), _stored(new[name]))
        )
    )


def change_digest(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, *, secret: Collection[str] = ()
) -> str:
    """Return a digest of a change, to verify copies of the two rows later.

    Fields in `secret` are left out: a value of few possibilities could be guessed from its digest.
    """
    digest = hashlib.sha256()
    for row in (before, after):
        shown = {name: value for name, value in (row or {}).items() if name not in secret}
        digest.update(hashlib.sha256(dump_ordered(canonical_item(shown)[0])).digest())
        digest.update(b"-" if row is None else b"+")
    return digest.hexdigest()


def _stored(value: object) -> object:
    return canonical_item({"value": value})[0]["value"]
