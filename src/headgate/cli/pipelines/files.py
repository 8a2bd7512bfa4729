"""Definitions of pipelines that commands are given as files and folders: read, checked together, and shown.

Definitions that are sent to a server as the texts that people wrote, with their comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.input_files import read_content
from headgate.cli.pipelines.views import pages
from headgate.cli.session import Json, echo_json
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.pipelines.authoring.archetypes import Archetype
    from headgate.pipelines.authoring.loader import Known, Loaded
    from headgate.pipelines.definition.problems import Problem
if TYPE_CHECKING:
    from headgate.pipelines.authoring.loader import LoadedPipeline


INVALID_EXIT_CODE: Final = 2
PIPELINES: Final = "pipelines"
ARCHETYPES: Final = "archetypes"
Paths = Annotated[
    list[str],
    typer.Argument(metavar="FILE|FOLDER…", help="Definitions in YAML or JSON; a folder is read with all below it."),
]
ArchetypeFolder = Annotated[
    Path | None,
    typer.Option(
        "--archetypes",
        metavar="FOLDER",
        help="Archetypes of your own. [default: the folder 'archetypes' beside the definitions, if it is there]",
        show_default=False,
    ),
]


def validate(paths: Paths, archetypes: ArchetypeFolder = None, as_json: Json = False) -> None:
    """Say everything that is wrong with definitions: file, line, field and what is allowed. The exit code is then 2.

    No server is asked. A folder that has a folder 'pipelines' is a project, of which that one is read.
    """
    loaded = load(paths, archetypes)
    errors, warnings = split(loaded)
    if as_json:
        ids = [each.pipeline.id for each in loaded.pipelines]
        echo_json({"valid": not errors, "pipelines": ids, "problems": errors, "warnings": warnings})
    else:
        show_problems(loaded)
        if not errors:
            typer.echo(f"{' '.join(paths)}: valid; {counted(len(loaded.pipelines), 'pipeline')}")
    if errors:
        _refuse(paths, errors)


def load(paths: Sequence[str], archetypes: Path | None = None) -> Loaded:
    """Return the definitions at paths and what is wrong with them, by the paths that were given.

    Raises `UserError` for a path that cannot be read, and `InvalidPipelineError` for archetypes that are none.
    """
    from headgate.pipelines.authoring.loader import Loaded, together

    found = [_load(path, archetypes) for path in paths]
    pipelines = tuple(each for loaded in found for each in loaded.pipelines)
    problems = tuple(each for loaded in found for each in loaded.problems)
    loaded = together(Loaded(pipelines=pipelines, problems=problems))
    if not any(Path(path).is_dir() for path in paths):
        # Of single files, those that they wait for are elsewhere.
        return loaded
    # One that is there, if only with mistakes, is no unknown one: those have been told.
    warnings = () if split(loaded)[0] else strange_upstreams(loaded, ())
    return Loaded(pipelines=loaded.pipelines, problems=(*loaded.problems, *warnings))


def load_right(paths: Sequence[str], archetypes: Path | None = None) -> Loaded:
    """Return definitions without a fault. What is wrong with them is shown, and ends the command with 2."""
    loaded = load(paths, archetypes)
    errors, _ = split(loaded)
    if errors:
        show_problems(loaded)
        _refuse(paths, errors)
    return loaded


def strange_upstreams(loaded: Loaded, known_ids: Iterable[str]) -> list[Problem]:
    """Return warnings for upstreams that are neither defined here nor known otherwise, with the places of who waits."""
    from msgspec.structs import replace

    from headgate.pipelines.authoring.loader import unknown_upstreams

    places = {each.pipeline.id: each for each in loaded.pipelines}
    found = unknown_upstreams([each.pipeline for each in loaded.pipelines], known_ids)
    return [replace(each, source=places[each.source].source, line=places[each.source].line) for each in found]


def split(loaded: Loaded) -> tuple[list[Problem], list[Problem]]:
    """Return what is wrong, and what is only hardly meant."""
    errors = [each for each in loaded.problems if not each.is_warning]
    return errors, [each for each in loaded.problems if each.is_warning]


def show_problems(loaded: Loaded) -> None:
    """Print every problem in a line of its own, on standard error."""
    for problem in loaded.problems:
        typer.echo(problem.text(), err=True)


def counted(count: int, what: str) -> str:
    """Return so many of something."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _refuse(paths: Sequence[str], errors: Sequence[Problem]) -> None:
    typer.echo(f"error: {' '.join(paths)}: {counted(len(errors), 'problem')}\ncode: bad_definition", err=True)
    raise typer.Exit(INVALID_EXIT_CODE)


def _load(given: str, archetypes: Path | None) -> Loaded:
    from headgate.pipelines.authoring.loader import FILE_BYTES_MAX, Loaded, load_folder, load_text
    from headgate.pipelines.definition.problems import Problem

    path = Path(given)
    if path.is_dir():
        folder = path / PIPELINES if (path / PIPELINES).is_dir() else path
        return _named(load_folder(folder, _known(folder, archetypes)), folder)
    content = read_content(given, "definition")
    if len(content) > FILE_BYTES_MAX:
        fact = f"it has {len(content)} bytes"
        return Loaded(problems=(Problem(source=given, fact=fact, allowed=f"at most {FILE_BYTES_MAX}; split it"),))
    try:
        text = content.decode()
    except UnicodeDecodeError as exc:
        return Loaded(problems=(Problem(source=given, fact=f"it is not text in UTF-8: {exc}"),))
    return load_text(text, given, _known(path.parent, archetypes))


def _named(loaded: Loaded, folder: Path) -> Loaded:
    """Return what was found in a folder by paths that lead there from here, as editors and terminals follow them."""
    from msgspec.structs import replace

    return replace(
        loaded,
        pipelines=tuple(replace(each, source=str(folder / each.source)) for each in loaded.pipelines),
        problems=tuple(replace(each, source=str(folder / each.source)) for each in loaded.problems),
    )


def _known(folder: Path, archetypes: Path | None) -> Known:
    from headgate.cli.pipelines.trigger_checks import check_trigger
    from headgate.pipelines.authoring.loader import Known

    return Known(archetypes=_archetypes(folder, archetypes), check_trigger=check_trigger)


def _archetypes(folder: Path, given: Path | None) -> dict[str, Archetype] | None:
    from headgate.pipelines.authoring.archetypes import load_archetypes

    if given is not None and not given.is_dir():
        raise UserError(f"--archetypes {given}: there is no such folder; name the one that has your archetypes")
    beside = folder.resolve().parent / ARCHETYPES
    found = given if given is not None else beside if beside.is_dir() else None
    return None if found is None else load_archetypes(found)


YAML: Final = "application/yaml"


def kept(api: Api) -> dict[str, dict[str, Any]]:
    """Return the pipelines that a server has, by id."""
    return {each["id"]: each for each in pages(api, "/pipelines", "pipelines")}


def put(api: Api, loaded: LoadedPipeline, reason: str | None) -> dict[str, Any]:
    """Define a pipeline by its text, and return it as it is kept. Raises as `Api.request` does."""
    answer: dict[str, Any] = send(api, "PUT", at("pipelines", loaded.pipeline.id), loaded.text, reason=reason)
    return answer


def send(api: Api, method: str, path: str, text: str, **query: str | None) -> Any:  # noqa: ANN401 - JSON
    """Send a text as it is, and return the answer.

    Raises `DefinitionError` for one that the server finds wrong, and else as `Api.request` does.
    """
    return api.send(method, path, text, YAML, query=query)
