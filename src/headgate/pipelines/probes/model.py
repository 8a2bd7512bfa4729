"""Probe model: the structs of a probe definition as written in YAML, and the result of one look.

A probe has exactly one of `sql`, `files`, `delta`, `iceberg` and `http`. Expectations compare what was seen; the
result is PASS or FAIL. A probe that cannot be read is UNKNOWN, never FAIL.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Struct

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Json, Period
from headgate.pipelines.enums import FailureCategory, Verdict

# The prefix of probes in rules, sensor triggers and traits. No pipeline id has a colon.
PREFIX: Final = "probe:"
# A result is used for this many intervals after it was seen.
VALID_INTERVALS: Final = 3


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a definition. Unknown fields are refused."""


class SqlProbe(_Part, frozen=True, kw_only=True):
    """One value that a query selects, through SQLAlchemy."""

    # A URL of SQLAlchemy without a password: postgresql+psycopg://reader@db.example.org/shop.
    url: str
    # A reference: ${env:HG_SECRET_…} or ${file:…}.
    password: str | None = None
    # One SELECT of one value. `:date`, `:year`, `:month`, `:day` and `:hour` are bound to the period.
    query: str


class FilesProbe(_Part, frozen=True, kw_only=True):
    """Files or objects that match a pattern, through fsspec."""

    # A path below the allowed folders, or s3://bucket/key; `*`, `?`, `[…]` and `**` match.
    path: str
    # A file that every folder with a match must have, such as _SUCCESS.
    marker: str | None = None


class DeltaProbe(_Part, frozen=True, kw_only=True):
    """The last commit of a Delta table in a folder."""

    path: str


class IcebergProbe(_Part, frozen=True, kw_only=True):
    """The current snapshot of an Iceberg table: its folder, or one metadata file."""

    path: str


class HttpProbe(_Part, frozen=True, kw_only=True):
    """A GET request, and one value of its JSON answer."""

    url: str
    # Values may refer to secrets: ${env:HG_SECRET_…} or ${file:…}.
    headers: dict[str, str] = {}
    # JSONPath of the value; without it, only the status counts.
    value: str | None = None


class Expectation(_Part, frozen=True, kw_only=True):
    """A comparison of one field of what was seen, with the checks of rules."""

    field: str = "value"
    check: str = "exists"
    value: Json = None


class Probe(_Part, frozen=True, kw_only=True):
    """A probe."""

    id: str
    description: str = ""
    owner: str = ""
    every: Seconds = Seconds(60)
    timeout: Seconds = Seconds(10)
    # The probe looks at each of the latest periods; without a period, its result applies to every run.
    period: Period | None = None
    timezone: str = "UTC"
    periods: int = 2
    sql: SqlProbe | None = None
    files: FilesProbe | None = None
    delta: DeltaProbe | None = None
    iceberg: IcebergProbe | None = None
    http: HttpProbe | None = None
    expect: tuple[Expectation, ...] = ()

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def digest(self) -> str:
        """A digest of the definition. A result of another definition is not current."""
        return hashlib.sha256(msgspec.json.encode(self, enc_hook=float, order="sorted")).hexdigest()

    @property
    def valid_seconds(self) -> float:
        """How long a result is used."""
        return VALID_INTERVALS * float(self.every) + float(self.timeout)


KINDS: Final = ("sql", "files", "delta", "iceberg", "http")


class Sighting(Struct, frozen=True):
    """What a probe saw: fields by name."""

    data: dict[str, Json]


class ProbeResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one look. With an error the verdict is UNKNOWN and nothing was seen."""

    verdict: Verdict
    reason: str
    at_ms: int
    duration_ms: int
    period: str = ""
    seen: dict[str, Json] = {}
    category: FailureCategory | None = None

    def sensor_data(self, probe: Probe) -> dict[str, Json]:
        """Return the data of the sensor that rules read."""
        valid = {"validSeconds": probe.valid_seconds}
        if self.verdict is Verdict.UNKNOWN:
            return {"error": self.reason, **valid}
        return {**self.seen, "ready": self.verdict is Verdict.PASS, "reason": self.reason, **valid}


def probe_key(probe_id: str) -> str:
    """Return the sensor key of a probe."""
    return f"{PREFIX}{probe_id}"
