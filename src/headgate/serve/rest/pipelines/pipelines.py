"""Pipeline API: define, validate, plan, list and delete pipelines; and all routes of rest/pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from headgate.durable.bus.bus import Bus
from headgate.errors import DefinitionError, InvalidPayloadError
from headgate.pipelines.authoring.loader import FILE_BYTES_MAX, Loaded, LoadedPipeline
from headgate.pipelines.authoring.validation import TraitCheck
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.catalog.proposals import Proposals
from headgate.pipelines.catalog.provenance import API, Provenance
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.catalog.store import BadPipeline, PipelineChange
from headgate.pipelines.definition import problems
from headgate.pipelines.definition.model import Period
from headgate.pipelines.definition.serialization import digest, plain
from headgate.pipelines.events.names import EventName
from headgate.pipelines.operations.run_output import RunOutputs
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import schedule_id_of
from headgate.pipelines.service import PipelineService
from headgate.serve.http.idempotency import RETENTION_SECONDS, IdempotencyStore
from headgate.serve.http.operations import (
    JSON,
    PREFIX,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    Result,
    operation_routes,
)
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem, response
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import PageQuery, TraitType
from headgate.serve.rest.pipelines.calendars import calendar_operations
from headgate.serve.rest.pipelines.callbacks import callback_operations
from headgate.serve.rest.pipelines.controls import control_operations
from headgate.serve.rest.pipelines.events import event_operations
from headgate.serve.rest.pipelines.lists import list_operations
from headgate.serve.rest.pipelines.permissions import DEFINE, READ
from headgate.serve.rest.pipelines.pools import pool_operations
from headgate.serve.rest.pipelines.readiness import readiness_operations
from headgate.serve.rest.pipelines.reload import ReloadableFolder, reload_operations
from headgate.serve.rest.pipelines.run_output import output_operations
from headgate.serve.rest.pipelines.runs import run_operations
from headgate.serve.rest.pipelines.sensors import sensor_operations
from headgate.serve.rest.pipelines.traits import trait_operations
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.store.model.requests import Write
from headgate.triggers.registry import TriggerKinds

YAML: Final = "application/yaml"
_POLICY: Final = AccessPolicy(READ.permission, DEFINE.permission)
_SOURCE: Final = "body"
_PROBLEMS_MAX: Final = 3
_EXAMPLE: Final = {
    "id": "silver-orders",
    "schedules": [{"cron": "0 6 * * *", "timezone": "Europe/Berlin"}],
    "readiness": {"rules": [{"key": "orders-landed", "check": "gte", "field": "count", "value": 1000}]},
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/silver"}},
}
DefinitionObject = Annotated[
    dict[str, Any], Meta(description="A pipeline definition, also in an older format.", examples=[_EXAMPLE])
]
_FORMS: Final = {JSON: DefinitionObject, YAML: DefinitionObject}
# Validation answers for any body.
AnyDefinitions = Annotated[
    Any, Meta(description="Definitions; anything else is reported as a problem.", examples=[_EXAMPLE])
]
_ANY_FORMS: Final = {JSON: AnyDefinitions, YAML: AnyDefinitions}
Why = Annotated[str, Meta(max_length=1024, examples=["the job is called otherwise now"])]


class ChangeQuery(Struct, forbid_unknown_fields=True):
    """Reason of the change, stored with the version."""

    reason: Why = ""


class VersionQuery(Struct, forbid_unknown_fields=True):
    """Version; the current one by default."""

    version: Annotated[int, Meta(ge=1, le=999_999)] | None = None


_VERSIONS: Final = {"from_version": "from", "to_version": "to"}
VersionNumber = Annotated[int, Meta(ge=1, le=999_999)]


class DiffQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename=_VERSIONS):
    """Two versions to compare; by default the current one with the one before it."""

    from_version: VersionNumber | None = None
    to_version: VersionNumber | None = None


class DefinitionDiff(Struct, frozen=True, kw_only=True, rename=_VERSIONS):
    """What changed between two versions: `+` added, `-` removed, `~` changed. `from` is 0 for the first version."""

    pipeline_id: str
    from_version: int
    to_version: int
    changes: list[str]


class Finding(Struct, frozen=True, kw_only=True):
    """One problem or warning: location, fact, and what is allowed. Lines count from 1."""

    field: str
    fact: str
    allowed: str
    suggestion: str
    line: int
    column: int
    text: str


class FolderCopy(Struct, frozen=True, kw_only=True):
    """What the project folder holds of a pipeline, as of its last load. `differs`: it is not the version in force."""

    file: str
    sha256: str
    differs: bool
    detail: str
    loaded_at: str


class PipelineView(Struct, frozen=True, kw_only=True):
    """A version of a pipeline. `definition` omits defaults."""

    id: str
    version: int
    digest: str
    owner: str
    description: str
    tier: int
    period: Period
    schedules: list[str]
    by: str
    at: str
    source: str
    reason: str
    deleted: bool
    provenance: Provenance
    definition: dict[str, Any]
    # None: the server loads no folder, or it does not define this pipeline.
    folder: FolderCopy | None = None
    warnings: list[Finding] = []


class PipelinePage(Struct, frozen=True):
    """A page of pipelines by id, and rows that are not valid definitions."""

    pipelines: list[PipelineView]
    bad: list[BadPipeline]
    cursor: str | None = None


class Checked(Struct, frozen=True, kw_only=True):
    """Validation result: valid pipelines, problems and warnings."""

    valid: bool
    pipelines: list[str]
    problems: list[Finding]
    warnings: list[Finding]


class PlannedChange(Struct, frozen=True, kw_only=True):
    """A change that storing the definition would make: `+` added, `-` removed, `~` changed."""

    pipeline_id: str
    is_new: bool
    lines: list[str]


class Planned(Struct, frozen=True, kw_only=True):
    """Changes that storing the definitions would make. Nothing was stored."""

    changes: list[PlannedChange]
    problems: list[Finding]
    warnings: list[Finding]


def pipeline_routes(  # noqa: PLR0913 - the routes of pipelines are joined here
    pipelines: PipelineService,
    bus: Bus,
    pool: WorkPool,
    calendars: CalendarStore | None = None,
    check_trait: TraitCheck | None = None,
    *,
    folder: ReloadableFolder | None = None,
    stopping: Callable[[], bool] = lambda: False,
    probes: Sequence[Operation] = (),
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of pipelines. They are one set: several nouns share the paths below a pipeline.

    `calendars` should be the instance that the pipelines use; another one sees changes only after a few seconds.
    `check_trait` validates a trait definition. `folder` is loaded again on request. `probes` are the operations on
    probes. Once `stopping` returns True, long polls end. Responses by Idempotency-Key are kept for
    `idempotency_seconds`.
    """
    kept = calendars if calendars is not None else CalendarStore(pipelines.store, pipelines.clock)
    operations = [
        *pipeline_operations(pipelines, bus, check_trait),
        *calendar_operations(kept, pipelines.definitions),
        *reload_operations(pipelines, folder),
        *probes,
    ]
    if isinstance(pipelines.trigger, TriggerKinds):
        outputs = RunOutputs(pipelines.stores.runs, pipelines.reader, pipelines.trigger)
        operations += output_operations(outputs, pool, stopping)
    idempotency = IdempotencyStore(pipelines.store, pipelines.clock, kept_seconds=idempotency_seconds)
    return operation_routes(
        operations,
        pool,
        _POLICY,
        namespace="pipelines.",
        auditing=auditing,
        idempotency=idempotency,
        path_types={"type": TraitType},
    )


