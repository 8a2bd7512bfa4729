"""Promised checks: what the configs of datasets without a check file promise, as checks.

The configs are followed over the registry's change feed, so that a refresh reads only what changed. A report that
another tool makes for the same signal stands; a promise without any data is not judged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from headgate.checks.catalog import KnownCheck
from headgate.checks.config_checks import derived_checks
from headgate.checks.model import CheckFile
from headgate.checks.state import CheckKey
from headgate.durable.model.duration import Seconds
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.registry.service import Chunk

SOURCE: Final = "config"
# Windows of VOLUME are five minutes by default; evidence and hourly volumes are judged once an hour.
_EVENTS_EVERY: Final = Seconds(300)
_EVERY: Final = Seconds(3600)


class Changed(NamedTuple):
    """The checks that a refresh added or changed, and those that it removed."""

    present: list[KnownCheck]
    removed: list[CheckKey]


class PromisedChecks:
    """The checks by dataset. `refresh` belongs to one thread; the rest is thread-safe."""

    def __init__(self, export: Callable[[str | None], Chunk], with_file: Callable[[], Collection[str]]) -> None:
        """`export` is that of the registry; `with_file` returns the datasets that have a check file."""
        self._export = export
        self._with_file = with_file
        self._lock = threading.Lock()
        self._checkpoint: str | None = None
        # Also of datasets that have a check file, which may be removed.
        self._promised: dict[str, tuple[KnownCheck, ...]] = {}
        self._present: dict[str, tuple[KnownCheck, ...]] = {}

    def refresh(self) -> Changed:
        """Follow the registry to its end, and return what changed. Raises `TransientError`."""
        has_more = True
        while has_more:
            chunk = self._export(self._checkpoint)
            for dataset in chunk.datasets:
                checks = () if dataset.status is DatasetStatus.DELETED else tuple(_checks(dataset))
                self._promised.pop(dataset.dataset_urn, None)
                if checks:
                    self._promised[dataset.dataset_urn] = checks
            self._checkpoint, has_more = chunk.checkpoint, chunk.has_more
        covered = self._with_file()
        present = {urn: checks for urn, checks in self._promised.items() if urn not in covered}
        before = self._present
        with self._lock:
            self._present = present
        changed = [each for urn, checks in present.items() if before.get(urn) != checks for each in checks]
        kept = {each.key for checks in present.values() for each in checks} if before != present else set()
        removed = [
            each.key
            for urn, checks in before.items()
            # Results of a dataset that has a check file belong to that.
            if urn not in covered and present.get(urn) != checks
            for each in checks
            if each.key not in kept
        ]
        return Changed(changed, removed)

    def all(self) -> list[KnownCheck]:
        """Return the checks by dataset and id."""
        with self._lock:
            return sorted((each for checks in self._present.values() for each in checks), key=lambda each: each.key)

    def of(self, dataset_urn: str) -> tuple[KnownCheck, ...]:
        """Return the checks of a dataset."""
        with self._lock:
            return self._present.get(dataset_urn, ())

    def find(self, key: CheckKey) -> KnownCheck | None:
        """Return a check, or None."""
        return next((each for each in self.of(key.dataset) if each.key == key), None)


def _checks(dataset: Dataset) -> Iterator[KnownCheck]:
    urn = dataset.dataset_urn
    for check in derived_checks(CheckFile(dataset=urn), dataset):
        every = _EVENTS_EVERY if check.kind == "events" else _EVERY
        file = CheckFile(dataset=urn, every=every, after_runs=False)
        yield KnownCheck(file=file, check=check, source=SOURCE, is_promised=True)
