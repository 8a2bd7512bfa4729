"""Health: what the server says about itself, from its phase alone or by trying the store."""

from __future__ import annotations

import enum
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.durable.worker.status import Pulse
from headgate.errors import CorruptionError, HeadgateError
from headgate.serve.sweeper import Sweeper
from headgate.store.catalogue.tables import HEALTH_CHECK
from headgate.store.port import Store

DISK_FREE_BYTES_MIN: Final = 256 * 1024 * 1024


class Phase(enum.StrEnum):
    """Where the server is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Status(enum.StrEnum):
    """How well something is. Degraded still serves; failed does not."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, and what was seen."""

    name: str
    status: Status
    fact: str


class Report(msgspec.Struct, frozen=True):
    """The worst status of all checks, and the checks."""

    status: Status
    version: str
    checks: list[Check]


class Health:
    """Knows the phase, watches the sweepers and the worker, and can try the store. Blocks only in `probe`."""

    def __init__(
        self,
        *,
        version: str,
        store: Store,
        sweepers: Sequence[Sweeper],
        clock: Clock,
        disk: Path | None,
        pulse: Callable[[], Pulse | None] = lambda: None,
    ) -> None:
        """Take the folder whose free space matters as `disk`, or None if the state is elsewhere.

        `pulse` gives that of the worker in this process, or None if there is none.
        """
        self.phase = Phase.STARTING
        self._version = version
        self._store = store
        self._sweepers = sweepers
        self._clock = clock
        self._disk = disk
        self._pulse = pulse

    def alive(self) -> Report:
        """Return a report that says only that someone was there to make it."""
        return self._report([])

    def ready(self) -> Report:
        """Return whether the server takes requests: not before it has started, and not once it drains."""
        status = Status.OK if self.phase is Phase.SERVING else Status.FAILED
        return self._report([Check("phase", status, f"the server is {self.phase}")])

    def summary(self) -> Report:
        """Return what is known without asking anyone."""
        pulse = self._pulse()
        worker = [] if pulse is None else [_check_worker(pulse)]
        return self._report([*self.ready().checks, *map(_check_sweeper, self._sweepers), *worker])

    def probe(self) -> Report:
        """Return what reading from, writing to and reading back from the store shows. Blocks."""
        checks = [
            self._try("store read", self._store.check_health),
            self._try("store write", self._write_and_read_back),
        ]
        if self._disk is not None:
            checks.append(_check_disk(self._disk))
        return self._report([*self.summary().checks, *checks])

    def _report(self, checks: list[Check]) -> Report:
        seen = {check.status for check in checks}
        worst = Status.FAILED if Status.FAILED in seen else Status.DEGRADED if Status.DEGRADED in seen else Status.OK
        return Report(worst, self._version, checks)

    def _try(self, name: str, action: Callable[[], None]) -> Check:
        started_at = self._clock.monotonic()
        try:
            action()
        except HeadgateError as exc:
            return Check(name, Status.FAILED, f"{exc.code}: {exc.message}")
        milliseconds = (self._clock.monotonic() - started_at) * 1000
        return Check(name, Status.OK, f"took {milliseconds:.1f} ms")

    def _write_and_read_back(self) -> None:
        key = HEALTH_CHECK.entities[0].key()
        before = self._store.get(HEALTH_CHECK, key, consistent=True) or {}
        nonce = secrets.token_hex(8)
        at = self._clock.now().isoformat()
        self._store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "nonce": nonce, "checked_at": at})
        after = self._store.get(HEALTH_CHECK, key, consistent=True) or {}
        # Another server may have written the row in between; then it holds neither our nonce nor the one before.
        if after.get("nonce") in (None, before.get("nonce")):
            raise CorruptionError(
                "health check: a row that was written was not there on reading it back; check the disk"
            )


def _check_sweeper(sweeper: Sweeper) -> Check:
    name = f"sweep of {sweeper.what}"
    if sweeper.last_error is None and not sweeper.has_run:
        return Check(name, Status.OK, "has not run yet")
    if sweeper.last_error is None:
        return Check(name, Status.OK, "the last one worked" if sweeper.failures == 0 else "works again")
    return Check(name, Status.DEGRADED, f"the last one failed, {sweeper.failures} in all: {sweeper.last_error}")


def _check_worker(pulse: Pulse) -> Check:
    # Never worse than degraded: requests are answered all the same, and a restart helps no execution that spins.
    faults = pulse.faults()
    return Check("worker", Status.DEGRADED if faults else Status.OK, "; ".join([*faults, str(pulse)]))


def _check_disk(folder: Path) -> Check:
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as exc:
        return Check("disk", Status.FAILED, f"{folder} cannot be looked at: {exc.strerror}")
    status = Status.OK if free_bytes >= DISK_FREE_BYTES_MIN else Status.DEGRADED
    return Check("disk", status, f"{free_bytes // 2**20} MiB free at {folder}")
