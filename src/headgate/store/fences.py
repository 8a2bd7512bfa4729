"""Fences: writes that refuse to happen twice, which makes it safe to count beside them in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.store.conditions import Absent, AllOf, Compare, Comparison, Condition, Exists, Has
from headgate.store.writes import Delete, Put, Update, Write


def may_count(writes: Sequence[Write], token: str | None) -> bool:
    """Whether `add` is safe in this transaction, because the transaction cannot happen a second time."""
    if not any(isinstance(write, Update) and write.add for write in writes):
        return False
    return token is not None or any(_refuses_repeat(write) for write in writes)


def _refuses_repeat(write: Write) -> bool:
    """Whether a write makes its own condition false. When in doubt, no."""
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
    # Compared as Python does, not as the store does: what may be the same counts as the same.
    return attribute is not None and isinstance(clause, Compare) and after.get(attribute) != clause.value


def _attribute(clause: Condition) -> str | None:
    """Return the attribute that must have one certain value for the clause to hold, if it is such a clause."""
    is_equality = isinstance(clause, Compare) and clause.comparison is Comparison.EQUALS and clause.value is not None
    return clause.attribute if is_equality and isinstance(clause, Compare) else None


def _clauses(condition: Condition | None) -> Sequence[Condition]:
    if condition is None:
        return ()
    return condition.clauses if isinstance(condition, AllOf) else (condition,)
