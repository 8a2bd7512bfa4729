"""OpenLineage facets that ingestion reads. Unknown and invalid facets are ignored with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from headgate import typed_decode
from headgate.health.ingest.effects import IngestWarning

_F = TypeVar("_F", bound="Facet")
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# An event with a thousand errors is described by the first few.
WARNINGS_MAX: Final = 20


class Facet(Struct, frozen=True, kw_only=True):
    """The common part of all facets. `deleted`: the producer removed it."""

    deleted: bool = field(default=False, name="_deleted")


class Transformation(Struct, frozen=True):
    """How an input contributed to an output."""

    type: str | None = None
    subtype: str | None = None
    masking: bool | None = None


class InputField(Struct, frozen=True):
    """An input column."""

    namespace: str
    name: str
    field: str
    transformations: list[Transformation] | None = None


class ColumnField(Struct, frozen=True):
    """The inputs of a column; newer producers give the transformation for each input, older ones once."""

    inputFields: list[InputField] | None = None
    transformationType: str | None = None
    transformationDescription: str | None = None


class ColumnLineage(Facet, frozen=True, kw_only=True):
    """The inputs of an output's columns. `dataset`: inputs of all columns, such as a filter."""

    fields: dict[str, ColumnField] | None = None
    dataset: list[InputField] | None = None


class Assertion(Struct, frozen=True):
    """A check of a dataset or column."""

    assertion: str
    success: bool
    column: str | None = None
    severity: str | None = None
    name: str | None = None
    expected: Any = None
    actual: Any = None


class Assertions(Facet, frozen=True, kw_only=True):
    """Checks of a dataset."""

    assertions: list[Assertion] | None = None


class Test(Struct, frozen=True):
    """A test of a run."""

    name: str
    status: str
    severity: str | None = None
    type: str | None = None
    description: str | None = None
    expected: Any = None
    actual: Any = None
    params: dict[str, Any] | None = None


class Tests(Facet, frozen=True, kw_only=True):
    """The tests of a run."""

    tests: list[Test] | None = None


class OutputStatistics(Facet, frozen=True, kw_only=True):
    """The amount of data that a run wrote."""

    rowCount: int | float | None = None
    size: int | float | None = None
    fileCount: int | float | None = None


class NominalTime(Facet, frozen=True, kw_only=True):
    """The scheduled time of a run."""

    nominalStartTime: str | None = None
    nominalEndTime: str | None = None


class Named(Struct, frozen=True):
    """Something with a namespace and a name."""

    namespace: str
    name: str


class ParentRunId(Struct, frozen=True):
    """The run of a parent."""

    runId: str | None = None


class Parent(Facet, frozen=True, kw_only=True):
    """The parent of a run."""

    run: ParentRunId | None = None
    job: Named | None = None


class ErrorMessage(Facet, frozen=True, kw_only=True):
    """Why a run failed."""

    message: str = ""
    programmingLanguage: str | None = None
    stackTrace: str | None = None


class Symlinks(Facet, frozen=True, kw_only=True):
    """Aliases of a dataset."""

    identifiers: list[Named] | None = None


class Lifecycle(Facet, frozen=True, kw_only=True):
    """A lifecycle change of a dataset."""

    lifecycleStateChange: str
    previousIdentifier: Named | None = None


class SchemaField(Struct, frozen=True):
    """A field, with the fields nested in it."""

    name: str
    type: str | None = None
    description: str | None = None
    fields: list[SchemaField] | None = None


class Schema(Facet, frozen=True, kw_only=True):
    """The fields of a dataset."""

    fields: list[SchemaField] | None = None


class Documentation(Facet, frozen=True, kw_only=True):
    """The description of a dataset."""

    description: str = ""


class FacetOwner(Struct, frozen=True):
    """An owner: a person or a team, such as `team:orders`."""

    name: str
    type: str | None = None


class Ownership(Facet, frozen=True, kw_only=True):
    """The owners of a dataset."""

    owners: list[FacetOwner] | None = None


class Tag(Struct, frozen=True):
    """A tag of a dataset or of one of its fields."""

    key: str
    value: str | None = None
    field: str | None = None


class Tags(Facet, frozen=True, kw_only=True):
    """The tags of a dataset."""

    tags: list[Tag] | None = None


class Sql(Facet, frozen=True, kw_only=True):
    """The query of a job."""

    query: str = ""


class JobType(Facet, frozen=True, kw_only=True):
    """The type of a job. A STREAMING one may never end."""

    processingType: str | None = None
    integration: str | None = None
    jobType: str | None = None


class SourceCodeLocation(Facet, frozen=True, kw_only=True):
    """The location of a job's code."""

    version: str | None = None


class LineageInput(Struct, frozen=True):
    """An input dataset or job."""

    type: str | None = None
    namespace: str | None = None
    name: str | None = None
    field: str | None = None


class LineageField(Struct, frozen=True):
    """The inputs of a column."""

    inputs: list[LineageInput] | None = None


class LineageTarget(Struct, frozen=True):
    """A dataset or job, and its inputs. Empty `inputs`: it has none."""

    type: str | None = None
    namespace: str | None = None
    name: str | None = None
    inputs: list[LineageInput] | None = None
    fields: dict[str, LineageField] | None = None


class ExplicitLineage(Facet, frozen=True, kw_only=True):
    """Explicit lineage of a job or run: in `entries`, or in `lineage` of the draft spec."""

    entries: list[LineageTarget] | None = None
    lineage: list[LineageTarget] | None = None


class DatasetLineage(Facet, frozen=True, kw_only=True):
    """Explicit lineage of an output."""

    inputs: list[LineageInput] | None = None
    fields: dict[str, LineageField] | None = None


class Facets:
    """The facets of a run, job or dataset, decoded on access. Errors are collected as warnings."""

    def __init__(self, raw: Mapping[str, Raw] | None, where: str, oddities: list[IngestWarning]) -> None:
        self._raw = raw or {}
        self._where = where
        self._warnings = oddities

    def get(self, name: str, kind: type[_F]) -> _F | None:
        """Return the facet, or None if it is missing, deleted or invalid."""
        raw = self._raw.get(name)
        if raw is None or bytes(raw) == b"null":
            return None
        try:
            found = typed_decode.from_json(raw, kind)
        except _ERRORS as exc:
            if len(self._warnings) < WARNINGS_MAX:
                self._warnings.append(IngestWarning(f"{self._where}.{name}", str(exc)[:200]))
            return None
        return None if found.deleted else found
