"""DynamoDB reads: filters expired items, follows pages and retries unprocessed keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headgate.clock import Clock
from headgate.errors import ThrottledError
from headgate.store.dynamodb.client import Backoff, Calls
from headgate.store.dynamodb.expressions import Placeholders, key_expression
from headgate.store.dynamodb.marshalling import from_attributes, to_attributes, to_key
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

GET_MANY_KEYS_MAX: Final = 100
# After a first page full of expired items, the next pages are larger.
NEXT_PAGE_ITEMS_MIN: Final = 100


class ItemReads:
    """Reads unexpired items as stored, with blob references instead of spilled attributes."""

    def __init__(self, client: DynamoDBClient, calls: Calls, *, names: TableNames, clock: Clock) -> None:
        self._client = client
        self._calls = calls
        self._names = names
        self._clock = clock

    def get(self, table: Table, key: Key, *, consistent: bool, backoff: Backoff | None = None) -> Item | None:
        """Return one unexpired item, or None."""
        attributes = self.attributes(table, key, consistent=consistent, backoff=backoff)
        return live(table, attributes, self._clock.seconds())

    def attributes(
        self, table: Table, key: Key, *, consistent: bool, backoff: Backoff | None = None
    ) -> Mapping[str, Mapping[str, Any]] | None:
        """Return one item in DynamoDB's form, expired or not, or None."""
        physical = self._names.physical(table)
        request = {"TableName": physical, "Key": to_key(table, key), "ConsistentRead": consistent}
        answer = self._calls.read(self._client.get_item, request, f"table {physical}", backoff)
        return answer.get("Item")

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool) -> Iterator[Item]:
        """Yield the existing items, unordered. `keys` must be distinct."""
        for start in range(0, len(keys), GET_MANY_KEYS_MAX):
            yield from self._get_chunk(table, keys[start : start + GET_MANY_KEYS_MAX], consistent=consistent)

    def query(self, query: Query, position: Mapping[str, Any] | None, count: int) -> list[Item]:
        """Return the first `count` items after `position`, or all if there are fewer."""
        about = f"table {self._names.physical(query.table)}"
        request = self._query_request(query, position, count)
        items: list[Item] = []
        while True:
            answer = self._calls.read(self._client.query, request, about)
            now = self._clock.seconds()
            items_read = (live(query.table, attributes, now) for attributes in answer["Items"])
            items += [item for item in items_read if item is not None]
            last = answer.get("LastEvaluatedKey")
            if not last or len(items) >= count:
                return items[:count]
            request |= {"ExclusiveStartKey": last, "Limit": max(count - len(items), NEXT_PAGE_ITEMS_MIN)}

    def count(self, query: Query, by: str | None, most: int) -> dict[str, int]:
        """Count up to `most` items by the text of an attribute."""
        about = f"table {self._names.physical(query.table)}"
        request = self._query_request(query, None, most)
        read = (by, query.table.ttl_attribute, query.table.partition.name)
        names = list(dict.fromkeys(name for name in read if name is not None))
        request["ProjectionExpression"] = ", ".join(f"#count{place}" for place in range(len(names)))
        request["ExpressionAttributeNames"] = {
            **request.get("ExpressionAttributeNames", {}),
            **{f"#count{place}": name for place, name in enumerate(names)},
        }
        counts: Counter[str] = Counter()
        while True:
            answer = self._calls.read(self._client.query, request, about)
            now = self._clock.seconds()
            items = (live(query.table, attributes, now) for attributes in answer["Items"])
            counts.update("" if by is None else str(item.get(by) or "") for item in items if item is not None)
            last = answer.get("LastEvaluatedKey")
            if not last or counts.total() >= most:
                return dict(counts)
            request |= {"ExclusiveStartKey": last, "Limit": most - counts.total()}

    def _get_chunk(self, table: Table, keys: Sequence[Key], *, consistent: bool) -> Iterator[Item]:
        physical = self._names.physical(table)
        backoff = self._calls.backoff()
        batch = {"Keys": [to_key(table, key) for key in keys], "ConsistentRead": consistent}
        pending: Mapping[str, Any] = {physical: batch}
        while pending:
            request = {"RequestItems": pending}
            answer = self._calls.read(self._client.batch_get_item, request, f"table {physical}", backoff)
            now = self._clock.seconds()
            items_read = (live(table, attributes, now) for attributes in answer.get("Responses", {}).get(physical, []))
            yield from (item for item in items_read if item is not None)
            pending = answer.get("UnprocessedKeys", {})
            if pending and not backoff.pause():
                raise ThrottledError(
                    f"table {physical}: DynamoDB did not process keys for {backoff.deadline_seconds:g} s; use fewer"
                )

    def _query_request(self, query: Query, position: Mapping[str, Any] | None, count: int) -> dict[str, Any]:
        places = Placeholders()
        request: dict[str, Any] = {
            "TableName": self._names.physical(query.table),
            "KeyConditionExpression": key_expression(query, places),
            **places.parameters(),
            "ScanIndexForward": not query.descending,
            "ConsistentRead": query.consistent,
            "Limit": count,
        }
        if query.index is not None:
            request["IndexName"] = query.index
        if position is not None:
            request["ExclusiveStartKey"] = to_attributes(position)
        return request


def live(table: Table, attributes: Mapping[str, Mapping[str, Any]] | None, now_seconds: float) -> Item | None:
    """Decode an item; None if it is missing or has expired, because DynamoDB deletes expired items late."""
    if attributes is None:
        return None
    item = from_attributes(attributes)
    expires = None if table.ttl_attribute is None else item.get(table.ttl_attribute)
    return item if expires is None or expires > now_seconds else None
