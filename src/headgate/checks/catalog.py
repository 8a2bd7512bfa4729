"""Check catalog: the checks of the project folder, which can be loaded again while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from headgate.checks.definitions import LoadedChecks, LoadedFile, load_checks
from headgate.checks.model import Check, CheckFile
from headgate.checks.state import CheckKey
from headgate.pipelines.definition.problems import Problem, errors_of


class KnownCheck(Struct, frozen=True, kw_only=True):
    """A check with its file and source position."""

    file: CheckFile
    check: Check
    source: str
    # Whether it follows from a config alone, without a check file.
    is_promised: bool = False

    @property
    def key(self) -> CheckKey:
        return CheckKey(self.file.dataset, self.check.id)

    @property
    def digest(self) -> str:
        return self.file.digest(self.check)


class CheckCatalog:
    """The known checks. Thread-safe."""

    def __init__(self, derive: Callable[[CheckFile], Sequence[Check]] = lambda _file: ()) -> None:
        """`derive` returns the checks that follow from the config of the dataset of a file."""
        self._derive = derive
        self._lock = threading.Lock()
        self._files: dict[str, LoadedFile] = {}
        self._checks: dict[CheckKey, KnownCheck] = {}
        # Incremented by every load.
        self.generation = 0

    def load(self, folder: Path) -> Sequence[Problem]:
        """Replace the checks by those of a folder, and return the problems of the invalid ones.

        The checks of a file that has a problem stay as they were loaded before.
        """
        loaded = load_checks(folder) if folder.is_dir() else LoadedChecks()
        wrong = {problem.source for problem in errors_of(loaded.problems)}
        present = {each.file.dataset for each in loaded.files}
        kept = tuple(each for each in self.files() if each.source in wrong and each.file.dataset not in present)
        self.replace((*loaded.files, *kept))
        return loaded.problems

    def replace(self, files: Sequence[LoadedFile]) -> None:
        """Replace the checks."""
        checks = self._known(files)
        with self._lock:
            self._files = {each.file.dataset: each for each in files}
            self._checks = checks
            self.generation += 1

    def refresh(self) -> None:
        """Derive the checks of configs again, which may have changed."""
        checks = self._known(self.files())
        with self._lock:
            if checks != self._checks:
                self._checks = checks
                self.generation += 1

    def _known(self, files: Sequence[LoadedFile]) -> dict[CheckKey, KnownCheck]:
        return {
            CheckKey(each.file.dataset, check.id): KnownCheck(
                file=each.file, check=check, source=f"{each.source}:{each.line}"
            )
            for each in files
            for check in (*each.file.checks, *self._derive(each.file))
        }

    def files(self) -> list[LoadedFile]:
        """Return the check files by dataset."""
        with self._lock:
            return [self._files[name] for name in sorted(self._files)]

    def all(self) -> list[KnownCheck]:
        """Return the checks by dataset and id."""
        with self._lock:
            return [self._checks[key] for key in sorted(self._checks)]

    def after_runs_of(self, dataset: str) -> list[KnownCheck]:
        """Return the checks of a dataset, as its check file names it, that run after each completed run."""
        with self._lock:
            file = self._files.get(dataset)
            if file is None or not file.file.after_runs:
                return []
            return [each for key, each in sorted(self._checks.items()) if key.dataset == dataset]

    def find(self, key: CheckKey) -> KnownCheck | None:
        """Return a check, or None."""
        with self._lock:
            return self._checks.get(key)
