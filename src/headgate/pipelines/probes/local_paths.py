"""Local paths of probes: resolved, and below the folders that probes may read."""

from __future__ import annotations

from pathlib import Path

from headgate.errors import DefinitionError
from headgate.file_roots import FileRoots


def allowed_path(given: str, files: FileRoots) -> Path:
    """Return a resolved path, so that no link leads out of the allowed folders. Raises `DefinitionError`.

    A relative path is one of the project, wherever the process was started.
    """
    base = files.roots[0] if files.roots else ""
    try:
        path = Path(base, given).resolve()
    except (ValueError, OSError, RuntimeError) as exc:
        raise DefinitionError(f"path {given[:80]!r} cannot be resolved: {exc}") from exc
    check_allowed(path, given, files)
    return path


def check_allowed(path: Path, given: str, files: FileRoots) -> None:
    """Raise `DefinitionError` unless a resolved path is below an allowed folder."""
    if not files.contains(str(path)):
        raise DefinitionError(
            f"path {given[:200]} is outside of the folders that probes may read; add its folder to files.roots"
        )
