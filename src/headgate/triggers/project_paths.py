"""Project paths: relative paths in a trigger's config mean the project folder, wherever the server was started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headgate.triggers.config import FieldProblem

_COMMAND: Final = "command"
_FANOUT: Final = "fan-out"
_TEMPLATE: Final = "${"


def with_project_paths(type: str, config: dict[str, Any], project: Path) -> dict[str, Any]:
    """Return a config with the paths of its type made absolute. A command without a folder runs in the project."""
    if type == _COMMAND and isinstance(config.get("folder"), str | None):
        return {**config, "folder": str(project / (config.get("folder") or ""))}
    if type == _FANOUT and isinstance(config.get("lines"), str):
        return {**config, "lines": str(project / config["lines"])}
    return config


def missing_files(type: str, config: dict[str, Any], project: Path) -> list[FieldProblem]:
    """Return a problem for each file of a config that does not exist; paths with templates are not looked at.

    They are warnings: the file may exist on the server alone.
    """
    absolute = with_project_paths(type, config, project)
    if type == _FANOUT and _is_plain(config.get("lines")):
        path = Path(absolute["lines"])
        return [] if path.is_file() else [FieldProblem(path=("lines",), fact=f"there is no file {path}")]
    return list(_missing_of_command(absolute, config)) if type == _COMMAND else []


def _missing_of_command(absolute: dict[str, Any], config: dict[str, Any]) -> Iterator[FieldProblem]:
    folder = Path(absolute["folder"])
    if _TEMPLATE in str(folder):
        return
    if not folder.is_dir():
        field = ("folder",) if config.get("folder") else ()
        yield FieldProblem(path=field, fact=f"there is no folder {folder}")
        return
    command = config["command"]
    program = (shlex.split(command) if isinstance(command, str) else command)[0]
    # Without a slash, PATH of the server decides.
    if "/" not in program or not _is_plain(program):
        return
    path = folder / program
    if not path.is_file():
        yield FieldProblem(path=("command",), fact=f"there is no program {path}")
    elif not os.access(path, os.X_OK):
        yield FieldProblem(path=("command",), fact=f"{path} is not executable", allowed=f"run: chmod +x {path}")


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and bool(value) and _TEMPLATE not in value
