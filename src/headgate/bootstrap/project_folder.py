"""Project folder: loads definitions, archetypes and probes, at the start, on request, and when files change."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from headgate.bootstrap.checks import OpenChecks
from headgate.bootstrap.pipelines import OpenPipelines
from headgate.checks.definitions import FOLDER as CHECKS
from headgate.checks.state import CheckKey
from headgate.errors import ConflictError, CorruptionError, SettingsError, UserError
from headgate.health.audit.actions import Action, ActionLog
from headgate.pipelines.authoring.archetypes import SUFFIXES, Archetype, load_archetypes
from headgate.pipelines.authoring.dataset_checks import unknown_datasets
from headgate.pipelines.authoring.loader import Known, Loaded, LoadedPipeline, load_folder
from headgate.pipelines.catalog.project import (
    REPORT_FILE,
    FolderCheck,
    FolderDefinition,
    FolderOutcome,
    FolderProbe,
    FolderReport,
    ProbeOutcome,
    first_from_folder,
    is_api_change,
    keeps_api_change,
)
from headgate.pipelines.catalog.rows import StoredPipeline, moment_text
from headgate.pipelines.catalog.store import PipelineChange
from headgate.pipelines.definition.problems import InvalidPipelineError, Problem, errors_of
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent
from headgate.pipelines.probes.definitions import FOLDER as PROBES
from headgate.pipelines.probes.definitions import LoadedProbe
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import PipelineService
from headgate.store.model.requests import Write

ARCHETYPES: Final = "archetypes"
# The author of definitions that the project folder holds.
FOLDER_AUTHOR: Final = "folder"
WATCH_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class ProjectArchetypes(NamedTuple):
    """The archetypes of a project, None for the built-in ones only, and the problems of those not loaded."""

    archetypes: Mapping[str, Archetype] | None
    problems: Sequence[Problem]


def project_archetypes(folder: Path) -> ProjectArchetypes:
    """Load the archetypes from the folder 'archetypes' beside a pipelines folder."""
    beside = _archetypes_folder(folder)
    if not beside.is_dir():
        return ProjectArchetypes(None, ())
    try:
        return ProjectArchetypes(load_archetypes(beside), ())
    except InvalidPipelineError as exc:
        # Pipelines that use none of these archetypes still load.
        return ProjectArchetypes(None, exc.problems)


def _archetypes_folder(folder: Path) -> Path:
    return folder.resolve().parent / ARCHETYPES


def _probes_folder(folder: Path) -> Path:
    return folder.resolve().parent / PROBES


def _checks_folder(folder: Path) -> Path:
    return folder.resolve().parent / CHECKS


class ProjectFolder:
    """The folder that a server loads definitions from. One load at a time."""

    def __init__(
        self, folder: Path, pipelines: OpenPipelines, *, home: Path | None = None, actions: ActionLog | None = None
    ) -> None:
        """With `actions`, changes are audited. With `home`, the last report is stored there."""
        self._folder = folder
        self._pipelines = pipelines
        self._home = home
        self._actions = actions
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, int, int], ...] = ()

    def load(self, *, by: str = FOLDER_AUTHOR) -> FolderReport:
        """Load every definition, and return what that came to. Raises `SettingsError` without the folder."""
        with self._lock:
            self._seen = self._fingerprint()
            report = apply_folder(self._pipelines, self._folder, actions=self._actions, by=by)
            if self._home is not None:
                _store_report(self._home, report)
            return report

    def load_first(self) -> None:
        """Load every definition when the server starts."""
        self.load()

    def load_if_changed(self, _limit: int = 0) -> int:
        """Load the folder if a file was changed, added or removed. Returns 1 if it was loaded, else 0."""
        if self._fingerprint() == self._seen:
            return 0
        _log.info("definitions changed", action="definitions.reload", folder=str(self._folder))
        self.load(by="watch")
        return 1

    def _fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        beside = (_archetypes_folder, _probes_folder, _checks_folder)
        folders = (self._folder, *(each(self._folder) for each in beside))
        return tuple(found for folder in folders for found in sorted(_stats(folder)))


def _stats(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in folder.rglob("*"):
        # A file may vanish between the listing and the call.
        with contextlib.suppress(OSError):
            if path.suffix in SUFFIXES:
                found = path.stat()
                yield str(path), found.st_mtime_ns, found.st_size


def _store_report(home: Path, report: FolderReport) -> None:
    """Replace the stored report atomically. A home that cannot be written is reported by its own check."""
    temporary = home / f"{REPORT_FILE}.new"
    try:
        temporary.write_bytes(msgspec.json.encode(report))
        temporary.replace(home / REPORT_FILE)
    except OSError as exc:
        _log.warning("report of definitions not stored", action="definitions.load", error=str(exc))


def apply_folder(
    pipelines: OpenPipelines, folder: Path, *, actions: ActionLog | None = None, by: str = FOLDER_AUTHOR
) -> FolderReport:
    """Apply the pipeline definitions in a folder. An invalid definition is reported and stops no other.

    With `actions`, changes are audited. Raises `SettingsError` if the folder does not exist.
    """
    if not folder.is_dir():
        raise SettingsError(f"pipelines.folder {folder}: there is no such folder; name one with YAML files")
    service = pipelines.service
    project = project_archetypes(folder)
    # Before the pipelines, whose rules and traits name probes.
    before = pipelines.probes.catalog.all()
    probe_problems = pipelines.probes.catalog.load(_probes_folder(folder))
    after = pipelines.probes.catalog.all()
    checks = pipelines.checks
    checks_before = _file_checks(checks)
    check_problems = () if checks is None else checks.catalog.load(_checks_folder(folder))
    probes = frozenset(each.probe.id for each in after)
    known = Known(
        archetypes=project.archetypes,
        calendars=pipelines.calendars.all(),
        check_trigger=pipelines.triggers.check,
        check_trait=pipelines.evaluators.check,
        pools=service.pools.sizes,
        probes=probes,
    )
    loaded = load_folder(folder, known)
    loader = _Loader(service, actions, by)
    definitions = tuple(loader.apply(each) for each in loaded.pipelines)
    invalid = [
        (each.source, each.text())
        for each in (*project.problems, *errors_of((*probe_problems, *check_problems, *loaded.problems)))
    ]
    failed = [(each.file, each.detail) for each in definitions if each.outcome is FolderOutcome.FAILED]
    _report_problems(service, [*invalid, *failed])
    warnings = _warnings(service, loaded)
    report = FolderReport(
        folder=str(folder),
        at=moment_text(service.clock.now()),
        definitions=definitions,
        problems=tuple(text for _, text in [*invalid, *failed]),
        warnings=warnings,
        gone=() if invalid else _gone(service, {each.pipeline_id for each in definitions}),
        probes=tuple(_probe_changes(before, after)),
        checks=tuple(_check_changes(checks_before, _file_checks(checks))),
    )
    service.project.record(project.archetypes, probes, report)
    return report


def _probe_changes(before: Sequence[LoadedProbe], after: Sequence[LoadedProbe]) -> Iterator[FolderProbe]:
    known, present = ({each.probe.id: each for each in loaded} for loaded in (before, after))
    for name in sorted(known.keys() | present.keys()):
        was, now = known.get(name), present.get(name)
        if now is None:
            yield FolderProbe(probe_id=name, file=known[name].source, outcome=ProbeOutcome.REMOVED)
        elif was is None:
            yield FolderProbe(probe_id=name, file=now.source, outcome=ProbeOutcome.NEW)
        elif was.probe != now.probe:
            yield FolderProbe(probe_id=name, file=now.source, outcome=ProbeOutcome.CHANGED)


def _file_checks(checks: OpenChecks | None) -> dict[CheckKey, tuple[str, str]]:
    """Return the digest and the source of each check that a file declares."""
    if checks is None:
        return {}
    return {
        CheckKey(loaded.file.dataset, each.id): (loaded.file.digest(each), f"{loaded.source}:{loaded.line}")
        for loaded in checks.catalog.files()
        for each in loaded.file.checks
    }


def _check_changes(
    before: Mapping[CheckKey, tuple[str, str]], after: Mapping[CheckKey, tuple[str, str]]
) -> Iterator[FolderCheck]:
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        outcome = ProbeOutcome.CHANGED
        if now is None or was is None:
            outcome = ProbeOutcome.NEW if was is None else ProbeOutcome.REMOVED
        elif was[0] == now[0]:
            continue
        _digest, source = now or before[key]
        yield FolderCheck(dataset_urn=key.dataset, check_id=key.check_id, file=source, outcome=outcome)


def _report_problems(service: PipelineService, problems: Sequence[tuple[str, str]]) -> None:
    """Log each problem, and publish those that the last load did not have."""
    before = () if service.project.report is None else service.project.report.problems
    for file, text in problems:
        _log.error("definition not loaded", action="definitions.load", file=file, error=text)
        if text not in before:
            service.events.publish(PipelineEvent(name=EventName.PIPELINE_CONFIG_INVALID, detail={"error": text}))


def _warnings(service: PipelineService, loaded: Loaded) -> tuple[str, ...]:
    """Log and return the warnings that only a server can give: of datasets that are not registered."""
    places = {each.pipeline.id: each for each in loaded.pipelines}
    pipelines = [each.pipeline for each in loaded.pipelines]
    found = unknown_datasets(pipelines, service.unregistered_datasets, service.definitions.written_datasets)
    placed = ((each, places[each.source]) for each in found)
    texts = tuple(msgspec.structs.replace(each, source=place.source, line=place.line).text() for each, place in placed)
    for text in texts:
        _log.warning("definition loaded with a warning", action="definitions.load", reason=text)
    return texts


def _gone(service: PipelineService, present: set[str]) -> tuple[str, ...]:
    """Return the pipelines in force that came from the folder, which no longer holds them."""
    stored = service.definitions.all().pipelines
    return tuple(
        f"{each.pipeline.id} ({each.source})"
        for each in stored
        if each.pipeline.id not in present and first_from_folder([each]) is not None
    )


class _Loader:
    """Applies one definition of the folder after the other."""

    def __init__(self, service: PipelineService, actions: ActionLog | None, by: str) -> None:
        self._service = service
        self._definitions = service.definitions
        self._actions = actions
        self._by = by

    def apply(self, loaded: LoadedPipeline) -> FolderDefinition:
        """Store a definition, or leave the change of the API in force."""
        pipeline_id = loaded.pipeline.id
        sha256 = hashlib.sha256(loaded.text.encode()).hexdigest()
        about = FolderDefinition(
            pipeline_id=pipeline_id, file=loaded.source, sha256=sha256, outcome=FolderOutcome.UNCHANGED
        )
        current = self._current(pipeline_id)
        if current is not None and keeps_api_change(sha256, current, self._last_loaded(current)):
            return self._kept(about, current)
        try:
            change = self._put(loaded, current, sha256)
        except (UserError, ConflictError) as exc:
            return msgspec.structs.replace(about, outcome=FolderOutcome.FAILED, detail=exc.message)
        except CorruptionError as exc:
            # Its audit chain was tampered with. The server starts, since only a running one can reopen the chain.
            return msgspec.structs.replace(about, outcome=FolderOutcome.FAILED, detail=exc.message)
        return self._applied(about, current, change)

    def _kept(self, about: FolderDefinition, current: StoredPipeline) -> FolderDefinition:
        verb = "deleted" if current.deleted else "changed"
        detail = (
            f"{current.by} {verb} it over the API at {current.at}, after {about.file} was last loaded; "
            "that stays in force until the file changes"
        )
        _log.warning("definition of the API kept", action="definitions.load", pipeline=about.pipeline_id, reason=detail)
        outcome = FolderOutcome.KEPT_DELETED if current.deleted else FolderOutcome.KEPT
        version = 0 if current.deleted else current.version
        return msgspec.structs.replace(about, outcome=outcome, version=version, detail=detail)

    def _applied(
        self, about: FolderDefinition, current: StoredPipeline | None, change: PipelineChange
    ) -> FolderDefinition:
        outcome, detail = FolderOutcome.UNCHANGED, ""
        if change.is_changed and current is not None and is_api_change(current):
            outcome = FolderOutcome.REPLACED
            detail = f"replaced version {current.version} of the API, by {current.by} at {current.at}"
            _log.warning(
                "definition of the API replaced", action="definitions.load", pipeline=about.pipeline_id, reason=detail
            )
        elif change.is_changed:
            outcome = FolderOutcome.NEW if change.is_new else FolderOutcome.CHANGED
        return msgspec.structs.replace(about, outcome=outcome, version=change.stored.version, detail=detail)

    def _put(self, loaded: LoadedPipeline, current: StoredPipeline | None, sha256: str) -> PipelineChange:
        put = partial(
            self._definitions.put,
            loaded.pipeline,
            loaded.text,
            FOLDER_AUTHOR,
            source=loaded.source,
            also=partial(self._events, loaded.source, current),
            is_from_folder=True,
        )
        is_stored = current is not None and not current.deleted and current.source_digest == sha256
        if self._actions is None or is_stored:
            return put()
        how = "" if self._by == FOLDER_AUTHOR else f", reload by {self._by}"
        about = Action(
            actor=FOLDER_AUTHOR,
            action="pipeline.put",
            entity=f"pipeline/{loaded.pipeline.id}",
            reason=f"loaded from {loaded.source}{how}",
        )
        change: PipelineChange = self._actions.run(about, put, state=partial(self._state, loaded.pipeline.id))
        return change

    def _events(self, file: str, current: StoredPipeline | None, change: PipelineChange) -> list[Write]:
        writes = self._service.definition_events(change)
        if current is None or not is_api_change(current):
            return writes
        detail = {"file": file, "replaced": current.version, "by": current.by, "version": change.stored.version}
        slot = Slot(change.stored.pipeline.id, "", "")
        return [*writes, *self._service.event_writer.writes(EventName.PIPELINE_REPLACED, slot, detail)]

    def _current(self, pipeline_id: str) -> StoredPipeline | None:
        """Return the current row, also of a deletion. None: there is none, or an unreadable one, which is replaced."""
        try:
            found = self._definitions.find(pipeline_id)
        except CorruptionError:
            return None
        if found is not None:
            return found
        return next(iter(self._definitions.versions(pipeline_id, limit=1, consistent=True).pipelines), None)

    def _last_loaded(self, current: StoredPipeline) -> StoredPipeline | None:
        """Return the last version that the folder held; read only if the API has changed the pipeline since."""
        if not is_api_change(current):
            return current
        cursor: str | None = None
        while True:
            page = self._definitions.versions(current.pipeline.id, cursor=cursor, consistent=True)
            found = first_from_folder(page.pipelines)
            if found is not None or page.cursor is None:
                return found
            cursor = page.cursor

    def _state(self, pipeline_id: str, _change: PipelineChange | None) -> dict[str, Any] | None:
        """Return what the audit log compares of a definition."""
        try:
            stored = self._definitions.find(pipeline_id)
        except CorruptionError:
            return None
        if stored is None:
            return None
        names = ("version", "digest", "source", "source_digest")
        return {name: getattr(stored, name) for name in names}
