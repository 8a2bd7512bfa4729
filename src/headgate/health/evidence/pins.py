"""Pins: incidents hold on to evidence, which then does not expire until the last of them lets go.

Each pin is an attribute of its own, `pin#{incident_id}`, so that two incidents can take hold of the same evidence at
once without either losing. `pin_mark` changes with every pin, which is how whoever lets go notices that another has
just taken hold.
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
# A row that expires sooner than this may be gone when the caller's transaction comes to it.
_NEARLY_OVER_SECONDS: Final = 600
_ATTEMPTS: Final = 8
_log = structlog.get_logger(__name__)


class Pins:
    """Takes hold of evidence and lets it go."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, archive: Archive) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._archive = archive

    def writes(self, evidence_ids: Sequence[str], incident_id: str, now_ms: int) -> list[Write]:
        """Return the writes that pin evidence to an incident, for the incident's own transaction.

        What is gone comes back from the archive; what is there no more either is left out. A write conflicts only if
        the same evidence is pinned at the same moment while it expires or after: then ask again for the writes.
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
        """Let evidence go. What no other incident holds expires after `keep_seconds`. Once more changes nothing.

        With `taken_until`, what was taken hold of after that moment is kept: the incident has broken out again.
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
        raise StoreBusyError(f"evidence {evidence_id}: incidents keep taking hold of it and letting go; try again")

    def _rows(self, evidence_ids: Sequence[str]) -> dict[str, Item]:
        keys = [Key(each) for each in evidence_ids]
        rows = self._store.get_many(EVIDENCE_CACHE, keys, consistent=True)
        return {each: row for each, row in zip(evidence_ids, rows, strict=True) if row is not None}


def _pinning(row: Item, pins: Item, now_ms: int) -> list[Write]:
    ttl = row.get(TTL)
    # Also where it is held already: whoever lets go for an earlier end of the incident must notice.
    if ttl is None or ttl > now_ms / 1000 + _NEARLY_OVER_SECONDS:
        return [Update(EVIDENCE_CACHE, Key(row["evidence_id"]), set=pins, remove=(TTL,))]
    kept = {name: value for name, value in row.items() if name != TTL}
    # Whole, so that it does not matter whether it expires meanwhile; unless another incident has just pinned it.
    return [Put(EVIDENCE_CACHE, {**kept, **pins}, any_of(absent(), equals(TTL, ttl)))]
