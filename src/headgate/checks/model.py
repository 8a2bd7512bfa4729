"""Check model: the structs of a check file as written in YAML, and the outcome of one check.

A file declares the checks of one dataset and the source that they read. A check has exactly one of its kinds. Its
outcome is OK, WARNING or CRITICAL; a check that cannot be measured or judged is UNKNOWN, never OK.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

import msgspec
from msgspec import Struct

from headgate.durable.model.duration import Seconds
from headgate.health.model.enums import (
    ANOMALY,
    CONTRACT_COMPLIANCE,
    DATA_QUALITY,
    FRESHNESS,
    SCHEMA_DRIFT,
    VOLUME,
    SignalState,
)
from headgate.health.results.model import ResultKind
from headgate.pipelines.definition.model import Json
from headgate.pipelines.probes.model import DeltaProbe, FilesProbe, IcebergProbe


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a definition. Unknown fields are refused."""


class Severity(enum.StrEnum):
    """The state of a check that fails."""

    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def state(self) -> SignalState:
        return SignalState.WARNING if self is Severity.WARNING else SignalState.CRITICAL


class ExtraColumns(enum.StrEnum):
    """What a column means that the schema does not name."""

    ALLOWED = "allowed"
    WARNING = "warning"
    CRITICAL = "critical"


class AnomalyOf(enum.StrEnum):
    """The stored history that an expected band is fitted to."""

    VOLUME = "volume"
    DURATION = "duration"


class SqlSource(_Part, frozen=True, kw_only=True):
    """A table of a database, through SQLAlchemy."""

    # A URL of SQLAlchemy without a password: postgresql+psycopg://reader@db.example.org/shop.
    url: str
    # A reference: ${env:HG_SECRET_…} or ${file:…}.
    password: str | None = None
    # The table or view, with its schema: sales.orders. A check of kind sql names its tables itself.
    table: str | None = None


class Source(_Part, frozen=True, kw_only=True):
    """Where the data is: exactly one kind."""

    sql: SqlSource | None = None
    files: FilesProbe | None = None
    delta: DeltaProbe | None = None
    iceberg: IcebergProbe | None = None


class FreshnessCheck(_Part, frozen=True, kw_only=True):
    """The age of the newest data: of a time column, the newest file, or the last commit."""

    column: str | None = None
    max_age: Seconds
    warn_age: Seconds | None = None


class VolumeCheck(_Part, frozen=True, kw_only=True):
    """The number of rows of the last whole hour by a time column, or of all rows or files without one.

    With a column, the counts are stored with the VOLUME signal, and an hour outside of its expected band fails too.
    """

    column: str | None = None
    min: float | None = None
    max: float | None = None
    expected: bool = True
    # A country of the holidays library ("DE", "US-CA"), or a named calendar, whose days are not ordinary ones.
    holidays: str | None = None
    calendar: str | None = None


class AnomalyCheck(_Part, frozen=True, kw_only=True):
    """The last whole hour of a stored history against its expected band. Nothing is read from the source."""

    of: AnomalyOf = AnomalyOf.VOLUME
    # Of durations: the pipeline whose runs are judged.
    pipeline: str | None = None
    holidays: str | None = None
    calendar: str | None = None
    # Instead of the computed band: a baseline that an anomaly engine stores, and the standard deviations it allows.
    baseline: str | None = None
    deviations: float = 4.0


class SchemaCheck(_Part, frozen=True, kw_only=True):
    """Columns that must exist, each with the type that the source reports; an empty type is not compared."""

    columns: dict[str, str]
    extra: ExtraColumns = ExtraColumns.ALLOWED


class NullShareCheck(_Part, frozen=True, kw_only=True):
    """The share of rows in which a column is null."""

    column: str
    max: float = 0.0


class UniqueCheck(_Part, frozen=True, kw_only=True):
    """Columns whose values together occur once."""

    columns: tuple[str, ...]


class SqlCheck(_Part, frozen=True, kw_only=True):
    """One value that a query selects, compared as rules compare."""

    query: str
    check: str = "exists"
    value: Json = None


