"""Loader: reads definitions from YAML or JSON in three formats, and reports all problems at once.

A file may hold several documents. An invalid one is reported and left out; the others load.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.pipelines.authoring.archetypes import SUFFIXES, Archetype, fill_in, shipped_archetypes
from headgate.pipelines.authoring.formats.detect import converted
from headgate.pipelines.authoring.validation import DefinitionChecks, MissingFiles, TraitCheck, TriggerCheck
from headgate.pipelines.definition.model import POLL_WINDOW_SECONDS, Pipeline
from headgate.pipelines.definition.problems import InvalidPipelineError, Problem, errors_of, nearest
from headgate.pipelines.definition.source_map import Node, Unreadable, documents
from headgate.pipelines.definition.typed_decoder import DecodeReport, read_struct
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.dependencies import cycles, upstreams_of

FILE_BYTES_MAX: Final = 1_048_576
_SEPARATOR: Final = re.compile(r"---(\s|$)")


class Known(Struct, frozen=True, kw_only=True):
    """What definitions may refer to. None: unknown, and not checked."""

    # None: only the built-in ones.
    archetypes: Mapping[str, Archetype] | None = None
    calendars: Calendars | None = None
    # `TriggerKinds.check` of the registry of triggers.
    check_trigger: TriggerCheck | None = None
    # Finds the files of a trigger that do not exist, for warnings.
    missing_files: MissingFiles | None = None
    # `Evaluators.check` of the evaluators.
    check_trait: TraitCheck | None = None
    # Whether the definitions are in use already: checks newer than them are warnings.
    is_stored: bool = False
    # The declared pools with their sizes.
    pools: Mapping[str, int] | None = None
    # Ids of the probes of the project.
    probes: Collection[str] | None = None


class LoadedPipeline(Struct, frozen=True, kw_only=True):
    """A definition with its source position and text."""

    pipeline: Pipeline
    source: str
    line: int
    text: str


class Loaded(Struct, frozen=True, kw_only=True):
    """The valid definitions, and all problems and warnings."""

    pipelines: tuple[LoadedPipeline, ...] = ()
    problems: tuple[Problem, ...] = ()

    def checked(self) -> tuple[LoadedPipeline, ...]:
        """Return the definitions. Raises `InvalidPipelineError` if there is any error."""
        errors = errors_of(self.problems)
        if errors:
            raise InvalidPipelineError(errors)
        return self.pipelines


_NOTHING_KNOWN: Final = Known()


def load_pipeline(text: str, source: str, known: Known = _NOTHING_KNOWN) -> Pipeline:
    """Return the one definition of a text. Raises `InvalidPipelineError` with all its problems."""
    loaded = load_text(text, source, known).checked()
    if len(loaded) != 1:
        fact = f"it has {len(loaded)} definitions" if loaded else "it has no definition"
        raise InvalidPipelineError([Problem(source=source, fact=fact, allowed="give exactly one")])
    return loaded[0].pipeline


def load_text(text: str, source: str, known: Known = _NOTHING_KNOWN) -> Loaded:
    """Return the definitions of a text and its problems. An invalid document does not affect the others."""
    return together(_load_documents(text, source, known))


def load_folder(folder: Path, known: Known = _NOTHING_KNOWN) -> Loaded:
    """Return the definitions of all YAML and JSON files below a folder, and their problems.

    Sources are relative paths. An unreadable file is a problem of that file alone.
    """
    pipelines: list[LoadedPipeline] = []
    problems: list[Problem] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and not path.is_dir()):
        source = path.relative_to(folder).as_posix()
        loaded = _load_file(path, source, known)
        pipelines += loaded.pipelines
        problems += loaded.problems
    return together(Loaded(pipelines=tuple(pipelines), problems=tuple(problems)))


def together(loaded: Loaded) -> Loaded:
    """Return definitions after the checks across documents.

    Duplicate ids and dependency cycles are problems, and all definitions involved are left out.
    """
    twice, circling = _given_twice(loaded.pipelines), _circle_problems(loaded.pipelines)
    bad = {*twice, *(member for circle in circling for member in circle)}
    return Loaded(
        pipelines=tuple(each for each in loaded.pipelines if each.pipeline.id not in bad),
        problems=(*loaded.problems, *(each for found in twice.values() for each in found), *circling.values()),
    )


def unknown_upstreams(pipelines: Iterable[Pipeline], known_ids: Iterable[str]) -> list[Problem]:
    """Return warnings for unknown upstreams."""
    listed = list(pipelines)
    known = {pipeline.id for pipeline in listed} | set(known_ids)
    problems = []
    for pipeline in listed:
        for wanted in sorted({each.upstream.pipeline for each in upstreams_of(pipeline)} - known):
            fact = f"upstream {wanted!r} is no pipeline that is known"
            problems.append(Problem(source=pipeline.id, fact=fact, suggestion=nearest(wanted, known), is_warning=True))
    return problems


def _load_file(path: Path, source: str, known: Known) -> Loaded:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            problem = Problem(source=source, fact=f"it has {size} bytes", allowed=f"at most {FILE_BYTES_MAX}; split it")
            return Loaded(problems=(problem,))
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        return Loaded(problems=(Problem(source=source, fact=f"it cannot be read: {exc}"),))
    return _load_documents(text, source, known)


def _load_documents(text: str, source: str, known: Known) -> Loaded:
    try:
        nodes = documents(text, source)
    except Unreadable as exc:
        return Loaded(problems=(exc.problem,))
    if not nodes:
        return Loaded(problems=(Problem(source=source, fact="it has no definition", allowed="give at least one"),))
    pipelines: list[LoadedPipeline] = []
    problems: list[Problem] = []
    for node in nodes:
        pipeline, found = _load_document(node, source, known)
        problems += sorted(found, key=lambda problem: (problem.line, problem.column))
        if pipeline is not None:
            own_text = text if len(nodes) == 1 else _document_text(text, node.line)
            pipelines.append(LoadedPipeline(pipeline=pipeline, source=source, line=node.line, text=own_text))
    return Loaded(pipelines=tuple(pipelines), problems=tuple(problems))


def _load_document(node: Node, source: str, known: Known) -> tuple[Pipeline | None, list[Problem]]:
    reading = DecodeReport(source, node)
    document = converted(node, reading)
    if document is None:
        return None, reading.problems
    reading.root = document
    archetypes = shipped_archetypes() if known.archetypes is None else known.archetypes
    fill_in(document, archetypes, reading)
    pipeline = read_struct(document, Pipeline, reading)
    if isinstance(document.value, dict):
        DefinitionChecks(
            pipeline,
            reading,
            archetypes=archetypes,
            calendars=known.calendars,
            check_trigger=known.check_trigger,
            missing_files=known.missing_files,
            check_trait=known.check_trait,
            is_stored=known.is_stored,
            pools=known.pools,
            probes=known.probes,
        ).check()
    is_right = not errors_of(reading.problems)
    return _normalised(pipeline) if is_right else None, reading.problems


def _normalised(pipeline: Pipeline) -> Pipeline:
    """Return a definition with equivalent spellings unified."""
    readiness = replace(pipeline.readiness, mode=pipeline.readiness.mode.upper())
    trigger = pipeline.trigger
    if trigger is not None and not trigger.poll_window:
        trigger = replace(trigger, poll_window=Seconds(POLL_WINDOW_SECONDS))
    return replace(pipeline, readiness=readiness, trigger=trigger)


def _document_text(text: str, line: int) -> str:
    """Return the document that contains a line."""
    lines = text.splitlines(keepends=True)
    breaks = [number for number, each in enumerate(lines, 1) if _SEPARATOR.match(each)]
    # A document may start on the line of its separator.
    start = max((number for number in breaks if number <= line), default=0)
    end = min((number for number in breaks if number > line), default=len(lines) + 1)
    inline = _SEPARATOR.sub("", lines[start - 1], count=1) if start == line and start else ""
    return inline + "".join(lines[start : end - 1])


def _given_twice(pipelines: Sequence[LoadedPipeline]) -> dict[str, list[Problem]]:
    first: dict[str, LoadedPipeline] = {}
    found: dict[str, list[Problem]] = {}
    for each in pipelines:
        other = first.setdefault(each.pipeline.id, each)
        if other is not each:
            fact = f"{each.pipeline.id!r} is defined at {other.source}:{other.line} too"
            allowed = "give each an id of its own"
            problem = Problem(source=each.source, line=each.line, column=1, field="id", fact=fact, allowed=allowed)
            found.setdefault(each.pipeline.id, []).append(problem)
    return found


def _circle_problems(pipelines: Sequence[LoadedPipeline]) -> dict[tuple[str, ...], Problem]:
    by_id = {each.pipeline.id: each for each in pipelines}
    found = {}
    for circle in cycles(each.pipeline for each in by_id.values()):
        first = by_id[circle[0]]
        fact = f"upstreams go in a circle: {' → '.join((*circle, circle[0]))}"
        allowed = "take one of them out, or wait for its period before"
        found[circle] = Problem(source=first.source, line=first.line, column=1, fact=fact, allowed=allowed)
    return found
