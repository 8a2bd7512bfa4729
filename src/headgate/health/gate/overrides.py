"""Gate overrides: audited, temporary permissions to use an unhealthy dataset, and their revocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.clock import Clock
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.health.gate.decisions import Override, Verb
from headgate.health.model import urns
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Delete, Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

SECONDS_MAX: Final = 7 * 86_400
REASON_MAX: Final = 1_024
OF_A_DATASET_MAX: Final = 1_000
_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(Override))


class Overrides:
    """Overrides of one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        audit: AuditLog,
        *,
        registered: Callable[[str], str] = lambda urn: urn,
    ) -> None:
        """Take the store, and `registered`, which returns the URN a dataset is registered under."""
        self._registered = registered
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit

    def grant(
        self,
        dataset_urn: str,
        verb: Verb,
        *,
        seconds: float,
        reason: str,
        actor: str,
        principal: str | None = None,
        ticket: str | None = None,
    ) -> Override:
        """Allow an unhealthy dataset to be used, by one principal or all, for some seconds.

        Raises `InvalidIdError` for an invalid dataset, and `InvalidPayloadError` without a reason or for too long.
        """
        dataset_urn = self._registered(urns.dataset_urn(dataset_urn))
        if not reason.strip() or len(reason) > REASON_MAX:
            raise InvalidPayloadError(f"override of {dataset_urn}: reason is missing, or longer than {REASON_MAX}")
        if not 0 < seconds <= SECONDS_MAX:
            raise InvalidPayloadError(
                f"override of {dataset_urn}: {seconds:g} s is not allowed; grant at most {SECONDS_MAX // 86_400} days"
            )
        now_ms = int(self._clock.seconds() * 1000)
        override = Override(
            override_id=self._ids.make("ovr"),
            dataset_urn=dataset_urn,
            verb=verb,
            actor=actor,
            reason=reason,
            created_at=instant(now_ms),
            expires_at=instant(now_ms + int(seconds * 1000)),
            principal=principal,
            ticket=ticket,
        )
        # The row outlives the override by a second, so that a reader sees it expired instead of missing.
        row: Item = {
            **msgspec.to_builtins(override),
            "PK": f"OVERRIDE#{dataset_urn}",
            "SK": override.override_id,
            "ttl": (now_ms + int(seconds * 1000)) // 1000 + 1,
        }
        self._audit.commit([Put(CONTROL, row)], self._entry(override, "gate.override", actor, reason))
        return override

    def revoke(self, dataset_urn: str, override_id: str, *, actor: str, reason: str = "") -> None:
        """Revoke an override. Raises `NotFoundError` if there is none."""
        dataset_urn = self._registered(urns.dataset_urn(dataset_urn))
        key = Key(f"OVERRIDE#{dataset_urn}", override_id)
        row = self._store.get(CONTROL, key, consistent=True)
        if row is None:
            raise NotFoundError(f"override {override_id} of {dataset_urn}: not found, or expired")
        entry = self._entry(override_of(row), "gate.revoke", actor, reason)
        self._audit.commit([Delete(CONTROL, key, exists())], entry)

    def ls(self, dataset_urn: str) -> list[Override]:
        """Return the active overrides of a dataset."""
        now = instant(int(self._clock.seconds() * 1000))
        found = self._store.query(overrides_query(self._registered(urns.dataset_urn(dataset_urn)))).items
        return [each for each in map(override_of, found) if each.expires_at > now]

    def _entry(self, override: Override, action: str, actor: str, reason: str) -> AuditEntry:
        return AuditEntry(
            actor=actor,
            action=action,
            entity=override.dataset_urn,
            before_version=None,
            after_version=None,
            changed=(override.override_id, override.verb.value),
            reason=reason,
            ticket=override.ticket,
        )


def overrides_query(dataset_urn: str) -> Query:
    """Return the query for the overrides of a dataset, last granted first."""
    return Query(table=CONTROL, partition=f"OVERRIDE#{dataset_urn}", limit=OF_A_DATASET_MAX, descending=True)


def override_of(row: Mapping[str, Any]) -> Override:
    """Return the override of a row."""
    return typed_decode.convert({name: value for name, value in row.items() if name in _FIELDS}, Override)
