"""Pipeline definition files: reads, validates and uploads them. Uploads keep the text with its comments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.input_files import read_content
from headgate.cli.output import counted
from headgate.cli.session import Json, Session, echo_json, session_of
from headgate.errors import SettingsError, UserError
from headgate.exit_codes import ExitCode
from headgate.setting_sources import FILE_NAME, FILE_VARIABLE

if TYPE_CHECKING:
    from headgate.pipelines.authoring.archetypes import Archetype
    from headgate.pipelines.authoring.loader import Known, Loaded, LoadedPipeline
    from headgate.pipelines.definition.problems import Problem
    from headgate.pipelines.probes.definitions import LoadedProbes


PIPELINES: Final = "pipelines"
ARCHETYPES: Final = "archetypes"
NOTIFY_FILE: Final = "notify.toml"
SETTINGS_FILE: Final = "headgate.toml"
_SETTINGS_FILES: Final = (SETTINGS_FILE, NOTIFY_FILE)
PROBES: Final = "probes"
CHECKS: Final = "checks"
# Most datasets of one request to the gate.
_GATE_DATASETS_MAX: Final = 200
Paths = Annotated[
    list[str],
    typer.Argument(metavar="FILE|FOLDER…", help="Definitions in YAML or JSON; folders are read recursively."),
]
# Returns the pools of the settings for definitions of a folder.
DeclaredPools = Callable[[Path], Mapping[str, int]]
ArchetypeFolder = Annotated[
    Path | None,
    typer.Option(
        "--archetypes",
        metavar="FOLDER",
        help="Folder with custom archetypes. [default: 'archetypes' beside the definitions, if it exists]",
        show_default=False,
    ),
]


def validate(context: typer.Context, paths: Paths, archetypes: ArchetypeFolder = None, as_json: Json = False) -> None:
    """Validate pipeline definitions and list every problem by file, line and field. The exit code is 2 for problems.

    No server is needed. Of a project folder, the subfolders 'pipelines', 'probes' and 'checks' are read. Pools are
    those of the settings: headgate.toml in the current folder, or beside the definitions. Alert settings of a project
    folder are checked too: [notify] in headgate.toml, or notify.toml there or in the folder .headgate.
    """
    settings_files, definitions = _settings_files(paths)
    problems = [problem for file in settings_files for problem in _alert_problems(file)]
    if not definitions:
        _show_settings(settings_files, problems, as_json=as_json)
        return
    if problems:
        raise SettingsError("; ".join(problems))
    paths = definitions
    loaded = load(paths, archetypes, pools=lambda folder: _declared_pools(session_of(context), folder))
    errors, warnings = split(loaded)
    if as_json:
        ids = [each.pipeline.id for each in loaded.pipelines]
        echo_json({"valid": not errors, "pipelines": ids, "problems": errors, "warnings": warnings})
    else:
        show_problems(loaded)
        if not errors:
            typer.echo(f"{' '.join(paths)}: valid; {counted(len(loaded.pipelines), 'pipeline')}")
    if errors:
        _exit_invalid(paths, errors)


def _settings_files(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the files with alert settings among the paths and in their folders, and the other paths."""
    files = [Path(path) for path in paths if Path(path).name in _SETTINGS_FILES]
    others = [path for path in paths if Path(path).name not in _SETTINGS_FILES]
    for folder in (Path(path) for path in others if Path(path).is_dir()):
        candidates = [*(folder / name for name in _SETTINGS_FILES), folder / ".headgate" / NOTIFY_FILE]
        files += [file for file in candidates if file.is_file()]
    return files, others


def _alert_problems(file: Path) -> list[str]:
    """Return why the alert settings of a file are not valid, with the file and the field."""
    from headgate.bootstrap.alerts import read_notify_file
    from headgate.notify.configuration import parse_config
    from headgate.settings import Settings

    try:
        if file.name == NOTIFY_FILE:
            read_notify_file(file)
        else:
            table = Settings.load({}, file, {}).notify
            parse_config(table.value, table.source)
    except SettingsError as exc:
        return [exc.message]
    return []


