"""DynamoDB tables: creates tables from the catalogue, compares them with it, and completes restored ones.

A table restored by AWS has its items, keys and indexes, but no TTL, no stream and no point-in-time recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headgate.clock import Clock
from headgate.errors import StoreBusyError
from headgate.store.dynamodb.client import IN_USE, NOT_FOUND, Calls, Refusal
from headgate.store.dynamodb.reads import live
from headgate.store.model.schema import Billing, Index, KeyAttribute, Table
from headgate.store.model.values import Item
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        GlobalSecondaryIndexDescriptionTypeDef,
        KeySchemaElementTypeDef,
        TableDescriptionTypeDef,
    )


STREAM_VIEW: Final = "NEW_AND_OLD_IMAGES"
# The initial capacity of provisioned tables, which auto scaling or an operator adjusts.
PROVISIONED_UNITS: Final = {"ReadCapacityUnits": 25, "WriteCapacityUnits": 25}
CREATED_WITHIN_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 1.0


def create_request(table: Table, physical: str) -> dict[str, Any]:
    """Return the input of CreateTable. TTL is not part of it: DynamoDB accepts it only afterwards."""
    attributes = {attribute.name: attribute.kind for attribute in _attributes(table)}
    throughput = {"ProvisionedThroughput": PROVISIONED_UNITS} if table.billing is Billing.PROVISIONED else {}
    request: dict[str, Any] = {
        "TableName": physical,
        "BillingMode": table.billing.value,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind.value} for name, kind in sorted(attributes.items())
        ],
        "KeySchema": _key_schema(table),
        **throughput,
    }
    if table.indexes:
        request["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index.name,
                "KeySchema": _key_schema(index),
                "Projection": _projection(table, index),
                **throughput,
            }
            for index in table.indexes
        ]
    if table.stream or table.wakes:
        request["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": STREAM_VIEW}
    return request


class Tables:
    """The tables of one account and region."""

    def __init__(self, client: DynamoDBClient, calls: Calls, *, names: TableNames, clock: Clock) -> None:
        self._client = client
        self._calls = calls
        self._names = names
        self._clock = clock

    def create_missing(self, catalogue: Sequence[Table]) -> list[str]:
        """Create the missing tables, wait until all are active, and return the created physical names.

        An existing table is not changed, except that a disabled TTL is enabled, because a process may have died between
        creating the table and enabling it. Raises `StoreBusyError` if a table does not become active in time.
        """
        named = [(table, self._names.physical(table)) for table in catalogue]
        created = [physical for table, physical in named if self._create(table, physical)]
        ends_at = self._clock.monotonic() + CREATED_WITHIN_SECONDS
        for table, physical in named:
            self._wait_until_active(physical, ends_at)
            self._enable_ttl(table, physical)
        return created

    def differences(self, catalogue: Sequence[Table]) -> list[str]:
        """Return one sentence for each difference between the tables and the catalogue.

        Additional indexes are ignored.
        """
        return [
            f"table {physical}: {difference}"
            for table, physical in ((table, self._names.physical(table)) for table in catalogue)
            for difference in self._table_differences(table, physical)
        ]

    def _create(self, table: Table, physical: str) -> bool:
        if self._described(physical) is not None:
            return False
        answer = self._calls.ask(
            self._client.create_table, create_request(table, physical), f"table {physical}", refusals=(IN_USE,)
        )
        # In use: another process, or an earlier attempt whose response was lost, has just created it.
        return not isinstance(answer, Refusal)

    def _described(self, physical: str) -> TableDescriptionTypeDef | None:
        answer = self._calls.ask(
            self._client.describe_table, {"TableName": physical}, f"table {physical}", refusals=(NOT_FOUND,)
        )
        return None if isinstance(answer, Refusal) else answer["Table"]

    def _wait_until_active(self, physical: str, ends_at: float) -> None:
        while True:
            description = self._described(physical)
            if description is not None and not _unready(description):
                return
            if self._clock.monotonic() >= ends_at:
                raise StoreBusyError(
                    f"table {physical}: not active after {CREATED_WITHIN_SECONDS:g} s; check it in the console"
                )
            self._clock.sleep(_POLL_SECONDS)

    def _enable_ttl(self, table: Table, physical: str) -> None:
        if table.ttl_attribute is None or self._expiry(physical)[0] != "DISABLED":
            return
        specification = {"Enabled": True, "AttributeName": table.ttl_attribute}
        request = {"TableName": physical, "TimeToLiveSpecification": specification}
        self._calls.read(self._client.update_time_to_live, request, f"table {physical}")

    def _expiry(self, physical: str) -> tuple[str, str | None]:
        """Return the status and the attribute of a table's TTL."""
        answer = self._calls.read(self._client.describe_time_to_live, {"TableName": physical}, f"table {physical}")
        description = answer["TimeToLiveDescription"]
        return description.get("TimeToLiveStatus", "DISABLED"), description.get("AttributeName")

    def _table_differences(self, table: Table, physical: str) -> Iterator[str]:
        description = self._described(physical)
        if description is None:
            yield "it does not exist; create it, or correct the prefix or its name"
            return
        yield from description_differences(table, description)
        yield from expiry_differences(table, *self._expiry(physical))


