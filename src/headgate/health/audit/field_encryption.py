"""Field encryption: on-call and notification fields of incidents, encrypted in rows and masked in answers.

A value is bound to its table, row and field: moved elsewhere, it cannot be decrypted. Values from before encryption
are read as plain text, and encrypted when their row is next written or resealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from headgate.errors import ConflictError, CorruptionError, SignatureError
from headgate.health.model.enums import IncidentStatus
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Query
from headgate.store.model.values import Item
from headgate.store.port import Store

SECRET_FIELDS: Final = ("oncall_user", "notification_state")
MASK: Final = "***"
_SEALED: Final = "sealed:1:"
_ROWS_AT_ONCE: Final = 200


class FieldSealer:
    """Encrypts and decrypts the secret fields of incident rows. Rows are not changed in place."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def seal(self, row: Mapping[str, Any]) -> Item:
        """Return a row with its secret fields encrypted. Idempotent."""
        return {**row, **{name: self._sealed(row, name) for name in _given(row)}}

    def open(self, row: Mapping[str, Any]) -> Item:
        """Return a row with its secret fields decrypted. Raises `CorruptionError` for a tampered one."""
        return {**row, **{name: self._opened(row, name) for name in _given(row)}}

    def view(self, row: Mapping[str, Any], *, is_allowed: bool) -> Item:
        """Return a row for a reader: decrypted, or with the secret fields masked."""
        opened = self.open(row)
        return opened if is_allowed else {**opened, **{name: mask(opened[name]) for name in _given(opened)}}

    def reseal(self, row: Mapping[str, Any]) -> Item | None:
        """Return the fields to write so that a row is under the active key, or None if there are none."""
        active = f"{_SEALED}{self._keyring.keys(Purpose.FIELD)[-1].id}."
        old = [name for name in _given(row) if not (isinstance(row[name], str) and row[name].startswith(active))]
        opened = self.open(row)
        return {name: self._encrypted(opened, name) for name in old} or None

    def reseal_all(self, store: Store) -> int:
        """Re-encrypt every incident under the active key, and return how many changed. Idempotent.

        A concurrent change encrypts its row under the active key itself.
        """
        changed = 0
        for row in _incidents(store):
            fields = self.reseal(row)
            if fields is None:
                continue
            try:
                store.update(
                    INCIDENT_INDEX, INCIDENT_INDEX.key_of(row), set=fields, condition=version_is(row.get("version", 0))
                )
            except ConflictError:
                continue
            changed += 1
        return changed

    def remove_unreadable(self, store: Store) -> int:
        """Remove the secret fields that no key of the keyring decrypts, and return how many. Idempotent."""
        removed = 0
        for row in _incidents(store):
            unreadable = [name for name in _given(row) if not self._is_readable(row, name)]
            if unreadable:
                store.update(
                    INCIDENT_INDEX,
                    INCIDENT_INDEX.key_of(row),
                    remove=unreadable,
                    condition=version_is(row.get("version", 0)),
                )
                removed += len(unreadable)
        return removed

    def _is_readable(self, row: Mapping[str, Any], name: str) -> bool:
        try:
            self._opened(row, name)
        except CorruptionError:
            return False
        return True

    def _sealed(self, row: Mapping[str, Any], name: str) -> str:
        value = row[name]
        if isinstance(value, str) and value.startswith(_SEALED):
            try:
                self._decrypted(row, name, value)
            except SignatureError:
                # Text that looks encrypted: input is never treated as encrypted.
                return self._encrypted(row, name)
            return value
        return self._encrypted(row, name)

    def _opened(self, row: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - whatever was sealed
        value = row[name]
        if not isinstance(value, str) or not value.startswith(_SEALED):
            return value
        try:
            return msgspec.json.decode(self._decrypted(row, name, value))
        except (SignatureError, msgspec.DecodeError) as exc:
            raise CorruptionError(
                f"incident {row.get('PK')}: {name} cannot be decrypted ({exc}); restore the row or the keyring"
            ) from exc

    def _decrypted(self, row: Mapping[str, Any], name: str, value: str) -> bytes:
        return self._keyring.decrypt(value.removeprefix(_SEALED), context=_context(row, name))

    def _encrypted(self, row: Mapping[str, Any], name: str) -> str:
        return _SEALED + self._keyring.encrypt(msgspec.json.encode(row[name]), context=_context(row, name))


def mask(value: Any) -> Any:  # noqa: ANN401 - of the same shape as what is masked
    """Return a masked value: that it exists, and for a map its keys, is all that remains."""
    if value is None:
        return None
    return dict.fromkeys(value, MASK) if isinstance(value, Mapping) else MASK


def _given(row: Mapping[str, Any]) -> list[str]:
    return [name for name in SECRET_FIELDS if row.get(name) is not None]


def _context(row: Mapping[str, Any], name: str) -> str:
    return f"{INCIDENT_INDEX.name}#{row['PK']}#{name}"


def _incidents(store: Store) -> Iterator[Item]:
    for status in IncidentStatus:
        cursor = None
        while True:
            page = store.query(
                Query(
                    table=INCIDENT_INDEX,
                    index="status-severity-index",
                    partition=f"STATUS#{status}",
                    limit=_ROWS_AT_ONCE,
                    cursor=cursor,
                )
            )
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                break
