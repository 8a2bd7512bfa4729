"""Last-known datasets: the configs this process or its predecessor last read, for when store and cache are down."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import Tier

ENTRIES_MAX: Final = 20_000
SAVED_EVERY_SECONDS: Final = 60.0


class LastKnownDataset(Struct, frozen=True, array_like=True):
    """A dataset, and when it was last read from the store, in epoch seconds."""

    dataset: Dataset
    at_seconds: float


class _Saved(Struct, frozen=True):
    known: dict[str, LastKnownDataset]
    tier_1: list[str]


class LastKnown:
    """Datasets by requested URN. Safe to use from many threads.

    With a path, they survive the process in a file that is written at most once a minute. Losing it is harmless. URNs
    that were ever of TIER_1 are kept for good.
    """

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._clock = clock
        self._path = path
        self._lock = threading.Lock()
        self._known: OrderedDict[str, LastKnownDataset] = OrderedDict()
        self._tier_1: set[str] = set()
        self._saved_at = clock.monotonic()
        self._is_dirty = False
        self._load()

    def learn(self, name: str, dataset: Dataset) -> None:
        """Save a dataset that was just read, under the requested URN and its own."""
        held = self._known.get(name)
        if held is None or held.dataset is not dataset:
            for each in {name, dataset.dataset_urn}:
                self._put(each, dataset)

    def forget(self, name: str) -> None:
        """Drop a dataset that was just found to be missing."""
        if name in self._known:
            with self._lock:
                self._is_dirty |= self._known.pop(name, None) is not None

    def recall(self, name: str) -> LastKnownDataset | None:
        """Return the last-known dataset of a URN, or None."""
        return self._known.get(name)

    def was_tier_1(self, name: str) -> bool:
        """Whether the dataset of this URN was ever of TIER_1."""
        return name in self._tier_1

    def save(self) -> None:
        """Write the file, if there is one. A disk error does not fail a read."""
        if self._path is None:
            return
        with self._lock:
            saved = _Saved(dict(self._known), sorted(self._tier_1))
            self._saved_at = self._clock.monotonic()
            self._is_dirty = False
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.msgpack.encode(saved))
            fresh.chmod(0o600)
            fresh.replace(self._path)
        except OSError:
            return

    def _put(self, name: str, dataset: Dataset) -> None:
        with self._lock:
            held = self._known.get(name)
            # A confirmation of the same version is not worth a write; the age on disk stays older.
            self._is_dirty |= held is None or held.dataset.config_version != dataset.config_version
            self._known[name] = LastKnownDataset(dataset, self._clock.seconds())
            self._known.move_to_end(name)
            if len(self._known) > ENTRIES_MAX:
                self._known.popitem(last=False)
            if dataset.tier is Tier.TIER_1:
                self._tier_1.add(name)
            is_due = self._is_dirty and self._clock.monotonic() - self._saved_at >= SAVED_EVERY_SECONDS
        if is_due:
            self.save()

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            saved = typed_decode.from_msgpack(self._path.read_bytes(), _Saved)
        except (OSError, msgspec.DecodeError):
            # No file yet, or half of one after a crash: start empty.
            return
        self._known.update(saved.known)
        self._tier_1.update(saved.tier_1)
