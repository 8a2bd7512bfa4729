"""Commit notices: rows by which busy processes tell idle ones that there may be work to read.

DynamoDB does not report commits. A process that commits work puts its notice at most once a second; an idle process
reads the few notices each second instead of all queues, inboxes and timers (ADR-0054). A notice is a hint: one that is
lost delays a poll and nothing else.
"""

from __future__ import annotations

import secrets
import zlib
from typing import TYPE_CHECKING, Final

from botocore.exceptions import BotoCoreError, ClientError

from headgate.clock import Clock
from headgate.store.catalogue.tables import ACTIVITIES, COMMIT_NOTICE
from headgate.store.dynamodb.marshalling import from_attributes, to_attributes, to_key
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Each takes the notices of a thousand processes.
SHARDS: Final = 4
_KEPT_SECONDS: Final = 86_400
_KEYS: Final = [COMMIT_NOTICE.key(shard=number) for number in range(SHARDS)]


class CommitNotices:
    """The notices in one store's tables, sent and read by one process."""

    def __init__(self, client: DynamoDBClient, *, names: TableNames, clock: Clock) -> None:
        self._client = client
        self._table = names.physical(ACTIVITIES)
        self._clock = clock
        self._sender = secrets.token_hex(8)
        self._key = _KEYS[zlib.crc32(self._sender.encode()) % SHARDS]
        self._seen: set[tuple[str, int]] | None = None

    def send(self) -> None:
        """Put this process's notice, in one attempt. A failure is not reported: readers poll anyway, later."""
        now = self._clock.seconds()
        item = {
            **ACTIVITIES.key_attributes(self._key),
            "sender": self._sender,
            "at_ms": round(1000 * now),
            "ttl": int(now) + _KEPT_SECONDS,
        }
        try:
            self._client.put_item(TableName=self._table, Item=to_attributes(item))
        except (BotoCoreError, ClientError):
            return

    def receive(self) -> bool | None:
        """Return whether another process has sent a notice since the last call. None if they could not be read.

        One attempt, as the next one follows in a second.
        """
        keys = [to_key(ACTIVITIES, key) for key in _KEYS]
        try:
            answer = self._client.batch_get_item(RequestItems={self._table: {"Keys": keys}})
        except (BotoCoreError, ClientError):
            return None
        if answer.get("UnprocessedKeys"):
            return None
        rows = [from_attributes(attributes) for attributes in answer["Responses"].get(self._table, [])]
        found = {(str(row["sender"]), int(row["at_ms"])) for row in rows if row["sender"] != self._sender}
        is_new = self._seen is None or not found <= self._seen
        self._seen = found
        return is_new
