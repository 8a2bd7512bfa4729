"""The error of a write that lost its race, in the same words on every backend."""

from __future__ import annotations

from headgate.errors import ConflictError
from headgate.store.conditions import Condition, describe
from headgate.store.schema import KeyPart, Table
from headgate.store.values import Item


def refused(
    table: Table, key: tuple[KeyPart | None, ...], condition: Condition | None, failures: dict[int, Item | None]
) -> ConflictError:
    """Return the error for writes whose conditions did not hold.

    `failures` maps the place of each in its transaction to the item that refused it; `table`, `key` and
    `condition` are those of the first.
    """
    assert condition is not None, "only a condition can refuse"
    place = min(failures)
    current = failures[place]
    fact = "there is no such item" if current is None else "the item says otherwise"
    return ConflictError(
        f"table {table.name}, item {tuple(key)}: {describe(condition)} does not hold, {fact}; "
        "look at the current item and decide again",
        current=current,
        write_index=place,
        failures=failures,
    )
