"""Source files: the modules of the user that a child process has loaded, and whether their files have changed.

Code of Python, of Headgate and of installed packages is not watched, except the file of a handler itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from headgate.fanout.handler_modules import is_library_file

# Files are checked at most this often: a project may have hundreds of modules.
CHECK_SECONDS: Final = 0.05

Mark = tuple[int, int] | None


def loaded_files() -> tuple[str, ...]:
    """Return the files of the loaded modules that are the user's own."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return tuple(sorted({file for file in files if isinstance(file, str) and not is_library_file(file)}))


def possible_files(module_name: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the files in which a module could be, whether they exist or not."""
    path = module_name.replace(".", "/")
    places = (Path(folder) / end for folder in folders for end in (f"{path}.py", f"{path}/__init__.py"))
    return tuple(map(str, places))


class SourceFiles:
    """Files that are watched for changes."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._marks: dict[str, Mark] = {}
        self._has_changed = False
        self._checked_at: float | None = None
        self.add(files)

    def add(self, files: Iterable[str]) -> None:
        """Watch more files, each as it is now."""
        for file in files:
            self._marks.setdefault(file, _mark(file))

    def have_changed(self, now: float) -> bool:
        """Whether a file has changed, appeared or gone since it was added. `now` is monotonic, in seconds."""
        if not self._has_changed and (self._checked_at is None or now - self._checked_at >= CHECK_SECONDS):
            self._checked_at = now
            self._has_changed = any(_mark(file) != mark for file, mark in self._marks.items())
        return self._has_changed


def _mark(file: str) -> Mark:
    try:
        found = os.stat(file)  # noqa: PTH116 - asked for many files whenever jobs are handed out
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)
