"""Fan-out threads: run maintenance, purge, resumption of splits and local workers in the background of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from headgate.errors import OutcomeUnknownError, TransientError
from headgate.fanout.core.maintenance import MAINTENANCE_SECONDS
from headgate.fanout.core.split_resumption import SplitResumption
from headgate.fanout.insight.fanout_watch import FanoutWatch
from headgate.fanout.local.worker import Options
from headgate.fanout.manifest_folder import ManifestFolder
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE
from headgate.fanout.repair.retention import Purge
from headgate.fanout.service import FanoutService
from headgate.outage_log import OutageLog

PURGE_SECONDS: Final = 60.0
RESUME_SECONDS: Final = 2.0
WATCH_SECONDS: Final = 15.0
MANIFEST_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 5.0
JOIN_SECONDS: Final = 2.0
_log = structlog.get_logger(__name__)


class Background:
    """Runs maintenance and workers until it is stopped. Without `processes` it runs no worker."""

    def __init__(
        self,
        service: FanoutService,
        *,
        processes: int,
        trusted: Sequence[str] = (),
        on_fatal: Callable[[BaseException], None] | None = None,
        manifests: Path | None = None,
    ) -> None:
        """`manifests` is a folder in which manifests are looked for."""
        self._service = service
        self._on_fatal = on_fatal
        self._stopping = threading.Event()
        lanes = (MAIN_LANE, SLOW_LANE) if processes else ()
        self._workers = [
            service.worker(Options(processes=_share(processes, lane), lane=lane, trusted=tuple(trusted)))
            for lane in lanes
        ]
        self._threads = [self._thread(worker.run, "headgate-chunks") for worker in self._workers]
        if not self._workers:
            self._threads.append(self._thread(self._maintain, "headgate-fanout-maintenance"))
        self._threads.append(self._thread(self._purge, "headgate-purge"))
        self._threads.append(self._thread(self._resume_splits, "headgate-splits"))
        self._threads.append(self._thread(self._watch, "headgate-fanout-watch"))
        if manifests is not None:
            folder = ManifestFolder(manifests, service.splitter, service.access.files)
            self._threads.append(self._thread(partial(self._take_manifests, folder), "headgate-manifests"))

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Give running chunks the grace period, release the rest, and return."""
        self._stopping.set()
        for worker in self._workers:
            worker.stop(grace_seconds)
        for thread in self._threads:
            thread.join(grace_seconds + JOIN_SECONDS)

    @property
    def unusable(self) -> dict[str, str]:
        """Handlers that cannot be loaded in this process, with the error."""
        return {handler: why for worker in self._workers for handler, why in worker.unusable.items()}

    def _maintain(self) -> None:
        maintenance = self._service.new_maintenance()
        self._repeat(maintenance.run_once, MAINTENANCE_SECONDS, "fan-out maintenance failed")

    def _purge(self) -> None:
        purge = Purge(self._service.store, self._service.clock)
        self._repeat(purge.purge, PURGE_SECONDS, "purge of fan-outs failed")

    def _resume_splits(self) -> None:
        service = self._service
        resumption = SplitResumption(service.queries, service.splitter, service.access.files)
        self._repeat(resumption.run_once, RESUME_SECONDS, "resumption of splits failed")

    def _take_manifests(self, folder: ManifestFolder) -> None:
        self._repeat(folder.run_once, MANIFEST_SECONDS, "reading of manifests failed")

    def _watch(self) -> None:
        service = self._service
        watch = FanoutWatch(service.store, service.queries, service.chunk_workers, service.observer)
        self._repeat(watch.run_once, WATCH_SECONDS, "watch of fan-outs failed")

    def _repeat(self, work: Callable[[], object], interval_seconds: float, failed: str) -> None:
        outage = OutageLog(_log, failed, pause_seconds=0.0)
        while not self._stopping.wait(interval_seconds):
            try:
                work()
                outage.succeeded()
            except (TransientError, OutcomeUnknownError) as exc:
                outage.failed(exc)

    def _thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except Exception as exc:
                _log.exception("fan-out thread failed")
                if self._on_fatal is None:
                    raise
                self._on_fatal(exc)

        return threading.Thread(target=guarded, name=name, daemon=True)


def _share(processes: int, lane: str) -> int:
    """The slow lane has one process of its own, so that slow chunks never delay the others."""
    return processes if lane == MAIN_LANE else 1
