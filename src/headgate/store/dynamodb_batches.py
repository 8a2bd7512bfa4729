"""Batches of writes in the portions DynamoDB takes, sent again until nothing is left undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import ThrottledError
from headgate.store.dynamodb_calls import Calls
from headgate.store.dynamodb_writes import PreparedWrite
from headgate.store.writes import Put

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BATCH_WRITES_MAX: Final = 25
# DynamoDB takes 16 MB, and a byte of an item may take six of them on the way there.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024 // 6


class BatchWrites:
    """Writes items that have no condition. Each portion has a deadline of its own."""

    def __init__(self, client: DynamoDBClient, calls: Calls) -> None:
        self._client = client
        self._calls = calls

    def write(self, prepared: Sequence[PreparedWrite]) -> None:
        """Apply all of `prepared`. Raises `ThrottledError` if DynamoDB leaves some undone until the deadline."""
        for portion in portions(prepared):
            self._write_portion(portion)

    def _write_portion(self, portion: Sequence[PreparedWrite]) -> None:
        pending: dict[str, list[Any]] = {}
        for member in portion:
            kind, name = ("PutRequest", "Item") if isinstance(member.write, Put) else ("DeleteRequest", "Key")
            pending.setdefault(member.request["TableName"], []).append({kind: {name: member.request[name]}})
        about = f"batch on {', '.join(sorted(pending))}"
        backoff = self._calls.backoff()
        while pending:
            answer = self._calls.read(self._client.batch_write_item, {"RequestItems": pending}, about, backoff)
            pending = answer.get("UnprocessedItems", {})
            if pending and not backoff.pause():
                raise ThrottledError(
                    f"{about}: DynamoDB left writes undone for {backoff.deadline_seconds:g} s; write the batch again"
                )


def portions(prepared: Sequence[PreparedWrite]) -> Iterator[list[PreparedWrite]]:
    """Yield the writes in the portions that one call takes."""
    portion: list[PreparedWrite] = []
    portion_bytes = 0
    for write in prepared:
        if portion and (len(portion) == BATCH_WRITES_MAX or portion_bytes + write.size_bytes > BATCH_BYTES_MAX):
            yield portion
            portion, portion_bytes = [], 0
        portion.append(write)
        portion_bytes += write.size_bytes
    if portion:
        yield portion
