"""Audit chains: how entries follow from each other, and how their head is sealed. Decides only; no I/O.

Each entry names the hash of the one before it, so that none can be altered, left out or moved without every later hash
changing; the head names the last hash and is sealed with a key that the store does not hold.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry
from headgate.errors import CorruptionError, InvalidPayloadError, SignatureError
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import AUDIT, AUDIT_ENTRY, AUDIT_HEAD
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, dump_ordered

CHAINS: Final = 16
# What the first entry of a chain follows.
NOTHING: Final = "0" * 64
TEXT_MAX: Final = 2000
ENTITY_MAX: Final = 1024
CHANGED_MAX: Final = 200
_KEYS: Final = ("PK", "SK")


class Record(Struct, frozen=True, kw_only=True):
    """One entry as it is kept."""

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


class Head(Struct, frozen=True):
    """Where a chain ends. `sequence` is also how many entries it has."""

    chain: int
    sequence: int = 0
    hash: str = NOTHING
    at: str = ""


def chain_of(entity: str) -> int:
    """Return the chain that holds everything about an entity. It never changes."""
    return int.from_bytes(hashlib.sha256(entity.encode()).digest()[:4]) % CHAINS


def record_of(entry: AuditEntry, head: Head, entry_id: str, now_ms: int) -> Record:
    """Return the entry that follows `head`. Its moment is never before that of the one it follows."""
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
    """Return what the hash of an entry must be: over everything it says, the hash before it included."""
    said = msgspec.to_builtins(record)
    del said["hash"]
    return hashlib.sha256(dump_ordered(said)).hexdigest()


def following(record: Record) -> Head:
    """Return the head of a chain that ends with this entry."""
    return Head(record.chain, record.sequence, record.hash, record.at)


def entry_write(record: Record) -> Put:
    """Return the write of an entry, which only a place that is free takes."""
    key = AUDIT_ENTRY.key(chain=record.chain, sequence=record.sequence)
    return Put(AUDIT, {**AUDIT.key_attributes(key), **msgspec.to_builtins(record)}, absent())


def head_write(before: Head, after: Head, keyring: Keyring) -> Put:
    """Return the write that moves a head, if it is still where it was."""
    row = {
        **AUDIT.key_attributes(head_key(after.chain)),
        **msgspec.to_builtins(after),
        "version": after.sequence,
        "seal": keyring.encrypt(dump_ordered(msgspec.to_builtins(after)), context=_context(after.chain)),
    }
    return Put(AUDIT, row, version_is(before.sequence) if before.sequence else absent())


def head_key(chain: int) -> Key:
    """Return where the head of a chain is kept."""
    return AUDIT_HEAD.key(chain=chain)


def head_of(row: Item | None, chain: int, keyring: Keyring) -> Head:
    """Return the head that a row holds. Raises `CorruptionError` if it is not as it was sealed."""
    if row is None:
        return Head(chain)
    try:
        sealed = keyring.decrypt(str(row.get("seal")), context=_context(chain))
        head = typed_decode.convert({name: row.get(name) for name in Head.__struct_fields__}, Head)
    except (SignatureError, msgspec.ValidationError) as exc:
        raise CorruptionError(
            f"audit chain {chain}: its head was altered ({exc}); nothing more is added to it until "
            "someone has looked at it: 'headgate audit verify' says what is wrong"
        ) from exc
    if sealed != dump_ordered(msgspec.to_builtins(head)) or row.get("version") != head.sequence:
        raise CorruptionError(
            f"audit chain {chain}: its head says {head.sequence} entries, which is not what was sealed; "
            "'headgate audit verify' says what is wrong"
        )
    return head


def read_record(row: Item) -> Record:
    """Return the entry that a row holds. Raises `CorruptionError` if it is not one."""
    try:
        return typed_decode.convert({name: value for name, value in row.items() if name not in _KEYS}, _Strict)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"audit entry {row.get('PK')} {row.get('SK')}: not as it was written ({exc})") from exc


def check_entry(entry: AuditEntry) -> None:
    """Refuse an entry that says too little or too much. Raises `InvalidPayloadError`."""
    for name in ("actor", "action", "entity"):
        text = getattr(entry, name)
        if not text or len(text.encode()) > ENTITY_MAX:
            raise InvalidPayloadError(
                f"{name} {text[:40]!r}: a change is audited with a {name} of 1 to {ENTITY_MAX} bytes"
            )
    for name, text in (("reason", entry.reason), ("ticket", entry.ticket or ""), ("digest", entry.digest)):
        if len(text) > TEXT_MAX:
            raise InvalidPayloadError(f"{name} of {entry.action}: {len(text)} characters; at most {TEXT_MAX} are kept")
    if len(entry.changed) > CHANGED_MAX:
        raise InvalidPayloadError(f"{entry.action}: {len(entry.changed)} changed fields; name at most {CHANGED_MAX}")


class _Strict(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry in a row that holds nothing else."""


def _context(chain: int) -> str:
    # The key of fields, not that of tokens: heads of quiet chains must be readable after any number of rotations.
    return f"{AUDIT.name}#AUDIT#{chain}#HEAD"
