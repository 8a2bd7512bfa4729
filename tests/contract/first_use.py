"""Tables of a DynamoDB account that are made when a request first names them.

To make all tables takes longer than most tests, which use two or three.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from headgate.store.dynamodb.tables import create_request
from headgate.store.model.schema import Table
from headgate.store.table_names import TableNames


class TablesWhenUsed:
    """Makes the tables of one client, each before the first request that names it is sent."""

    def __init__(self, client: DynamoDBClient, names: TableNames, tables: Iterable[Table]) -> None:
        self._client = client
        self._missing = {names.physical(table): table for table in tables}
        # Held while a table is made, so that a request of another thread finds it; what makes it asks again itself.
        self._lock = threading.RLock()
        client.meta.events.register("provide-client-params.dynamodb", self._prepare)

    def _prepare(self, params: Mapping[str, Any], **_: object) -> None:
        if not self._missing:
            return
        with self._lock:
            for physical in set(_named(params)) & self._missing.keys():
                self._make(physical, self._missing.pop(physical))

    def _make(self, physical: str, table: Table) -> None:
        self._client.create_table(**create_request(table, physical))
        if table.ttl_attribute is not None:
            expiry = {"Enabled": True, "AttributeName": table.ttl_attribute}
            self._client.update_time_to_live(TableName=physical, TimeToLiveSpecification=expiry)  # type: ignore[arg-type]


def _named(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tables that a request is about."""
    if "TableName" in params:
        yield params["TableName"]
    requested = params.get("RequestItems", {})
    if isinstance(requested, Mapping):
        yield from requested
    for item in params.get("TransactItems", ()):
        yield from (each["TableName"] for each in item.values())
