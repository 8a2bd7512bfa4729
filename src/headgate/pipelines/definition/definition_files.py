"""Definition files: finds and reads the YAML and JSON files of a folder of the project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.pipelines.definition.problems import Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
FILE_BYTES_MAX: Final = 1_048_576


def definition_files(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder in order, each with its path below `name`. A missing folder has none."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
        yield path, (Path(name) / path.relative_to(folder)).as_posix()


def definition_text(path: Path, source: str) -> str | Problem:
    """Return the text of a file, or why it cannot be read."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return Problem(source=source, fact=f"it has more than {FILE_BYTES_MAX} bytes", allowed="split it")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        return Problem(source=source, fact=f"it cannot be read: {exc}")
