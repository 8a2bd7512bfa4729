"""Signal resets: delete all signals of a dataset on request, so that its engines start again.

The history stays. Incidents of this dataset alone are closed; shared ones are evaluated again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, StoreBusyError
from headgate.health.incidents.rows import TimerKind, due_put
from headgate.health.model.signals import signal_key
from headgate.health.results.service import ReportedResults
from headgate.health.retirement import Retirement
from headgate.health.signals.freshness_rows import freshness_put
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
# Each with a timer of its incident, this many fit one transaction beside the audit entry.
TOGETHER: Final = 40


class Reset(Struct, frozen=True):
    """The signals that were deleted, and the incidents that were closed."""

    dataset_urn: str
    signal_types: list[str]
    incident_ids: list[str]


class Resets:
    """Deletes the signals of datasets. Idempotent."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cache: Cache,
        audit: AuditLog,
        retirement: Retirement,
        results: ReportedResults,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache
        self._audit = audit
        self._retirement = retirement
        self._results = results

    def reset(self, dataset_urn: str, *, actor: str, reason: str) -> Reset:
        """Delete the signals of a dataset, named by its registered URN, and close its incidents.

        After a crash, calling it again finishes the work. Raises `InvalidPayloadError` without a reason, and
        `StoreBusyError` if updates keep arriving.
        """
        if not reason.strip() or len(reason) > REASON_MAX:
            raise InvalidPayloadError(f"reset of {dataset_urn}: reason is missing, or longer than {REASON_MAX}")
        # Incidents first: they unlink their signals, which is impossible once the signals are deleted.
        ended = self._retirement.end_incidents(dataset_urn, f"signals were reset: {reason}", actor)
        # A test that failed and was removed from its project would otherwise fail the signal again.
        self._results.forget(dataset_urn)
        deleted: list[str] = []
        query = Query(table=SIGNAL_STATE, partition=dataset_urn, limit=SIGNALS_OF_A_DATASET_MAX, consistent=True)
        for _ in range(ATTEMPTS_MAX):
            rows = self._store.query(query).items
            try:
                for start in range(0, len(rows), TOGETHER):
                    deleted += self._delete(dataset_urn, rows[start : start + TOGETHER], actor, reason)
            except ConflictError:
                continue
            finally:
                # Versions start again at 1: cached signals must not win over them.
                self._cache.invalidate(cache_keys.signal_states_of(dataset_urn))
            return Reset(dataset_urn, sorted(deleted), ended)
        raise StoreBusyError(f"signals of {dataset_urn}: updates keep arriving; stop their sender and try again")

    def _delete(self, dataset_urn: str, rows: list[Item], actor: str, reason: str) -> list[str]:
        types = [str(row["SK"]) for row in rows]
        now_ms = int(self._clock.seconds() * 1000)
        held = dict.fromkeys(row["incident_id"] for row in rows if row.get("incident_id") is not None)
        writes: list[Write] = [
            *(Delete(SIGNAL_STATE, signal_key(row["PK"], row["SK"]), version_is(row["version"])) for row in rows),
            *(due_put(TimerKind.RECOVERY, each, now_ms) for each in held),
            # Reports are expected from now on; without a freshness SLO, the timer ends by itself.
            freshness_put(dataset_urn, now_ms, now_ms),
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