def description_differences(table: Table, description: TableDescriptionTypeDef) -> Iterator[str]:
    """Yield one sentence for each difference between a table as AWS describes it and the catalogue."""
    yield from (f"{thing} is {status}, not ACTIVE" for thing, status in _unready(description).items())
    kinds = {entry["AttributeName"]: entry["AttributeType"] for entry in description.get("AttributeDefinitions", [])}
    yield from _key_differences("the table", table, description.get("KeySchema", []), kinds)
    yield from _index_differences(table, description.get("GlobalSecondaryIndexes", []), kinds)
    if table.stream:
        stream = description.get("StreamSpecification", {"StreamEnabled": False})
        if not stream["StreamEnabled"]:
            yield f"it has no stream; enable one with {STREAM_VIEW}"
        elif stream.get("StreamViewType") != STREAM_VIEW:
            yield f"its stream shows {stream.get('StreamViewType')}; it must show {STREAM_VIEW}"


def expiry_differences(table: Table, status: str, attribute: str | None) -> Iterator[str]:
    """Yield a sentence if items expire in another way than the catalogue says. `status` is that of the TTL."""
    if status in ("ENABLED", "ENABLING"):
        if attribute != table.ttl_attribute:
            expected = "not expire" if table.ttl_attribute is None else f"expire by {table.ttl_attribute!r}"
            yield f"items expire by {attribute!r}; they must {expected}"
    elif table.ttl_attribute is not None:
        yield f"items do not expire; enable TTL for {table.ttl_attribute!r}"


def _attributes(table: Table) -> Iterator[KeyAttribute]:
    yield from _keys(table)
    for index in table.indexes:
        yield from index.attributes()


def _keys(source: Table | Index) -> list[KeyAttribute]:
    return [source.partition] if source.sort is None else [source.partition, source.sort]


def _key_schema(source: Table | Index) -> list[dict[str, str]]:
    return [
        {"AttributeName": attribute.name, "KeyType": role}
        for attribute, role in zip(_keys(source), ("HASH", "RANGE"), strict=False)
    ]


def _unready(description: TableDescriptionTypeDef) -> dict[str, str]:
    """Return the status of the table and of its indexes, if not active."""
    statuses = {"the table": description.get("TableStatus", "ACTIVE")}
    for index in description.get("GlobalSecondaryIndexes", []):
        statuses[f"index {index.get('IndexName')!r}"] = index.get("IndexStatus", "ACTIVE")
    # A table or an index can be used while it is updated.
    return {thing: status for thing, status in statuses.items() if status not in ("ACTIVE", "UPDATING")}


def _index_differences(
    table: Table, actual_schema: Iterable[GlobalSecondaryIndexDescriptionTypeDef], kinds: Mapping[str, str]
) -> Iterator[str]:
    existing = {entry.get("IndexName"): entry for entry in actual_schema}
    for index in table.indexes:
        entry = existing.get(index.name)
        if entry is None:
            yield f"index {index.name!r} is missing; create it"
            continue
        yield from _key_differences(f"index {index.name!r}", index, entry.get("KeySchema", []), kinds)
        actual = entry.get("Projection", {})
        if not _has_projection(actual, _projection(table, index)):
            yield f"index {index.name!r} projects {_shown(actual)}; it must project {_shown(_projection(table, index))}"


def _projection(table: Table, index: Index) -> dict[str, Any]:
    """Return what the rows of an index have, as CreateTable takes it."""
    names = table.projection(index.name)
    if names is None:
        return {"ProjectionType": "ALL"}
    others = sorted(names - {*table.key_names, *(key.name for key in index.attributes())})
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": others} if others else {"ProjectionType": "KEYS_ONLY"}


def _has_projection(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether an index has what its readers need. One with whole items, as earlier builds made it, has that too."""
    if actual.get("ProjectionType") == "ALL" or expected["ProjectionType"] == "KEYS_ONLY":
        return True
    named = actual.get("NonKeyAttributes", [])
    return expected["ProjectionType"] == "INCLUDE" and {*expected["NonKeyAttributes"]} <= {*named}


def _shown(projection: Mapping[str, Any]) -> str:
    names = projection.get("NonKeyAttributes", [])
    return " ".join([str(projection.get("ProjectionType")), ", ".join(names)]).strip()


def _key_differences(
    thing: str, expected_keys: Table | Index, actual_schema: Iterable[KeySchemaElementTypeDef], kinds: Mapping[str, str]
) -> Iterator[str]:
    expected = [f"{attribute.name} ({attribute.kind})" for attribute in _keys(expected_keys)]
    names = [entry["AttributeName"] for entry in sorted(actual_schema, key=lambda entry: entry["KeyType"])]
    actual = [f"{name} ({kinds.get(name)})" for name in names]
    if actual != expected:
        yield f"{thing} is keyed by {', '.join(actual)}; it must be keyed by {', '.join(expected)}"


class RestoredTables:
    """The physical tables of `names`: restored copies, or the tables in use."""

    def __init__(self, client: DynamoDBClient, calls: Calls, *, names: TableNames, clock: Clock) -> None:
        self._client = client
        self._calls = calls
        self._names = names
        self._clock = clock
        self._tables = Tables(client, calls, names=names, clock=clock)

    def make_usable(self, table: Table) -> list[str]:
        """Enable TTL, stream and point-in-time recovery where they are off; return the remaining differences.

        Idempotent. Tags, alarms, scaling and policies are left to the operator.
        """
        physical = self._names.physical(table)
        about = f"table {physical}"
        # The table exists, so this waits until it is active and enables its TTL.
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
        """Yield every unexpired item as stored, by a consistent full scan, unordered."""
        physical = self._names.physical(table)
        request: dict[str, Any] = {"TableName": physical, "ConsistentRead": True}
        while True:
            answer = self._calls.read(self._client.scan, request, f"table {physical}")
            now = self._clock.seconds()
            items = (live(table, attributes, now) for attributes in answer["Items"])
            yield from (item for item in items if item is not None)
            last = answer.get("LastEvaluatedKey")
            if not last:
                return
            request["ExclusiveStartKey"] = last
