"""Key check: refuses to use a store with a keyring that lacks keys whose data the store holds.

The store has a row with the ids of the keys that were used with it and a check value of each, which does not reveal the
key. A store without the row is of an older build: it adopts the present keys if they open the heads of the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

from headgate.bootstrap.store import OpenedStore, database_path, dynamodb_for_tables, keys_path
from headgate.clock import Clock
from headgate.errors import ConflictError, KeysLostError, TransientError
from headgate.health.audit.hash_chain import CHAINS, head_key
from headgate.settings import Settings
from headgate.store.catalogue.tables import AUDIT, CONTROL, KEY_CHECK
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item, load
from headgate.store.port import Store
from headgate.store.table_names import TableNames

_ENTITY: Final = "keyring"
Rows = Callable[[Table, Sequence[Key]], Sequence[Item | None]]


def unknown_keys(recorded: Mapping[str, str], keyring: Keyring) -> list[str]:
    """Return the ids of the recorded keys that a keyring does not hold, or holds with another secret."""
    return [key_id for key_id, value in recorded.items() if keyring.check_value(Purpose.FIELD, key_id) != value]


def recorded_with(recorded: Mapping[str, str], keyring: Keyring) -> dict[str, str]:
    """Return what to record: the check value of every field key, by its id.

    Keys of the other purposes are in the same file. A rotation drops them in time, because no table holds their data.
    """
    present = {key.id: keyring.check_value(Purpose.FIELD, key.id) or "" for key in keyring.keys(Purpose.FIELD)}
    return {**recorded, **present}


def lost_keys(rows: Rows, keyring: Keyring | None) -> list[str]:
    """Return the ids of keys whose data a store holds and that are not in the keyring. None: there is no keyring."""
    (row,) = rows(CONTROL, [KEY_CHECK.key()])
    if row is None:
        sealed_with = [str(head["seal"]).partition(".")[0] for head in _heads(rows)]
        held = set() if keyring is None else {key.id for key in keyring.keys(Purpose.FIELD)}
        return sorted({key_id for key_id in sealed_with if key_id not in held})
    recorded: dict[str, str] = row["keys"]
    return list(recorded) if keyring is None else unknown_keys(recorded, keyring)


def check_keys(opened: OpenedStore) -> None:
    """Raise `KeysLostError` if the store holds data of keys that the keyring lacks; else record the present keys."""
    refuse_lost_keys(opened)
    _record(opened.store, opened.keyring)


def refuse_lost_keys(opened: OpenedStore) -> None:
    """Raise `KeysLostError` if the store holds data of keys that the keyring lacks.

    Keys that were created for this very call are removed again: the old ones have to be restored in their place.
    """
    lost = lost_keys(_rows_of(opened.store), opened.keyring)
    path = keys_path(opened.settings)
    if lost:
        if opened.has_new_keys:
            path.unlink(missing_ok=True)
        raise KeysLostError(_message(path.name, str(path.parent), lost, is_missing=opened.has_new_keys))


def check_function_keys(opened: OpenedStore) -> None:
    """Raise `KeysLostError` if the keyring of a function, from its secret, is not that of the servers."""
    row = opened.store.get(CONTROL, KEY_CHECK.key(), consistent=True)
    lost = [] if row is None else unknown_keys(row["keys"], opened.keyring)
    if lost:
        raise KeysLostError(_message("the secret with the keyring", "AWS", lost, is_missing=False))


def lost_keys_in_file(settings: Settings, keyring: Keyring | None) -> list[str]:
    """Return the lost keys of a SQLite store without changing anything. Raises `StoreIOError` and its like."""
    from headgate.store.sqlite.doctor import read_bodies

    names = TableNames(settings.store.table_prefix, settings.store.table_names)
    path = database_path(settings)

    def rows(table: Table, keys: Sequence[Key]) -> list[Item | None]:
        bodies = read_bodies(path, names.physical(table), keys)
        return [None if body is None else load(body) for body in bodies]

    return lost_keys(rows, keyring) if path.exists() and path.stat().st_size else []


def lost_keys_in_tables(settings: Settings, clock: Clock, keyring: Keyring | None) -> list[str]:
    """Return the lost keys of a DynamoDB store without changing anything. Raises the errors of the store."""
    with closing(dynamodb_for_tables(settings, clock)) as store:
        return lost_keys(_rows_of(store), keyring)


def accept_lost_keys(opened: OpenedStore, clock: Clock, *, reason: str) -> list[str]:
    """Use the present keys from now on, and return the ids of the lost ones. Audited.

    The chains of the audit log are sealed again, and encrypted fields that cannot be read are removed. Nothing is done
    if no key is lost.
    """
    from headgate.auth.audit_entry import AuditEntry
    from headgate.auth.principals import LOCAL
    from headgate.health.audit.field_encryption import FieldSealer
    from headgate.health.audit.log import Audit
    from headgate.ids import IdMaker

    store, keyring = opened.store, opened.keyring
    lost = lost_keys(_rows_of(store), keyring)
    if not lost:
        return []
    audit = Audit(store, clock, IdMaker(clock), keyring)
    why = f"keys {', '.join(lost)} were lost: {reason}"
    for chain in range(CHAINS):
        row = store.get(AUDIT, head_key(chain), consistent=True)
        if row is not None and not audit.has_valid_head(chain):
            audit.reopen(chain, actor=LOCAL.name, reason=why)
        audit.reseal_anchor(chain, lost)
    removed = FieldSealer(keyring).remove_unreadable(store)
    audit.commit(
        [], AuditEntry(LOCAL.name, "key.loss_accepted", _ENTITY, None, None, reason=f"{why}; {removed} fields")
    )
    store.put(CONTROL, {**CONTROL.key_attributes(KEY_CHECK.key()), "keys": recorded_with({}, keyring)})
    return lost


def _record(store: Store, keyring: Keyring) -> None:
    row = store.get(CONTROL, KEY_CHECK.key(), consistent=True)
    before: dict[str, str] = {} if row is None else row["keys"]
    after = recorded_with(before, keyring)
    if after != before:
        # A process that cannot write now records them at its next start.
        with suppress(TransientError, ConflictError):
            store.put(CONTROL, {**CONTROL.key_attributes(KEY_CHECK.key()), "keys": after})


def _rows_of(store: Store) -> Rows:
    return lambda table, keys: store.get_many(table, keys, consistent=True)


def _heads(rows: Rows) -> list[Item]:
    found = rows(AUDIT, [head_key(chain) for chain in range(CHAINS)])
    return [row for row in found if row is not None and row.get("seal") is not None]


def _message(name: str, place: str, lost: Sequence[str], *, is_missing: bool) -> str:
    fact = "is missing" if is_missing else "does not hold all keys of this store"
    return (
        f"{name} in {place} {fact}: data was encrypted with {', '.join(sorted(lost))}; restore it from a "
        "backup, or accept the loss of that data with 'headgate key accept-loss'"
    )
