"""Server probes: liveness, readiness, summary and a deep check that reads and writes the store."""

from __future__ import annotations

import enum
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.durable.worker.status import WorkerStatus
from headgate.errors import CorruptionError, HeadgateError, NotReadyError, StoreMovedError, StoreUnavailableError
from headgate.pipelines.watchdog.heartbeats import Heartbeats, HeartbeatSource
from headgate.serve.sweeper import Sweeper
from headgate.store.catalogue.tables import HEALTH_CHECK
from headgate.store.faults import StoreFault, StoreFaults
from headgate.store.port import Store

WATCHDOG: Final = "watchdog"
DISK_FREE_BYTES_MIN: Final = 256 * 1024 * 1024


class Phase(enum.StrEnum):
    """Lifecycle phase of the server."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Status(enum.StrEnum):
    """Result of a check. A degraded server still serves; a failed one does not."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


class Check(msgspec.Struct, frozen=True):
    """One check and its result, with a remedy unless it is OK."""

    name: str
    status: Status
    fact: str
    remedy: str = ""


class Report(msgspec.Struct, frozen=True):
    """The checks and their worst status."""

    status: Status
    version: str
    checks: list[Check]


class ServerProbes:
    """Reports on phase, sweepers, worker and store. Only `probe` and `observe` block."""

    def __init__(
        self,
        *,
        version: str,
        store: Store,
        sweepers: Sequence[Sweeper],
        clock: Clock,
        disk: Path | None,
        worker_status: Callable[[], WorkerStatus | None] = lambda: None,
        faults: StoreFaults | None = None,
        heartbeats: Heartbeats | None = None,
        processes: Callable[[], tuple[int, int]] = lambda: (1, 1),
    ) -> None:
        """Check the free space of `disk`, unless None. `worker_status` returns that of the local worker, if any.

        `faults` are the conditions that store calls have recorded. `heartbeats` has that of the watchdog; None where
        no watchdog is to run. `processes` returns how many serving processes are ready, and how many there are.
        """
        self.phase = Phase.STARTING
        self._version = version
        self._store = store
        self._sweepers = sweepers
        self._clock = clock
        self._disk = disk
        self._worker_status = worker_status
        self._faults = StoreFaults() if faults is None else faults
        self._heartbeats = heartbeats
        self._processes = processes

    def check_ready(self) -> None:
        """Raise `NotReadyError` unless the server serves."""
        if self.phase is not Phase.SERVING:
            raise NotReadyError(f"the server is {self.phase}; the request was not started, retry it")

    def alive(self) -> Report:
        """Liveness: an empty report."""
        return self._report([])

    def ready(self) -> Report:
        """Readiness: OK only while serving, in all serving processes."""
        return self._report([self._check_phase(), *self._check_processes(Status.FAILED)])

    def _check_phase(self) -> Check:
        is_serving = self.phase is Phase.SERVING
        status, remedy = (Status.OK, "") if is_serving else (Status.FAILED, "wait until it serves, then retry")
        return Check("phase", status, f"the server is {self.phase}", remedy)

    def _check_processes(self, otherwise: Status) -> list[Check]:
        """Return the check of the serving processes, if there are several; `otherwise` if not all are ready."""
        ready, count = self._processes()
        if count == 1:
            return []
        status, remedy = (Status.OK, "") if ready == count else (otherwise, "wait: it is started again; see the log")
        return [Check("serving processes", status, f"{ready} of {count} are ready", remedy)]

    def summary(self) -> Report:
        """Phase, sweepers, worker and the conditions that calls of the store have met, without I/O."""
        # The others serve: only a load balancer need know that one is missing.
        phases = [self._check_phase(), *self._check_processes(Status.DEGRADED)]
        status = self._worker_status()
        worker = [] if status is None else [_check_worker(status)]
        store = map(_check_fault, self._faults.current())
        return self._report([*phases, *map(_check_sweeper, self._sweepers), *worker, *store])

    def probe(self) -> Report:
        """Deep check: also read, write and read back from the store. Blocks."""
        checks = [
            # A file that was moved can still be read.
            self._try("store read", self._store.check_health, StoreMovedError),
            self._try("store write", self.write_and_read_back, StoreUnavailableError),
        ]
        return self._report([*self.summary().checks, *checks, *self._surroundings()])

    def observe(self) -> Report:
        """Everything that is known without a write. Reads one row of the store. Blocks."""
        return self._report([*self.summary().checks, *self._surroundings()])

    def _surroundings(self) -> list[Check]:
        disk = [] if self._disk is None else [_check_disk(self._disk)]
        watchdog = [] if self._heartbeats is None else [self._check_watchdog(self._heartbeats)]
        return [*disk, *watchdog]

    def _check_watchdog(self, heartbeats: Heartbeats) -> Check:
        # At most degraded: the server serves without it, and alerts that it is silent.
        try:
            known = heartbeats.find(HeartbeatSource.WATCHDOG)
        except HeadgateError as exc:
            return Check(WATCHDOG, Status.DEGRADED, f"{exc.code}: {exc.message}", _remedy(exc.message))
        if known is None:
            return Check(WATCHDOG, Status.OK, "no heartbeat yet; it starts once a pipeline is defined")
        seconds = max(0.0, self._clock.seconds() - known.at_ms / 1000)
        fact = f"last heartbeat {seconds:.0f} s ago"
        if known.silent_since_ms is not None:
            remedy = "read the log of the watchdog, or run 'headgate watchdog' beside the server"
            return Check(WATCHDOG, Status.DEGRADED, f"silent: {fact}; the server restarts it, see the log", remedy)
        if known.degraded:
            failed = f"{fact}; failed checks: {', '.join(known.degraded)}"
            return Check(WATCHDOG, Status.DEGRADED, failed, "read the log of the watchdog for the error of each check")
        return Check(WATCHDOG, Status.OK, fact)

    def _report(self, checks: list[Check]) -> Report:
        seen = {check.status for check in checks}
        worst = Status.FAILED if Status.FAILED in seen else Status.DEGRADED if Status.DEGRADED in seen else Status.OK
        return Report(worst, self._version, checks)

    def _try(self, name: str, action: Callable[[], None], degrading: type[HeadgateError]) -> Check:
        """Return the result of a check. An error of the class `degrading` leaves a server that still serves reads."""
        started_at = self._clock.monotonic()
        try:
            action()
        except HeadgateError as exc:
            status = Status.DEGRADED if isinstance(exc, degrading) else Status.FAILED
            return Check(name, status, f"{exc.code}: {exc.message}", _remedy(exc.message))
        milliseconds = (self._clock.monotonic() - started_at) * 1000
        return Check(name, Status.OK, f"took {milliseconds:.1f} ms")

    def write_and_read_back(self) -> None:
        """Write the row of the health check and read it. Raises the errors of the store. Blocks."""
        key = HEALTH_CHECK.entities[0].key()
        before = self._store.get(HEALTH_CHECK, key, consistent=True) or {}
        nonce = secrets.token_hex(8)
        at = self._clock.now().isoformat()
        self._store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "nonce": nonce, "checked_at": at})
        after = self._store.get(HEALTH_CHECK, key, consistent=True) or {}
        # Another server may write the row in between; then it holds neither nonce.
        if after.get("nonce") in (None, before.get("nonce")):
            raise CorruptionError("health check: a written row was missing on read-back; check the disk")


