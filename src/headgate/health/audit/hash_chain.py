"""Audit hash chains: how an entry follows from the one before, and how head and anchor are sealed. No I/O.

Each entry has the hash of the one before it, so that altering, removing or moving one changes every later hash; the
head has the last hash and is sealed with a key that the store does not hold. Pruning old entries leaves an anchor with
the hash of the last pruned one, sealed in the same way, from which the rest of the chain verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, Outcome
from headgate.errors import CorruptionError, InvalidPayloadError, SignatureError
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import AUDIT, AUDIT_ANCHOR, AUDIT_ENTRY, AUDIT_HEAD
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, equals, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, dump_ordered

CHAINS: Final = 16
# The previous hash of the first entry of a chain.
NOTHING: Final = "0" * 64
TEXT_MAX: Final = 2000
ENTITY_MAX: Final = 1024
CHANGED_MAX: Final = 200
_KEYS: Final = ("PK", "SK")


class Record(Struct, frozen=True, kw_only=True):
    """An entry as it is stored."""

    id: str
    chain: int
    sequence: int
    at: str
    actor: str
    action: str
    entity: str
    before_version: int | None
    after_version: int | None
    changed: tuple[str, ...]
    reason: str
    ticket: str | None
    digest: str
    previous: str
    hash: str
    # Entries of earlier builds have none.
    outcome: Outcome = Outcome.DONE


class Head(Struct, frozen=True):
    """The end of a chain. `sequence` is also the number of entries."""

    chain: int
    sequence: int = 0
    hash: str = NOTHING
    at: str = ""


class Anchor(Struct, frozen=True):
    """The start of a chain whose older entries were pruned.

    `sequence`, `hash` and `at` are those of the last pruned entry, `count` is the number of all pruned entries.
    """

    chain: int
    sequence: int = 0
    hash: str = NOTHING
    at: str = ""
    count: int = 0
    pruned_at: str = ""


def chain_of(entity: str) -> int:
    """Return the chain of an entity. It never changes."""
    return int.from_bytes(hashlib.sha256(entity.encode()).digest()[:4]) % CHAINS


def record_of(entry: AuditEntry, head: Head, entry_id: str, now_ms: int) -> Record:
    """Return the entry that follows `head`. Its timestamp is never before that of the previous entry."""
    unhashed = Record(
        id=entry_id,
        chain=head.chain,
        sequence=head.sequence + 1,
        at=max(instant(now_ms), head.at),
        previous=head.hash,
        hash="",
        **msgspec.structs.asdict(entry),
    )
    return msgspec.structs.replace(unhashed, hash=hash_of(unhashed))


def hash_of(record: Record) -> str:
    """Return the hash of an entry: over all its fields, the previous hash included."""
    content = msgspec.to_builtins(record)
    del content["hash"]
    if not record.outcome:
        # Left out, so that the hashes of entries from before there were outcomes stay valid.
        del content["outcome"]
    return hashlib.sha256(dump_ordered(content)).hexdigest()


def following(record: Record) -> Head:
    """Return the head of a chain that ends with this entry."""
    return Head(record.chain, record.sequence, record.hash, record.at)


def entry_write(record: Record) -> Put:
    """Return the write of an entry, conditional on a free position."""
    key = AUDIT_ENTRY.key(chain=record.chain, sequence=record.sequence)
    return Put(AUDIT, {**AUDIT.key_attributes(key), **msgspec.to_builtins(record)}, absent())


def head_write(before: Head, after: Head, keyring: Keyring) -> Put:
    """Return the write that moves a head, conditional on its old position."""
    row = {
        **AUDIT.key_attributes(head_key(after.chain)),
        **msgspec.to_builtins(after),
        "version": after.sequence,
        "seal": keyring.encrypt(dump_ordered(msgspec.to_builtins(after)), context=_context(after.chain)),
    }
    return Put(AUDIT, row, version_is(before.sequence) if before.sequence else absent())


def anchor_write(before: Anchor, after: Anchor, keyring: Keyring) -> Put:
    """Return the write that moves an anchor, conditional on its old position."""
    row = {
        **AUDIT.key_attributes(anchor_key(after.chain)),
        **msgspec.to_builtins(after),
        "version": after.sequence,
        "seal": keyring.encrypt(dump_ordered(msgspec.to_builtins(after)), context=_anchor_context(after.chain)),
    }
    return Put(AUDIT, row, version_is(before.sequence) if before.sequence else absent())


def anchor_key(chain: int) -> Key:
    """Return the key of a chain's anchor."""
    return AUDIT_ANCHOR.key(chain=chain)


