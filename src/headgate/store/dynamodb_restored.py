"""A table that AWS restored: what a restore leaves out is switched on again, and all of its items can be read.

A restored table has its items, keys and indexes, and none of the rest: no expiry, no stream, no recovery of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headgate.clock import Clock
from headgate.store.dynamodb_calls import Calls
from headgate.store.dynamodb_reads import live
from headgate.store.dynamodb_tables import STREAM_VIEW, Tables
from headgate.store.names import TableNames
from headgate.store.schema import Table
from headgate.store.values import Item

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class RestoredTables:
    """The physical tables that `names` gives: those that were restored, or those that are in use."""

    def __init__(self, client: DynamoDBClient, calls: Calls, *, names: TableNames, clock: Clock) -> None:
        self._client = client
        self._calls = calls
        self._names = names
        self._clock = clock
        self._tables = Tables(client, calls, names=names, clock=clock)

    def make_usable(self, table: Table) -> list[str]:
        """Switch on expiry, stream and point-in-time recovery where they are off, and return what is wrong still.

        Doing it again changes nothing. Tags, alarms, scaling and policies are the operator's own to set.
        """
        physical = self._names.physical(table)
        about = f"table {physical}"
        # The table exists: what this does to it is to wait until it is active and to switch on its expiry.
        self._tables.create_missing([table])
        described = self._calls.read(self._client.describe_table, {"TableName": physical}, about)["Table"]
        if (table.stream or table.wakes) and not described.get("StreamSpecification", {}).get("StreamEnabled"):
            stream = {"StreamEnabled": True, "StreamViewType": STREAM_VIEW}
            self._calls.read(self._client.update_table, {"TableName": physical, "StreamSpecification": stream}, about)
            self._tables.create_missing([table])
        recovery = {"PointInTimeRecoveryEnabled": True}
        self._calls.read(
            self._client.update_continuous_backups,
            {"TableName": physical, "PointInTimeRecoverySpecification": recovery},
            about,
        )
        return self._tables.differences([table])

    def items(self, table: Table) -> Iterator[Item]:
        """Yield every live item as it is stored, read consistently, in no order. Costs what reading all of it costs."""
        physical = self._names.physical(table)
        request: dict[str, Any] = {"TableName": physical, "ConsistentRead": True}
        while True:
            answer = self._calls.read(self._client.scan, request, f"table {physical}")
            now = self._clock.seconds()
            found = (live(table, attributes, now) for attributes in answer["Items"])
            yield from (item for item in found if item is not None)
            last = answer.get("LastEvaluatedKey")
            if not last:
                return
            request["ExclusiveStartKey"] = last