def _check_sweeper(sweeper: Sweeper) -> Check:
    name = f"sweep of {sweeper.what}"
    if sweeper.last_error is None and not sweeper.has_run:
        return Check(name, Status.OK, "not run yet")
    if sweeper.last_error is None:
        return Check(name, Status.OK, "last sweep succeeded" if sweeper.failures == 0 else "recovered")
    return Check(
        name,
        Status.DEGRADED,
        f"last sweep failed, {sweeper.failures} failures in total: {sweeper.last_error}",
        "remove the cause that the error names; the sweep is repeated by itself",
    )


def _check_worker(status: WorkerStatus) -> Check:
    # At most degraded: requests are still answered, and a restart does not fix a spinning execution.
    faults = status.faults()
    fact = "; ".join([*faults, str(status)])
    if not faults:
        return Check("worker", Status.OK, fact)
    return Check("worker", Status.DEGRADED, fact, "fix the code that it names and restart the worker; see the log")


def _check_fault(fault: StoreFault) -> Check:
    # At most degraded: what can be read is still served, and a restart does not remove the cause.
    return Check(fault.name, Status.DEGRADED, f"{fault.fact}; {fault.failures} calls failed", _remedy(fault.fact))


def _remedy(message: str) -> str:
    """Return the remedy of an error message, which has the form "fact; remedy"."""
    return message.partition("; ")[2]


def _check_disk(folder: Path) -> Check:
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as exc:
        # The checks of the store say whether it can be used.
        return Check("disk", Status.DEGRADED, f"{folder} cannot be read: {exc.strerror}", "grant the server access")
    fact = f"{free_bytes // 2**20} MiB free at {folder}"
    if free_bytes >= DISK_FREE_BYTES_MIN:
        return Check("disk", Status.OK, fact)
    least = DISK_FREE_BYTES_MIN // 2**20
    return Check("disk", Status.DEGRADED, fact, f"free disk space: at least {least} MiB are recommended")
