"""Server monitor: what the operations page reads beyond the API: probes, metrics history and the last backup."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from headgate.bootstrap.backup_record import BackupRecord, last_backup
from headgate.clock import Clock
from headgate.serve.metrics_history import MetricsHistory
from headgate.serve.probes import Report, ServerProbes, Status

# The deep check writes to the store: open pages share one within this time.
REPORT_SECONDS: Final = 5.0


class ServerMonitor:
    """The state of this server process. Thread-safe."""

    def __init__(self, probes: ServerProbes, history: MetricsHistory, clock: Clock, *, home: Path | None) -> None:
        """Without a `home` on this machine, backups are not known."""
        self.history = history
        self._probes = probes
        self._clock = clock
        self._home = home
        self._lock = threading.Lock()
        self._report: tuple[float, Report] | None = None

    def report(self) -> Report:
        """Return the deep check of the last seconds. Blocks."""
        with self._lock:
            now = self._clock.monotonic()
            if self._report is None or now - self._report[0] >= REPORT_SECONDS:
                self._report = now, self._probes.probe()
            return self._report[1]

    def failing_checks(self) -> int:
        """Return how many checks fail, of those that write nothing. Blocks."""
        return sum(each.status is not Status.OK for each in self._probes.observe().checks)

    @property
    def knows_backups(self) -> bool:
        """Whether backups of the home are recorded on this machine."""
        return self._home is not None

    def last_backup(self) -> BackupRecord | None:
        """Return the last backup of the home, if one is known."""
        return None if self._home is None else last_backup(self._home)
