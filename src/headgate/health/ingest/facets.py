"""Facets of OpenLineage that are understood. All others, and those that are not as they should be, are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from headgate import typed_decode
from headgate.health.ingest.effects import IngestWarning

_F = TypeVar("_F", bound="Facet")
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# An event that is wrong in a thousand places is described by the first few.
ODDITIES_MAX: Final = 20


class Facet(Struct, frozen=True, kw_only=True):
    """What all facets have in common. `deleted`: the producer takes it back."""

    deleted: bool = field(default=False, name="_deleted")


class Transformation(Struct, frozen=True):
    """How an input came into an output."""

    type: str | None = None
    subtype: str | None = None
    masking: bool | None = None


class InputField(Struct, frozen=True):
    """A column that something was made of."""

    namespace: str
    name: str
    field: str
    transformations: list[Transformation] | None = None


class ColumnField(Struct, frozen=True):
    """What a column was made of; how, is said by each input, or by older producers once for all."""

    inputFields: list[InputField] | None = None
    transformationType: str | None = None
    transformationDescription: str | None = None


class ColumnLineage(Facet, frozen=True, kw_only=True):
    """What the columns of an output were made of. `dataset`: what all of them depend on."""

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
    """A check that a run made."""

    name: str
    status: str
    severity: str | None = None
    type: str | None = None
    description: str | None = None
    expected: Any = None
    actual: Any = None
    params: dict[str, Any] | None = None


class Tests(Facet, frozen=True, kw_only=True):
    """Checks that a run made."""

    tests: list[Test] | None = None


class OutputStatistics(Facet, frozen=True, kw_only=True):
    """How much a run wrote."""

    rowCount: int | float | None = None
    size: int | float | None = None
    fileCount: int | float | None = None


class NominalTime(Facet, frozen=True, kw_only=True):
    """The time that a run is about."""

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
    """Of what a run is a part."""

    run: ParentRunId | None = None
    job: Named | None = None


class ErrorMessage(Facet, frozen=True, kw_only=True):
    """Why a run failed."""

    message: str = ""
    programmingLanguage: str | None = None
    stackTrace: str | None = None


class Symlinks(Facet, frozen=True, kw_only=True):
    """Other names of a dataset."""

    identifiers: list[Named] | None = None


class Lifecycle(Facet, frozen=True, kw_only=True):
    """What happened to a dataset as a whole."""

    lifecycleStateChange: str
    previousIdentifier: Named | None = None


class JobType(Facet, frozen=True, kw_only=True):
    """What kind of job it is. A STREAMING one may never end."""

    processingType: str | None = None
    integration: str | None = None
    jobType: str | None = None


class SourceCodeLocation(Facet, frozen=True, kw_only=True):
    """Where the code of a job lies."""

    version: str | None = None


class LineageInput(Struct, frozen=True):
    """A dataset or job that something was made of."""

    type: str | None = None
    namespace: str | None = None
    name: str | None = None
    field: str | None = None


class LineageField(Struct, frozen=True):
    """What a column was made of."""

    inputs: list[LineageInput] | None = None


class LineageTarget(Struct, frozen=True):
    """A dataset or job, and what it was made of. Empty `inputs` say: of nothing."""

    type: str | None = None
    namespace: str | None = None
    name: str | None = None
    inputs: list[LineageInput] | None = None
    fields: dict[str, LineageField] | None = None


class ExplicitLineage(Facet, frozen=True, kw_only=True):
    """Lineage of a job or run, said outright: in `entries`, or as it was drafted in `lineage`."""

    entries: list[LineageTarget] | None = None
    lineage: list[LineageTarget] | None = None


class DatasetLineage(Facet, frozen=True, kw_only=True):
    """Lineage of an output, said outright."""

    inputs: list[LineageInput] | None = None
    fields: dict[str, LineageField] | None = None


class Facets:
    """The facets of a run, job or dataset, decoded when they are asked for. What is wrong with one is noted."""

    def __init__(self, raw: Mapping[str, Raw] | None, where: str, oddities: list[IngestWarning]) -> None:
        self._raw = raw or {}
        self._where = where
        self._oddities = oddities

    def get(self, name: str, kind: type[_F]) -> _F | None:
        """Return the facet, or None if it is not there, was taken back, or is not as it should be."""
        raw = self._raw.get(name)
        if raw is None or bytes(raw) == b"null":
            return None
        try:
            found = typed_decode.from_json(raw, kind)
        except _ERRORS as exc:
            if len(self._oddities) < ODDITIES_MAX:
                self._oddities.append(IngestWarning(f"{self._where}.{name}", str(exc)[:200]))
            return None
        return None if found.deleted else found