def anchor_of(row: Item | None, chain: int, keyring: Keyring) -> Anchor:
    """Return the anchor of a row. Raises `CorruptionError` if its seal is invalid."""
    if row is None:
        return Anchor(chain)
    try:
        sealed = keyring.decrypt(str(row.get("seal")), context=_anchor_context(chain))
        anchor = typed_decode.convert({name: row.get(name) for name in Anchor.__struct_fields__}, Anchor)
    except (SignatureError, msgspec.ValidationError) as exc:
        raise CorruptionError(
            f"audit chain {chain}: its anchor was altered ({exc}), so its pruned entries are not accounted for; "
            "restore a backup"
        ) from exc
    if sealed != dump_ordered(msgspec.to_builtins(anchor)) or row.get("version") != anchor.sequence:
        raise CorruptionError(
            f"audit chain {chain}: its anchor says {anchor.sequence} pruned entries, which is not what was sealed; "
            "restore a backup"
        )
    return anchor


def resealed_anchor(row: Item, chain: int, lost_keys: Collection[str], keyring: Keyring) -> Put | None:
    """Return the write that seals an anchor again with the present key, or None if its key is not lost."""
    seal = str(row.get("seal"))
    if seal.partition(".")[0] not in lost_keys:
        return None
    try:
        anchor = typed_decode.convert({name: row.get(name) for name in Anchor.__struct_fields__}, Anchor)
    except msgspec.ValidationError:
        # It was altered, which a verification reports.
        return None
    if anchor.chain != chain:
        return None
    return msgspec.structs.replace(anchor_write(anchor, anchor, keyring), condition=equals("seal", seal))


def head_key(chain: int) -> Key:
    """Return the key of a chain's head."""
    return AUDIT_HEAD.key(chain=chain)


def head_of(row: Item | None, chain: int, keyring: Keyring) -> Head:
    """Return the head of a row. Raises `CorruptionError` if its seal is invalid."""
    if row is None:
        return Head(chain)
    try:
        sealed = keyring.decrypt(str(row.get("seal")), context=_context(chain))
        head = typed_decode.convert({name: row.get(name) for name in Head.__struct_fields__}, Head)
    except (SignatureError, msgspec.ValidationError) as exc:
        raise CorruptionError(
            f"audit chain {chain}: its head was altered ({exc}); the chain accepts no entries until it is "
            "reopened: run 'headgate audit verify'"
        ) from exc
    if sealed != dump_ordered(msgspec.to_builtins(head)) or row.get("version") != head.sequence:
        raise CorruptionError(
            f"audit chain {chain}: its head has {head.sequence} entries, which is not what was sealed; "
            "run 'headgate audit verify'"
        )
    return head


def read_record(row: Item) -> Record:
    """Return the entry of a row. Raises `CorruptionError` for an invalid row."""
    try:
        return typed_decode.convert({name: value for name, value in row.items() if name not in _KEYS}, _Strict)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"audit entry {row.get('PK')} {row.get('SK')}: invalid ({exc})") from exc


def check_entry(entry: AuditEntry) -> None:
    """Raise `InvalidPayloadError` for an entry with missing or too long fields."""
    for name in ("actor", "action", "entity"):
        text = getattr(entry, name)
        if not text or len(text.encode()) > ENTITY_MAX:
            raise InvalidPayloadError(f"{name} {text[:40]!r}: an audit entry needs {name} of 1 to {ENTITY_MAX} bytes")
    for name, text in (("reason", entry.reason), ("ticket", entry.ticket or ""), ("digest", entry.digest)):
        if len(text) > TEXT_MAX:
            raise InvalidPayloadError(f"{name} of {entry.action}: {len(text)} characters; at most {TEXT_MAX}")
    if len(entry.changed) > CHANGED_MAX:
        raise InvalidPayloadError(f"{entry.action}: {len(entry.changed)} changed fields; name at most {CHANGED_MAX}")


class _Strict(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry in a row without other attributes."""


def _context(chain: int) -> str:
    # The key for fields, not the one for tokens: heads of idle chains must be readable after any number of rotations.
    return f"{AUDIT.name}#AUDIT#{chain}#HEAD"


def _anchor_context(chain: int) -> str:
    return f"{AUDIT.name}#AUDIT#{chain}#ANCHOR"
