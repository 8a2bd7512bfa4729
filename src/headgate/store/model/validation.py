"""Request validation: the checks of every write and query, shared so that all backends refuse the same input."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from headgate.errors import InvalidItemError, ItemTooLargeError, TransactionLimitError
from headgate.store.model.conditions import EXISTS, VERSION, AllOf, Condition, pins_version
from headgate.store.model.requests import Check, Delete, Put, Query, Range, Update, Write
from headgate.store.model.schema import Key, KeyAttribute, KeyKind, Table
from headgate.store.model.values import Item, TrustedItem, canonical_item, canonical_number, is_text, stored_bytes

ITEM_BYTES_MAX: Final = 400 * 1024
TRANSACTION_WRITES_MAX: Final = 100
TRANSACTION_BYTES_MAX: Final = 4 * 1024 * 1024
QUERY_LIMIT_MAX: Final = 1000
CHANGES_LIMIT_MAX: Final = 1000
TOKEN_LENGTH_MAX: Final = 36
UPDATE_ATTRIBUTES_MAX: Final = 200
# SQLite's largest integer.
KEY_NUMBER_MAX: Final = 2**63 - 1
# ASCII text up to this length needs no check against the key limits.
_KEY_FAST_PATH_CHARS: Final = 200


def checked_item(table: Table, item: object) -> tuple[Item, bool]:
    """Return the canonical item and whether it holds values beyond plain JSON. Raises `InvalidItemError`."""
    if type(item) is TrustedItem:
        return item, False
    if type(item) is not dict and not isinstance(item, Mapping):
        raise InvalidItemError(f"table {table.name}: an item is a mapping, not {type(item).__name__}")
    stored, special = canonical_item(item)
    for attribute in table.own_keys:
        _check_key_part(table, attribute, stored.get(attribute.name))
    check_index_attributes(table, stored)
    return stored, special


def check_index_attributes(table: Table, attributes: Item) -> None:
    """Refuse an index key of the wrong type, and a TTL that is not a number."""
    for attribute in table.index_keys:
        if attribute.name in attributes:
            _check_key_part(table, attribute, attributes[attribute.name])
    if table.ttl_attribute is not None:
        ttl = attributes.get(table.ttl_attribute)
        if ttl is not None and not (type(ttl) is int and abs(ttl) <= KEY_NUMBER_MAX):
            raise InvalidItemError(
                f"table {table.name}: {table.ttl_attribute!r} is {ttl!r}; "
                "it must be whole seconds since 1970, or left out"
            )


def check_key(table: Table, key: Key) -> None:
    """Refuse a key of the wrong form for `table`."""
    partition, sort = key
    # Every check and removal of a row comes here, and most keys are a short text.
    if (
        table.has_text_key
        and sort is None
        and type(partition) is str
        and 0 < len(partition) <= _KEY_FAST_PATH_CHARS
        and partition.isascii()
    ):
        return
    _check_key_part(table, table.partition, partition)
    if table.sort is not None:
        _check_key_part(table, table.sort, sort)
    elif sort is not None:
        raise InvalidItemError(f"table {table.name}: it has no sort key, but the key has {key.sort!r}")


def checked_update(update: Update, *, cannot_repeat: bool) -> Update:
    """Return the update with canonical values. Raises `InvalidItemError`."""
    table = update.table
    check_key(table, update.key)
    touched = [*update.set, *update.add, *update.remove]
    if not 1 <= len(touched) <= UPDATE_ATTRIBUTES_MAX:
        raise InvalidItemError(
            f"table {table.name}: an update changes 1 to {UPDATE_ATTRIBUTES_MAX} attributes, not {len(touched)}"
        )
    for name in touched:
        if not (isinstance(name, str) and name and (name.isascii() or is_text(name))):
            raise InvalidItemError(f"table {table.name}: attribute name {name!r} must be non-empty Unicode text")
        if name in table.key_names:
            raise InvalidItemError(f"table {table.name}: an update cannot change the key attribute {name!r}")
    if len(set(touched)) != len(touched):
        raise InvalidItemError(f"table {table.name}: an update names an attribute twice: {sorted(touched)}")
    values, _ = canonical_item(dict(update.set))
    check_index_attributes(table, values)
    moves_version = VERSION in update.set or VERSION in update.add
    if update.add and not (cannot_repeat or (moves_version and pins_version(update.condition))):
        raise InvalidItemError(
            f"table {table.name}: add {sorted(update.add)} needs version_is(…) and a new version, "
            "a transaction with a token, or a write in the transaction that makes its own condition false; "
            "otherwise a retry could count twice"
        )
    amounts = {name: canonical_number(amount, name) for name, amount in update.add.items()}
    for name in amounts:
        if name in table.index_attributes or name == table.ttl_attribute:
            raise InvalidItemError(
                f"table {table.name}: {name!r} is a key of an index or the TTL; set it, do not add to it"
            )
    return Update(table, update.key, values, amounts, tuple(update.remove), update.condition)


def update_condition(update: Update) -> Condition:
    """Return the effective condition of an update: its own, and that the item exists."""
    return EXISTS if update.condition is None else AllOf((EXISTS, update.condition))


def check_size(table: Table, item: Item) -> None:
    """Refuse an item over the limit. Raises `ItemTooLargeError`."""
    size = stored_bytes(item)
    if size > ITEM_BYTES_MAX:
        raise ItemTooLargeError(
            f"table {table.name}, item {tuple(table.key_of(item))}: {size} bytes, at most {ITEM_BYTES_MAX}; "
            "store the large part as a blob and its name in the item"
        )


def check_transaction(writes: Sequence[Write], token: str | None) -> None:
    """Refuse a transaction beyond the limits of any backend. Raises `TransactionLimitError`."""
    check_length(writes, token)
    check_distinct(writes)


def check_length(writes: Sequence[Write], token: str | None) -> None:
    """Refuse a transaction with too many writes or too long a token."""
    # A token takes one row of the transaction.
    writes_max = TRANSACTION_WRITES_MAX if token is None else TRANSACTION_WRITES_MAX - 1
    if not 1 <= len(writes) <= writes_max:
        kind = "a transaction" if token is None else "a transaction with a token"
        raise TransactionLimitError(f"{kind} has 1 to {writes_max} writes, not {len(writes)}; split it")
    if token is not None and not 1 <= len(token) <= TOKEN_LENGTH_MAX:
        raise TransactionLimitError(f"an idempotency token has 1 to {TOKEN_LENGTH_MAX} characters, not {len(token)}")


def check_transaction_bytes(sizes: Iterable[int]) -> None:
    """Refuse a transaction whose items are too large in total."""
    total = sum(sizes)
    if total > TRANSACTION_BYTES_MAX:
        raise TransactionLimitError(f"the transaction has {total} bytes, at most {TRANSACTION_BYTES_MAX}; split it")


def check_distinct(writes: Sequence[Write]) -> None:
    """Refuse two writes of one item, because writes in a transaction or batch have no order."""
    if len(writes) == 1:
        return
    keys = [(write.table.name, key_of(write)) for write in writes]
    try:
        if len(set(keys)) == len(keys):
            return
    except TypeError as exc:
        table, key = next(each for each in keys if not all(isinstance(part, Hashable) for part in each[1]))
        raise InvalidItemError(f"table {table}: {key!r} cannot be the key of an item") from exc
    table, key = next(each for number, each in enumerate(keys) if each in keys[:number])
    raise TransactionLimitError(f"table {table}, item {tuple(key)}: written twice in one call; merge the writes")


def key_of(write: Write) -> Key:
    """Return the key of a write. Raises `InvalidItemError` if a put lacks a key attribute."""
    if isinstance(write, Update | Delete | Check):
        return write.key
    try:
        return write.table.key_of(write.item)
    except (KeyError, TypeError) as exc:
        raise InvalidItemError(f"table {write.table.name}: the item lacks the key attribute {exc}") from exc


def check_batch(writes: Sequence[Put | Delete]) -> None:
    """Refuse a batch with conditions or with two writes of one item."""
    for write in writes:
        if not isinstance(write, Put | Delete) or write.condition is not None:
            raise InvalidItemError("a batch takes puts and deletes without conditions; use transact for the rest")
    check_distinct(writes)


def check_stream(table: Table, limit: int = 1) -> None:
    """Refuse to read the changes of a table without a stream, or too many at once."""
    if not table.stream:
        raise InvalidItemError(f"table {table.name}: it has no change stream")
    if not 1 <= limit <= CHANGES_LIMIT_MAX:
        raise InvalidItemError(f"stream of {table.name}: limit {limit} is outside 1 to {CHANGES_LIMIT_MAX}")


def check_count(query: Query, by: str | None, most: int) -> None:
    """Refuse a count that the table or index cannot answer."""
    check_query(query)
    table = query.table
    if most < 1:
        raise InvalidItemError(f"table {table.name}: a count of at most {most} items; use a number from 1")
    keys = {*table.key_names, *(each.name for index in table.indexes for each in index.attributes())}
    if by is not None and by not in keys:
        raise InvalidItemError(f"table {table.name}: {by!r} is no key attribute; count by one of {sorted(keys)}")


def check_query(query: Query) -> None:
    """Refuse a query that the table or index cannot answer."""
    table = query.table
    if not 1 <= query.limit <= QUERY_LIMIT_MAX:
        raise InvalidItemError(f"table {table.name}: limit {query.limit} is outside 1 to {QUERY_LIMIT_MAX}")
    partition, sort = table.partition, table.sort
    if query.index is not None:
        index = table.index(query.index)
        partition, sort = index.partition, index.sort
        if query.consistent:
            raise InvalidItemError(
                f"table {table.name}: index {query.index!r} cannot be read consistently; read the table"
            )
    _check_key_part(table, partition, query.partition)
    if query.sort is None:
        return
    if sort is None:
        raise InvalidItemError(f"table {table.name}: {query.index or 'the table'} has no sort key to range over")
    _check_key_part(table, sort, query.sort.low)
    if query.sort.range is Range.BETWEEN:
        _check_key_part(table, sort, query.sort.high)
        if query.sort.low > query.sort.high:  # type: ignore[operator]  # both were just checked to be of one kind
            raise InvalidItemError(f"table {table.name}: between {query.sort.low!r} and {query.sort.high!r} is empty")
    if query.sort.range is Range.BEGINS_WITH and sort.kind is not KeyKind.STRING:
        raise InvalidItemError(f"table {table.name}: begins_with needs a text sort key, and {sort.name!r} is a number")


def _check_key_part(table: Table, attribute: KeyAttribute, value: object) -> None:
    if attribute.kind is KeyKind.STRING:
        if type(value) is str and 0 < len(value) <= _KEY_FAST_PATH_CHARS and value.isascii():
            return
        if isinstance(value, str) and value and is_text(value):
            bytes_max = table.key_bytes_max[attribute.name]
            if len(value) * 4 > bytes_max and len(value.encode()) > bytes_max:
                raise InvalidItemError(
                    f"table {table.name}: {attribute.name!r} has {len(value.encode())} bytes, at most {bytes_max}"
                )
            return
        expected = "non-empty Unicode text"
    else:
        if type(value) is int and -KEY_NUMBER_MAX <= value <= KEY_NUMBER_MAX:
            return
        expected = "a whole number of at most 63 bits"
    shown = "missing" if value is None else repr(value)[:60]
    raise InvalidItemError(f"table {table.name}: key attribute {attribute.name!r} is {shown}; it must be {expected}")
