"""Facts of a deployment on AWS, as its tables, functions, queues and metrics report them. None is an unread value."""

from __future__ import annotations

import enum

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True):
    """Capacity that a table or index has consumed in the window.

    Peaks are means of five minutes, in units a second. Throttles are counts of events.
    """

    peak_writes: float = 0.0
    peak_reads: float = 0.0
    write_throttles: int = 0
    read_throttles: int = 0
    # Of the throttles, by cause: one partition, the quota of the account, the maximum set for the table.
    key_range_throttles: int = 0
    account_throttles: int = 0
    maximum_throttles: int = 0

    @property
    def throttles(self) -> int:
        return self.write_throttles + self.read_throttles


class KeySource(enum.StrEnum):
    """Where the load of a key was read: Contributor Insights, or a sample of the stored items."""

    THROTTLED = "requests that were throttled, by Contributor Insights"
    CONSUMED = "consumed units, by Contributor Insights"
    SAMPLE = "items in a sample of the table"


class KeyShare(Struct, frozen=True):
    """A partition key and its share of what was counted."""

    key: str
    share: float
    counted: int
    source: KeySource


class PlaceFacts(Struct, frozen=True, kw_only=True):
    """A table or one of its indexes as a place of capacity. Provisioned units are None on demand."""

    name: str
    write_units: int | None = None
    read_units: int | None = None
    usage: Usage | None = None
    has_insights: bool | None = None
    keys: tuple[KeyShare, ...] = ()


class ReplicaFacts(Struct, frozen=True):
    """A replica of a global table."""

    region: str
    status: str


class TableFacts(Struct, frozen=True, kw_only=True):
    """A table of the catalogue. `exists` is None if it could not be described."""

    name: str
    exists: bool | None
    status: str = ""
    differences: tuple[str, ...] = ()
    has_recovery: bool | None = None
    replicas: tuple[ReplicaFacts, ...] = ()
    # The table itself first, then its indexes.
    places: tuple[PlaceFacts, ...] = ()


class FunctionFacts(Struct, frozen=True, kw_only=True):
    """A Lambda function and its metrics in the window, which are None if they could not be read."""

    name: str
    timeout_seconds: int
    state: str = ""
    state_reason: str = ""
    update_status: str = ""
    invocations: int | None = None
    errors: int = 0
    throttles: int = 0
    dead_letter_errors: int = 0
    longest_ms: float = 0.0
    # Of the newest records that the function has read from a stream.
    iterator_age_ms: float = 0.0


class MappingFacts(Struct, frozen=True):
    """An event source mapping: what invokes a function."""

    uuid: str
    function: str
    source: str
    state: str
    last_result: str = ""


class QueueFacts(Struct, frozen=True, kw_only=True):
    """An SQS queue. `is_dead_letters`: other queues or services put what they give up into it."""

    name: str
    url: str
    arn: str
    waiting: int
    in_flight: int
    visibility_seconds: int
    is_dead_letters: bool = False
    has_consumer: bool | None = None
    oldest_seconds: float | None = None


class MachineFacts(Struct, frozen=True, kw_only=True):
    """A state machine of Step Functions and its executions in the window, None if they could not be read."""

    name: str
    arn: str
    status: str
    failed: int | None = None
    timed_out: int = 0
    aborted: int = 0
    throttled: int = 0


class CallFailure(Struct, frozen=True):
    """A call that AWS refused, or that failed: what it would have shown is not known."""

    call: str
    about: str
    code: str
    message: str
    is_permission: bool


class DeploymentFacts(Struct, frozen=True, kw_only=True):
    """Everything that was read of a deployment."""

    region: str
    name: str
    hours: int
    tables: tuple[TableFacts, ...] = ()
    functions: tuple[FunctionFacts, ...] | None = None
    mappings: tuple[MappingFacts, ...] | None = None
    queues: tuple[QueueFacts, ...] | None = None
    machines: tuple[MachineFacts, ...] | None = None
    failures: tuple[CallFailure, ...] = ()
