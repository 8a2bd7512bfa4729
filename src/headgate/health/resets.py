"""Resets: all signals of a dataset are forgotten at the word of someone, and whoever measures it begins anew.

What was said stays in the history. Incidents of the dataset alone are over; those it shares are looked at again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, StoreBusyError
from headgate.health.incidents.rows import TimerKind, due_put
from headgate.health.model.signals import signal_key
from headgate.health.retirement import Retirement
from headgate.health.signals.reads import SIGNALS_OF_A_DATASET_MAX
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Delete, Query, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 10
REASON_MAX: Final = 1_024
# With a look at its incident for each, as many as one transaction takes beside the entry of the audit.
TOGETHER: Final = 40


class Reset(Struct, frozen=True):
    """What was forgotten, and which incidents that has ended."""

    dataset_urn: str
    signal_types: list[str]
    incident_ids: list[str]


class Resets:
    """Forgets signals. Done twice, the second time there is nothing left to do."""

    def __init__(self, store: Store, clock: Clock, cache: Cache, audit: AuditLog, retirement: Retirement) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._audit = audit
        self._retirement = retirement

    def reset(self, dataset_urn: str, *, actor: str, reason: str) -> Reset:
        """Forget the signals of a dataset, by the name it is registered under, and end its incidents.

        After a crash the same call does the rest. Raises `InvalidPayloadError` without a reason, and `StoreBusyError`
        if others keep reporting values meanwhile.
        """
        if not reason.strip() or len(reason) > REASON_MAX:
            raise InvalidPayloadError(f"reset of {dataset_urn}: reason is missing, or longer than {REASON_MAX}")
        # First: they let go of their signals, which nobody could take from them once the signals are gone.
        ended = self._retirement.end_incidents(dataset_urn, f"signals were reset: {reason}", actor)
        forgotten: list[str] = []
        for _ in range(ATTEMPTS_MAX):
            rows = self._rows(dataset_urn)
            try:
                for start in range(0, len(rows), TOGETHER):
                    forgotten += self._forget(dataset_urn, rows[start : start + TOGETHER], actor, reason)
            except ConflictError:
                continue
            finally:
                # Their versions begin anew: memory must not take what comes for something old.
                self._cache.invalidate(cache_keys.signal_states_of(dataset_urn))
            return Reset(dataset_urn, sorted(forgotten), ended)
        raise StoreBusyError(f"signals of {dataset_urn}: values keep coming in; stop whoever sends them, and try again")

    def _rows(self, dataset_urn: str) -> list[Item]:
        query = Query(table=SIGNAL_STATE, partition=dataset_urn, limit=SIGNALS_OF_A_DATASET_MAX, consistent=True)
        return self._store.query(query).items

    def _forget(self, dataset_urn: str, rows: list[Item], actor: str, reason: str) -> list[str]:
        types = [str(row["SK"]) for row in rows]
        now_ms = int(self._clock.seconds() * 1000)
        held = dict.fromkeys(row["incident_id"] for row in rows if row.get("incident_id") is not None)
        writes: list[Write] = [
            *(Delete(SIGNAL_STATE, signal_key(row["PK"], row["SK"]), version_is(row["version"])) for row in rows),
            *(due_put(TimerKind.RECOVERY, each, now_ms) for each in held),
        ]
        entry = AuditEntry(
            actor=actor,
            action="signal.reset",
            entity=dataset_urn,
            before_version=None,
            after_version=None,
            changed=tuple(types),
            reason=reason,
        )
        self._audit.commit(writes, entry)
        return types
