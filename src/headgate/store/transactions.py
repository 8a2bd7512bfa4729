"""Transaction rules shared by the backends: conflict errors, safe counters and idempotency tokens.

- A failed condition becomes a `ConflictError` with the same text on every backend.
- `add` is allowed in a transaction that cannot be applied twice: one with a token, or with a write that makes its own
  condition false.
- A token is a row that commits with the writes and holds their digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.errors import ConflictError, TokenReusedError
from headgate.store.catalogue.tables import IDEMPOTENCY
from headgate.store.model.conditions import Absent, AllOf, Compare, Comparison, Condition, Exists, Has, absent, describe
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import KeyPart, Table
from headgate.store.model.values import Item, canonical_item, dump_ordered


def conflict_error(
    table: Table, key: tuple[KeyPart | None, ...], condition: Condition | None, failures: dict[int, Item | None]
) -> ConflictError:
    """Return the error for writes whose conditions did not hold.

    `failures` maps the position of each in its transaction to its current item; `table`, `key` and `condition` are
    those of the first.
    """
    assert condition is not None, "only a conditional write can conflict"
    position = min(failures)
    current = failures[position]
    fact = "the item does not exist" if current is None else "the current item differs"
    return ConflictError(
        f"table {table.name}, item {tuple(key)}: {describe(condition)} does not hold, {fact}; "
        "read the current item and decide again",
        current=current,
        write_index=position,
        failures=failures,
    )


def allows_add(writes: Sequence[Write], token: str | None) -> bool:
    """Whether `add` is safe in this transaction because it cannot be applied twice."""
    if not any(isinstance(write, Update) and write.add for write in writes):
        return False
    return token is not None or any(_refuses_repeat(write) for write in writes)


def _refuses_repeat(write: Write) -> bool:
    """Whether a write surely makes its own condition false."""
    match write:
        case Put():
            return any(isinstance(c, Absent) or _is_undone(c, write.item) for c in _clauses(write.condition))
        case Update():
            changed = {**write.set, **dict.fromkeys(write.remove)}
            return any(_is_undone(c, changed) for c in _clauses(write.condition) if _attribute(c) in changed)
        case Delete():
            return any(isinstance(c, Exists | Has) or _attribute(c) is not None for c in _clauses(write.condition))
        case _:
            return False


def _is_undone(clause: Condition, after: Mapping[str, Any]) -> bool:
    attribute = _attribute(clause)
    # Python's equality instead of the store's, on the safe side: values that may be equal count as equal.
    return attribute is not None and isinstance(clause, Compare) and after.get(attribute) != clause.value


def _attribute(clause: Condition) -> str | None:
    """Return the attribute of a clause that requires one exact value, else None."""
    is_equality = isinstance(clause, Compare) and clause.comparison is Comparison.EQUALS and clause.value is not None
    return clause.attribute if is_equality and isinstance(clause, Compare) else None


def _clauses(condition: Condition | None) -> Sequence[Condition]:
    if condition is None:
        return ()
    return condition.clauses if isinstance(condition, AllOf) else (condition,)


TOKEN_SECONDS: Final = 600


def token_row(token: str, writes: Sequence[Write], now: float) -> Put:
    """Return the last write of a transaction with a token, which conflicts if the transaction was applied before."""
    item = {"idempotency_key": f"transact#{token}", "digest": _digest(writes), "ttl": int(now) + TOKEN_SECONDS}
    return Put(IDEMPOTENCY, item, absent())


def check_replay(conflict: ConflictError, row: Put, position: int) -> None:
    """Return if the conflict means that this transaction was applied before; raise otherwise."""
    if position not in conflict.failures:
        raise conflict
    stored = conflict.failures[position]
    if stored is None or stored.get("digest") == row.item["digest"]:
        return
    raise TokenReusedError(
        f"token {row.item['idempotency_key']!r}: it was used for a different transaction within the last "
        f"{TOKEN_SECONDS // 60} minutes; use a new token",
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
