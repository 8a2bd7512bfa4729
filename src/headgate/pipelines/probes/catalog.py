"""Probe catalog: the probes of the project folder, which can be loaded again while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from headgate.errors import NotFoundError
from headgate.pipelines.definition.problems import Problem, errors_of, nearest
from headgate.pipelines.probes.definitions import LoadedProbe, LoadedProbes, load_probes


class ProbeCatalog:
    """The known probes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: dict[str, LoadedProbe] = {}
        # Incremented by every load.
        self.generation = 0

    def load(self, folder: Path) -> Sequence[Problem]:
        """Replace the probes by those of a folder, and return the problems of the invalid ones.

        A probe whose file has a problem stays as it was loaded before.
        """
        loaded = load_probes(folder) if folder.is_dir() else LoadedProbes()
        wrong = {problem.source for problem in errors_of(loaded.problems)}
        kept = tuple(each for each in self.all() if each.source in wrong and each.probe.id not in loaded.ids)
        self.replace(LoadedProbes(probes=(*loaded.probes, *kept)))
        return loaded.problems

    def replace(self, loaded: LoadedProbes) -> None:
        """Replace the probes."""
        with self._lock:
            self._probes = {each.probe.id: each for each in loaded.probes}
            self.generation += 1

    def all(self) -> list[LoadedProbe]:
        """Return the probes by id."""
        with self._lock:
            return [self._probes[name] for name in sorted(self._probes)]

    def find(self, probe_id: str) -> LoadedProbe | None:
        """Return a probe, or None."""
        with self._lock:
            return self._probes.get(probe_id)

    def get(self, probe_id: str) -> LoadedProbe:
        """Return a probe. Raises `NotFoundError` with the nearest name."""
        found = self.find(probe_id)
        if found is None:
            with self._lock:
                hint = nearest(probe_id, self._probes)
            meant = f"; did you mean {hint}?" if hint else "; define it in the folder probes of the project"
            raise NotFoundError(f"probe {probe_id[:80]!r}: there is none{meant}")
        return found
