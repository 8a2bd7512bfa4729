"""Idempotency tokens of transactions: a row that commits with the writes and says which writes they were."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from headgate.errors import ConflictError, TokenReusedError
from headgate.store.conditions import absent
from headgate.store.tables import IDEMPOTENCY
from headgate.store.values import canonical_item, dump_ordered
from headgate.store.writes import Check, Delete, Put, Update, Write

REMEMBERED_SECONDS: Final = 600


def token_row(token: str, writes: Sequence[Write], now: float) -> Put:
    """Return the write that goes last in the transaction and lets it through only once."""
    item = {"idempotency_key": f"transact#{token}", "digest": _digest(writes), "ttl": int(now) + REMEMBERED_SECONDS}
    return Put(IDEMPOTENCY, item, absent())


def settle(conflict: ConflictError, row: Put, position: int) -> None:
    """Decide what a refused transaction means. Returns if it had been applied before; raises otherwise."""
    if position not in conflict.failures:
        raise conflict
    stored = conflict.failures[position]
    if stored is None or stored.get("digest") == row.item["digest"]:
        return
    raise TokenReusedError(
        f"token {row.item['idempotency_key']!r}: it was used for a different transaction within the last "
        f"{REMEMBERED_SECONDS // 60} minutes; use a new token",
        current=stored,
        write_index=position,
    )


def _digest(writes: Sequence[Write]) -> str:
    digest = hashlib.sha256()
    for write in writes:
        digest.update(f"{type(write).__name__} {write.table.name} {write.condition!r} ".encode())
        match write:
            case Put():
                digest.update(_text(dict(write.item)))
            case Update():
                digest.update(f"{tuple(write.key)!r} {sorted(write.remove)!r} ".encode())
                digest.update(_text(dict(write.set)) + _text(dict(write.add)))
            case Delete() | Check():
                digest.update(repr(tuple(write.key)).encode())
    return digest.hexdigest()


def _text(attributes: dict[str, object]) -> bytes:
    stored, _ = canonical_item(attributes)
    return dump_ordered(stored)