def pipeline_operations(pipelines: PipelineService, bus: Bus, check_trait: TraitCheck | None = None) -> list[Operation]:
    """Return the operations on pipelines and everything below one."""
    return [
        *_Pipelines(pipelines, check_trait).operations(),
        *sensor_operations(pipelines),
        *trait_operations(pipelines),
        *readiness_operations(pipelines),
        *run_operations(pipelines),
        *callback_operations(pipelines),
        *control_operations(pipelines),
        *pool_operations(pipelines.pools),
        *list_operations(pipelines),
        *event_operations(pipelines, bus),
    ]


class _Pipelines:
    def __init__(self, pipelines: PipelineService, check_trait: TraitCheck | None) -> None:
        self._definitions = pipelines.definitions
        self._event_writer = pipelines.event_writer
        self._defined = pipelines.definition_events
        self._project = pipelines.project
        trigger = pipelines.trigger
        kinds = trigger if isinstance(trigger, TriggerKinds) else None
        self._proposals = Proposals(
            pipelines.definitions,
            pipelines.reader.calendars,
            kinds,
            check_trait,
            project=pipelines.project,
            pools=pipelines.pools.sizes,
            unregistered=pipelines.unregistered_datasets,
        )

    def operations(self) -> list[Operation]:
        one = "/pipelines/{id}"
        kept = {200: PipelineView, 201: PipelineView, 400: Problem, 412: Problem}
        return [
            Operation("GET", "/pipelines", "List pipelines", self.ls, {200: PipelinePage}, query=PageQuery, rule=READ),
            Operation(
                "POST",
                "/pipelines/validate",
                "Validate definitions",
                self.validate,
                {200: Checked},
                body_forms=_ANY_FORMS,
                is_body_optional=True,
                rule=READ,
            ),
            Operation(
                "POST",
                "/pipelines/plan",
                "Plan the changes of definitions",
                self.plan,
                {200: Planned},
                body_forms=_ANY_FORMS,
                is_body_optional=True,
                rule=READ,
            ),
            Operation(
                "PUT",
                one,
                "Define a pipeline",
                self.put,
                kept,
                query=ChangeQuery,
                body_forms=_FORMS,
                rule=DEFINE,
            ),
            Operation(
                "GET", one, "Show a pipeline version", self.show, {200: PipelineView},
                query=VersionQuery, rule=READ,
            ),
            Operation(
                "DELETE", one, "Delete a pipeline; its versions and runs stay", self.delete,
                {204: None, 404: Problem, 412: Problem}, query=ChangeQuery, rule=DEFINE,
            ),
            Operation(
                "GET", f"{one}/versions", "List versions, latest first", self.versions, {200: PipelinePage},
                query=PageQuery, rule=READ,
            ),
            Operation(
                "GET", f"{one}/diff", "Compare two versions", self.diff, {200: DefinitionDiff},
                query=DiffQuery, rule=READ,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        page = self._definitions.ls(limit=call.query.limit, cursor=call.query.cursor)
        return Answer(PipelinePage([self._view(each) for each in page.pipelines], list(page.bad), page.cursor))

    def show(self, call: Call[None, VersionQuery]) -> Answer:
        stored = self._definitions.get(call.path["id"], call.query.version)
        return Answer(self._view(stored), headers=etag(stored.version))

    def versions(self, call: Call[None, PageQuery]) -> Answer:
        page = self._definitions.versions(call.path["id"], limit=call.query.limit, cursor=call.query.cursor)
        if not page.pipelines and call.query.cursor is None:
            self._definitions.get(call.path["id"])
        return Answer(PipelinePage([self._view(each) for each in page.pipelines], list(page.bad), page.cursor))

    def diff(self, call: Call[None, DiffQuery]) -> Answer:
        name, query = call.path["id"], call.query
        newer = self._definitions.get(name, query.to_version)
        before = newer.version - 1 if query.from_version is None else query.from_version
        changes = self._definitions.diff(name, before, newer.version) if before else [f"+ pipeline {name}"]
        return Answer(DefinitionDiff(pipeline_id=name, from_version=before, to_version=newer.version, changes=changes))

    def validate(self, call: Call[None, NoQuery]) -> Answer:
        loaded = self._proposals.read(_text(call.content), _SOURCE)
        errors = problems.errors_of(loaded.problems)
        # The server's own files may contain them: the API is not a permitted way, the definition is valid.
        local = [problem for each in loaded.pipelines for problem in self._proposals.local_problems(each)]
        return Answer(
            Checked(
                valid=not errors,
                pipelines=[each.pipeline.id for each in loaded.pipelines],
                problems=_findings(errors),
                warnings=_findings([*_warnings(loaded), *local]),
            )
        )

    def plan(self, call: Call[None, NoQuery]) -> Answer:
        loaded = self._proposals.read(_text(call.content), _SOURCE)
        changed = [each for each in loaded.pipelines if self._unchanged(each) is None]
        local = [problem for each in changed for problem in self._proposals.local_problems(each)]
        return Answer(
            Planned(
                changes=[self._planned(each) for each in loaded.pipelines],
                problems=_findings([*problems.errors_of(loaded.problems), *local]),
                warnings=_findings(_warnings(loaded)),
            )
        )

    def _planned(self, loaded: LoadedPipeline) -> PlannedChange:
        pipeline = loaded.pipeline
        is_new = self._definitions.find(pipeline.id) is None
        return PlannedChange(pipeline_id=pipeline.id, is_new=is_new, lines=self._definitions.plan(pipeline))

    def put(self, call: Call[None, ChangeQuery]) -> Result:
        pipeline_id, text = call.path["id"], _text(call.content)
        loaded = self._proposals.read(text, _SOURCE)
        errors = problems.errors_of(loaded.problems)
        errors += _id_mismatch(loaded, pipeline_id) if not errors else []
        local = [problem for each in loaded.pipelines for problem in self._proposals.local_problems(each)]
        if local and not errors and (stored := self._unchanged(loaded.pipelines[0])) is not None:
            # What the folder holds already is no new program.
            return Answer(self._view(stored, _findings(_warnings(loaded))), 200, etag(stored.version))
        errors += local
        if errors:
            return _refused(pipeline_id, errors)

        def keep(version: int | None) -> PipelineChange:
            return self._definitions.put(
                loaded.pipelines[0].pipeline,
                text,
                call.principal.name,
                source=API,
                reason=call.query.reason,
                version=version,
                also=self._defined,
            )

        change = matching(call.headers, None, keep)
        stored = change.stored
        location = f"{PREFIX}/pipelines/{quote(pipeline_id, safe='')}?version={stored.version}"
        headers = {**etag(stored.version), "location": location}
        return Answer(self._view(stored, _findings(_warnings(loaded))), 201 if change.is_changed else 200, headers)

    def _unchanged(self, loaded: LoadedPipeline) -> StoredPipeline | None:
        """Return the stored definition if it is the same, whatever its comments and layout; else None."""
        stored = self._definitions.find(loaded.pipeline.id)
        return stored if stored is not None and stored.digest == digest(loaded.pipeline) else None

    def delete(self, call: Call[None, ChangeQuery]) -> Answer:
        def remove(version: int | None) -> PipelineChange:
            return self._definitions.delete(
                call.path["id"],
                call.principal.name,
                reason=call.query.reason,
                version=version,
                also=self._deleted,
            )

        matching(call.headers, None, remove)
        return Answer(status=204)

    def _view(self, stored: StoredPipeline, warnings: Sequence[Finding] = ()) -> PipelineView:
        return _view(stored, self._definitions.provenance(stored), self._folder_copy(stored), warnings)

    def _folder_copy(self, stored: StoredPipeline) -> FolderCopy | None:
        report = self._project.report
        found = None if report is None else report.find(stored.pipeline.id)
        if report is None or found is None:
            return None
        return FolderCopy(
            file=found.file,
            sha256=found.sha256,
            differs=found.sha256 != stored.source_digest or stored.deleted,
            detail=found.detail,
            loaded_at=report.at,
        )

    def _deleted(self, change: PipelineChange) -> list[Write]:
        detail = {"by": change.stored.by, "version": change.stored.version, "reason": change.stored.reason}
        return self._event_writer.writes(EventName.PIPELINE_DELETED, Slot(change.stored.pipeline.id, "", ""), detail)


def _view(
    stored: StoredPipeline, provenance: Provenance, folder: FolderCopy | None, warnings: Sequence[Finding] = ()
) -> PipelineView:
    pipeline = stored.pipeline
    return PipelineView(
        id=pipeline.id,
        version=stored.version,
        digest=stored.digest,
        owner=pipeline.owner,
        description=pipeline.description,
        tier=pipeline.tier,
        period=pipeline.period,
        schedules=[schedule_id_of(each) for each in pipeline.schedules],
        by=stored.by,
        at=stored.at,
        source=stored.source,
        reason=stored.reason,
        deleted=stored.deleted,
        provenance=provenance,
        definition=plain(pipeline),
        folder=folder,
        warnings=list(warnings),
    )


def _text(content: bytes) -> str:
    if len(content) > FILE_BYTES_MAX:
        raise InvalidPayloadError(f"body: {len(content)} bytes; send at most {FILE_BYTES_MAX}")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise InvalidPayloadError(f"body: not UTF-8: {exc.reason} at byte {exc.start}") from exc


def _warnings(loaded: Loaded) -> list[problems.Problem]:
    return [problem for problem in loaded.problems if problem.is_warning]


def _findings(found: Sequence[problems.Problem]) -> list[Finding]:
    return [shown(Finding, problem, text=problem.text()) for problem in found]


def _id_mismatch(loaded: Loaded, pipeline_id: str) -> list[problems.Problem]:
    """Return the problem if a text is not the definition of this pipeline."""
    ids = [each.pipeline.id for each in loaded.pipelines]
    if ids == [pipeline_id]:
        return []
    if len(ids) != 1:
        return [problems.Problem(source=_SOURCE, fact=f"{len(ids)} definitions", allowed="send exactly one")]
    fact = f"{ids[0]!r} differs from {pipeline_id!r} in the path"
    line = loaded.pipelines[0].line
    return [problems.Problem(source=_SOURCE, line=line, field="id", fact=fact, allowed="send the same id")]


def _refused(pipeline_id: str, errors: Sequence[problems.Problem]) -> Result:
    first = "; ".join(problem.text() for problem in errors[:_PROBLEMS_MAX])
    rest = f"; and {len(errors) - _PROBLEMS_MAX} more" if len(errors) > _PROBLEMS_MAX else ""
    detail = f"pipeline {pipeline_id}: {first}{rest}"
    return response(Problem.of(400, DefinitionError.code, detail, errors=_findings(errors)))
