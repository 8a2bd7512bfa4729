"""Evidence pins: an incident pins evidence, which does not expire until the last pin is removed.

Each pin is an attribute of its own, `pin#{incident_id}`, so that two incidents can pin the same evidence concurrently.
`pin_mark` changes with every pin, so that a concurrent unpin gets a conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.evidence.archive import Archive
from headgate.health.evidence.rows import PIN, PIN_MARK, TTL, row_of_line
from headgate.health.model.timestamps import instant
from headgate.health.model.urns import is_evidence_id
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EVIDENCE_CACHE
from headgate.store.model.conditions import absent, any_of, equals
from headgate.store.model.requests import Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

KEEP_SECONDS: Final = 30 * 86_400
# A row that expires sooner than this may be gone when the caller's transaction commits.
_NEARLY_OVER_SECONDS: Final = 600
_ATTEMPTS: Final = 8
_log = structlog.get_logger(__name__)


class Pins:
    """Pins and unpins evidence."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, archive: Archive) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._archive = archive

    def writes(self, evidence_ids: Sequence[str], incident_id: str, now_ms: int) -> list[Write]:
        """Return the writes that pin evidence to an incident, for the incident's transaction.

        Expired evidence is restored from the archive; missing evidence is left out. A write conflicts only if the same
        evidence is pinned concurrently while it expires or after: then call it again.
        """
        wanted = [each for each in dict.fromkeys(evidence_ids) if is_evidence_id(each)]
        rows = self._rows(wanted)
        gone = self._archive.read([each for each in wanted if each not in rows])
        for each, why in gone.unreadable.items():
            _log.error("evidence cannot be pinned", evidence_id=each, incident_id=incident_id, error=why)
        pins = {f"{PIN}{incident_id}": instant(now_ms), PIN_MARK: self._ids.ulid()}
        writes: list[Write] = []
        for each in wanted:
            if each in rows:
                writes += _pinning(rows[each], pins, now_ms)
            elif each in gone.lines:
                writes.append(Put(EVIDENCE_CACHE, {**row_of_line(gone.lines[each]), **pins}, absent()))
        return writes

    def unpin(
        self,
        evidence_ids: Sequence[str],
        incident_id: str,
        keep_seconds: float = KEEP_SECONDS,
        *,
        taken_until: str | None = None,
    ) -> None:
        """Remove the pins of an incident. Evidence without pins expires after `keep_seconds`. Idempotent.

        With `taken_until`, pins after that time stay: the incident has reopened.
        """
        wanted = [each for each in dict.fromkeys(evidence_ids) if is_evidence_id(each)]
        for each, row in self._rows(wanted).items():
            self._unpin(each, row, f"{PIN}{incident_id}", round(self._clock.seconds() + keep_seconds), taken_until)

    def _unpin(self, evidence_id: str, found: Item, pin: str, ttl: int, taken_until: str | None) -> None:
        row: Item | None = found
        for _ in range(_ATTEMPTS):
            if row is None or pin not in row or (taken_until is not None and row[pin] > taken_until):
                return
            is_last = not any(name.startswith(PIN) and name != pin for name in row)
            changes = {PIN_MARK: self._ids.ulid(), **({TTL: ttl} if is_last else {})}
            condition = equals(PIN_MARK, row[PIN_MARK])
            try:
                self._store.update(EVIDENCE_CACHE, Key(evidence_id), set=changes, remove=(pin,), condition=condition)
            except ConflictError as exc:
                row = exc.current
            else:
                return
        raise StoreBusyError(f"evidence {evidence_id}: too many concurrent pins and unpins; try again")

    def _rows(self, evidence_ids: Sequence[str]) -> dict[str, Item]:
        keys = [Key(each) for each in evidence_ids]
        rows = self._store.get_many(EVIDENCE_CACHE, keys, consistent=True)
        return {each: row for each, row in zip(evidence_ids, rows, strict=True) if row is not None}


def _pinning(row: Item, pins: Item, now_ms: int) -> list[Write]:
    ttl = row.get(TTL)
    # Also if it is pinned already: an unpin for an earlier resolution must get a conflict.
    if ttl is None or ttl > now_ms / 1000 + _NEARLY_OVER_SECONDS:
        return [Update(EVIDENCE_CACHE, Key(row["evidence_id"]), set=pins, remove=(TTL,))]
    kept = {name: value for name, value in row.items() if name != TTL}
    # The whole row, in case it expires meanwhile; unless another incident has just pinned it.
    return [Put(EVIDENCE_CACHE, {**kept, **pins}, any_of(absent(), equals(TTL, ttl)))]