def _show_settings(files: Sequence[Path], problems: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        echo_json({"valid": not problems, "pipelines": [], "problems": list(problems), "warnings": []})
    elif not problems:
        typer.echo(f"{' '.join(map(str, files))}: valid")
    if problems:
        raise SettingsError("; ".join(problems))


def load(paths: Sequence[str], archetypes: Path | None = None, *, pools: DeclaredPools | None = None) -> Loaded:
    """Return the definitions at paths and their problems.

    `pools` returns the declared pools for definitions of a folder; without it, names of pools are not checked.

    Raises `UserError` for a path that cannot be read, `InvalidPipelineError` for invalid archetypes.
    """
    from headgate.pipelines.authoring.loader import Loaded, together

    found = [_load(path, archetypes, pools) for path in paths if not (_is_probe_file(path) or _is_check_file(path))]
    found += [_probe_problems(path) for path in paths]
    found += [_check_problems(path) for path in paths]
    pipelines = tuple(each for loaded in found for each in loaded.pipelines)
    problems = tuple(each for loaded in found for each in loaded.problems)
    loaded = together(Loaded(pipelines=pipelines, problems=problems))
    if not any(Path(path).is_dir() for path in paths):
        # The upstreams of single files may be defined in other files.
        return loaded
    # A definition with errors is not loaded, so its dependants would be reported as well.
    warnings = () if split(loaded)[0] else unknown_upstream_warnings(loaded, ())
    return Loaded(pipelines=loaded.pipelines, problems=(*loaded.problems, *warnings))


def load_valid(paths: Sequence[str], archetypes: Path | None = None) -> Loaded:
    """Return valid definitions. Prints the problems of invalid ones and exits with 2."""
    loaded = load(paths, archetypes)
    errors, _ = split(loaded)
    if errors:
        show_problems(loaded)
        _exit_invalid(paths, errors)
    return loaded


def unknown_upstream_warnings(loaded: Loaded, known_ids: Iterable[str]) -> list[Problem]:
    """Return warnings, with file and line, for upstreams that are neither loaded nor in `known_ids`."""
    from msgspec.structs import replace

    from headgate.pipelines.authoring.loader import unknown_upstreams

    definitions = {each.pipeline.id: each for each in loaded.pipelines}
    found = unknown_upstreams([each.pipeline for each in loaded.pipelines], known_ids)
    return [replace(each, source=definitions[each.source].source, line=definitions[each.source].line) for each in found]


def unknown_dataset_warnings(api: Api, loaded: Loaded, stored: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Return warnings, with file and line, for datasets of rules that are not registered on the server.

    `stored` are the pipelines of the server, by id. A caller that may not check the gate gets none.
    """
    from msgspec.structs import replace

    from headgate.pipelines.authoring.dataset_checks import unknown_datasets

    def unregistered(datasets: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(datasets), _GATE_DATASETS_MAX):
            asked = list(datasets[start : start + _GATE_DATASETS_MAX])
            with contextlib.suppress(UserError):
                reasons = api.post("/gate", {"datasets": asked, "on_unknown": "unknown"})["reasons"]
                found |= {each["dataset_urn"] for each in reasons if each["code"] == "DATASET_NOT_FOUND"}
        return found

    def written() -> set[str]:
        return {name for each in stored.values() for name in each["definition"].get("writes", ())}

    places = {each.pipeline.id: each for each in loaded.pipelines}
    found = unknown_datasets([each.pipeline for each in loaded.pipelines], unregistered, written)
    return [replace(each, source=places[each.source].source, line=places[each.source].line) for each in found]


def split(loaded: Loaded) -> tuple[list[Problem], list[Problem]]:
    """Return the errors and the warnings."""
    errors = [each for each in loaded.problems if not each.is_warning]
    return errors, [each for each in loaded.problems if each.is_warning]


def show_problems(loaded: Loaded) -> None:
    """Print one problem per line to standard error."""
    for problem in loaded.problems:
        typer.echo(problem.text(), err=True)


def _exit_invalid(paths: Sequence[str], errors: Sequence[Problem]) -> None:
    typer.echo(f"error: {' '.join(paths)}: {counted(len(errors), 'problem')}\ncode: bad_definition", err=True)
    raise typer.Exit(ExitCode.INVALID)


def _load(name: str, archetypes: Path | None, pools: DeclaredPools | None) -> Loaded:
    loaded = _load_with(name, archetypes, None)
    if pools is None or not any(each.pipeline.pool for each in loaded.pipelines):
        return loaded
    path = Path(name)
    return _load_with(name, archetypes, pools(path if path.is_dir() else path.parent))


def _declared_pools(session: Session, folder: Path) -> Mapping[str, int]:
    """Return the pools of the settings: of the current folder, or of the one beside the definitions."""
    near = next((each for each in (folder / FILE_NAME, folder.parent / FILE_NAME) if each.is_file()), None)
    is_named = bool(session.environ.get(FILE_VARIABLE)) or Path(FILE_NAME).is_file()
    return session.settings(None if is_named else near).pipelines.pools


def _load_with(name: str, archetypes: Path | None, pools: Mapping[str, int] | None) -> Loaded:
    from headgate.pipelines.authoring.loader import FILE_BYTES_MAX, Loaded, load_folder, load_text
    from headgate.pipelines.definition.problems import Problem

    path = Path(name)
    if path.is_dir():
        folder = path / PIPELINES if (path / PIPELINES).is_dir() else path
        return _with_full_paths(load_folder(folder, _known(folder, archetypes, pools)), folder)
    content = read_content(name, "definition")
    if len(content) > FILE_BYTES_MAX:
        fact = f"{len(content)} bytes"
        return Loaded(problems=(Problem(source=name, fact=fact, allowed=f"at most {FILE_BYTES_MAX}; split it"),))
    try:
        text = content.decode()
    except UnicodeDecodeError as exc:
        return Loaded(problems=(Problem(source=name, fact=f"not UTF-8 text: {exc}"),))
    return load_text(text, name, _known(path.parent, archetypes, pools))


def _is_probe_file(name: str) -> bool:
    path = Path(name)
    return path.is_file() and PROBES in path.resolve().parent.parts


def _probe_problems(name: str) -> Loaded:
    """Return the problems of the probes in a file, or in the folder 'probes' of a project."""
    from headgate.pipelines.authoring.loader import Loaded
    from headgate.pipelines.probes.definitions import load_probe_file

    path = Path(name)
    if _is_probe_file(name):
        return Loaded(problems=load_probe_file(path, name).problems)
    if not path.is_dir():
        return Loaded()
    folder = path / PIPELINES if (path / PIPELINES).is_dir() else path
    loaded = _probes(folder)
    return Loaded() if loaded is None else Loaded(problems=_placed(loaded.problems, folder.parent))


def _is_check_file(name: str) -> bool:
    path = Path(name)
    return path.is_file() and path.resolve().parent.name == CHECKS


def _check_problems(name: str) -> Loaded:
    """Return the problems of the checks in a file, or in the folder 'checks' of a project."""
    from headgate.checks.definitions import load_check_file, load_checks
    from headgate.pipelines.authoring.loader import Loaded

    path = Path(name)
    if _is_check_file(name):
        return Loaded(problems=load_check_file(path, name).problems)
    if not path.is_dir():
        return Loaded()
    folder = path / PIPELINES if (path / PIPELINES).is_dir() else path
    beside = folder.resolve().parent / CHECKS
    return Loaded(problems=_placed(load_checks(beside).problems, folder.parent)) if beside.is_dir() else Loaded()


def _probes(folder: Path) -> LoadedProbes | None:
    """Return the probes beside a folder of pipelines; None if there is no such folder."""
    from headgate.pipelines.probes.definitions import load_probes

    beside = folder.resolve().parent / PROBES
    return load_probes(beside) if beside.is_dir() else None


def _placed(problems: Iterable[Problem], folder: Path) -> tuple[Problem, ...]:
    from msgspec.structs import replace

    return tuple(replace(each, source=str(folder / each.source)) for each in problems)


def _with_full_paths(loaded: Loaded, folder: Path) -> Loaded:
    """Return definitions and problems with paths relative to the working directory, which editors can open."""
    from msgspec.structs import replace

    return replace(
        loaded,
        pipelines=tuple(replace(each, source=str(folder / each.source)) for each in loaded.pipelines),
        problems=tuple(replace(each, source=str(folder / each.source)) for each in loaded.problems),
    )


def _known(folder: Path, archetypes: Path | None, pools: Mapping[str, int] | None) -> Known:
    from functools import partial

    from headgate.cli.pipelines.trigger_checks import check_trigger
    from headgate.pipelines.authoring.loader import Known
    from headgate.triggers.project_paths import missing_files

    probes = _probes(folder)
    return Known(
        archetypes=_archetypes(folder, archetypes),
        check_trigger=check_trigger,
        missing_files=partial(missing_files, project=_project(folder)),
        pools=pools,
        probes=None if probes is None else probes.ids,
    )


def _project(folder: Path) -> Path:
    """Return the project of a folder of definitions: where headgate.toml is, or the parent of 'pipelines'."""
    resolved = folder.resolve()
    for each in (resolved, *resolved.parents):
        if (each / SETTINGS_FILE).is_file():
            return each
    return resolved.parent if resolved.name == PIPELINES else resolved


def _archetypes(folder: Path, option: Path | None) -> dict[str, Archetype] | None:
    from headgate.pipelines.authoring.archetypes import load_archetypes

    if option is not None and not option.is_dir():
        raise UserError(f"--archetypes {option}: no such folder")
    beside = folder.resolve().parent / ARCHETYPES
    found = option if option is not None else beside if beside.is_dir() else None
    return None if found is None else load_archetypes(found)


YAML: Final = "application/yaml"


def stored_pipelines(api: Api) -> dict[str, dict[str, Any]]:
    """Return the pipelines of a server by id."""
    return {each["id"]: each for each in api.entries("/pipelines", "pipelines")}


def put(api: Api, loaded: LoadedPipeline, reason: str | None) -> dict[str, Any]:
    """Upload a definition and return the stored pipeline. Raises as `Api.request` does."""
    answer: dict[str, Any] = send(api, "PUT", at("pipelines", loaded.pipeline.id), loaded.text, reason=reason)
    return answer


def send(api: Api, method: str, path: str, text: str, **query: str | None) -> Any:  # noqa: ANN401 - JSON
    """Send a definition as text. Raises `DefinitionError` if it is invalid, else as `Api.request` does."""
    return api.send(method, path, text, YAML, query=query)