class Check(_Part, frozen=True, kw_only=True):
    """One check of a dataset."""

    id: str
    description: str = ""
    severity: Severity = Severity.CRITICAL
    # SQL condition on the rows of volume, null_share and unique.
    where: str | None = None
    freshness: FreshnessCheck | None = None
    volume: VolumeCheck | None = None
    anomaly: AnomalyCheck | None = None
    schema: SchemaCheck | None = None
    null_share: NullShareCheck | None = None
    unique: UniqueCheck | None = None
    sql: SqlCheck | None = None

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def column(self) -> str | None:
        """The column that it is about, if it is one."""
        if self.unique is not None:
            return self.unique.columns[0] if len(self.unique.columns) == 1 else None
        part = self.freshness or self.null_share
        return None if part is None else part.column


class EventsCheck(_Part, frozen=True, kw_only=True):
    """The events of the last window that was reported for VOLUME."""

    min: int


class ContractCheck(_Part, frozen=True, kw_only=True):
    """The share of records whose evidence names none of the fields of the contract."""

    fields: tuple[str, ...]
    min_rate: float = 1.0
    warn_rate: float | None = None


class DeviationCheck(_Part, frozen=True, kw_only=True):
    """The last whole hour of the stored volumes against the median of the same hour of the days before."""

    max_percent: float
    days: int


class ConfigCheck(Check, frozen=True, kw_only=True):
    """A check that follows from the config of a dataset. Files cannot declare these kinds."""

    events: EventsCheck | None = None
    contract: ContractCheck | None = None
    deviation: DeviationCheck | None = None

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return next(name for name in (*KINDS, "events", "contract", "deviation") if getattr(self, name) is not None)

    @property
    def is_of_history(self) -> bool:
        """Whether it judges what is stored, and reads nothing."""
        return (self.events or self.contract or self.deviation) is not None


class CheckFile(_Part, frozen=True, kw_only=True):
    """The checks of one dataset."""

    dataset: str
    source: Source | None = None
    # How often the checks run; without it they run after runs and on request only.
    every: Seconds | None = None
    # Whether they also run after each completed run of a pipeline that writes the dataset.
    after_runs: bool = True
    timeout: Seconds = Seconds(10)
    # Whether required_fields, field_constraints and the volume SLO of the dataset's config are checks too.
    from_config: bool = True
    checks: tuple[Check, ...] = ()

    def digest(self, check: Check) -> str:
        """A digest of a check with its source and schedule."""
        content = [self.source, self.every, self.timeout, check]
        return hashlib.sha256(msgspec.json.encode(content, enc_hook=float, order="sorted")).hexdigest()


KINDS: Final = ("freshness", "volume", "anomaly", "schema", "null_share", "unique", "sql")
# The signal that each kind feeds.
SIGNAL_TYPES: Final = {
    "freshness": FRESHNESS,
    "volume": VOLUME,
    "anomaly": ANOMALY,
    "schema": SCHEMA_DRIFT,
    "null_share": DATA_QUALITY,
    "unique": DATA_QUALITY,
    "sql": DATA_QUALITY,
    "events": ANOMALY,
    "contract": CONTRACT_COMPLIANCE,
    "deviation": ANOMALY,
}
# How the results of each kind are stored.
RESULT_KINDS: Final = {
    "freshness": ResultKind.FRESHNESS,
    "volume": ResultKind.VOLUME,
    "anomaly": ResultKind.ANOMALY,
    "schema": ResultKind.SCHEMA,
    "null_share": ResultKind.TEST,
    "unique": ResultKind.TEST,
    "sql": ResultKind.TEST,
    "events": ResultKind.ANOMALY,
    "contract": ResultKind.CONTRACT,
    "deviation": ResultKind.ANOMALY,
}


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of a check: its state, the reason in numbers, and the window that it describes."""

    state: SignalState
    reason: str
    at_ms: int
    window_start_ms: int
    window_end_ms: int
    duration_ms: int = 0
    # What was measured, and how many rows failed if that was counted.
    value: float | None = None
    failures: int | None = None
    # The rows of the window, for the hourly volumes.
    count: int | None = None
