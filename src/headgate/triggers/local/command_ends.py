"""Command ends: reports the ends of commands to the server, as they happen and after a restart.

A supervisor writes the key of its command to a FIFO. A report that is lost, because no server was running or the
supervisor was killed, is found by a scan of the open commands.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.errors import HeadgateError
from headgate.triggers.local.command_fate import Fate, decide_fate
from headgate.triggers.local.command_records import FIFO, CommandRecord, open_keys

SCAN_SECONDS: Final = 5.0
# How long a run may take to note an end before it is reported again.
_AGAIN_SECONDS: Final = 60.0
_READ_BYTES: Final = 65_536
_log = structlog.get_logger(__name__)


class CommandEnds:
    """Calls `on_end` with the key of each command that has ended, in a thread of its own. It may be called twice."""

    def __init__(self, folder: Path, clock: Clock, on_end: Callable[[str], None]) -> None:
        self._folder = folder
        self._clock = clock
        self._on_end = on_end
        # When each end was reported.
        self._reported: dict[str, float] = {}
        self._wakeup = os.pipe()
        self._thread = threading.Thread(target=self._run, name="headgate-command-ends", daemon=True)

    def start(self) -> None:
        """Start the thread. The first scan finds the commands that ended while no server was running."""
        self._thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop the thread and wait for it."""
        with suppress(OSError):
            os.write(self._wakeup[1], b"x")
        if self._thread.is_alive():
            self._thread.join(grace_seconds)

    def _run(self) -> None:
        fifo: int | None = None
        scan_at = 0.0
        try:
            while True:
                if fifo is None:
                    fifo = self._open()
                now = self._clock.monotonic()
                if now >= scan_at:
                    scan_at = now + SCAN_SECONDS
                    self._isolated(self.scan)
                sources = [self._wakeup[0], *([] if fifo is None else [fifo])]
                ready = select.select(sources, [], [], max(0.0, scan_at - self._clock.monotonic()))[0]
                if self._wakeup[0] in ready:
                    return
                if fifo in ready and fifo is not None:
                    for key in os.read(fifo, _READ_BYTES).decode(errors="replace").split():
                        self._isolated(lambda key=key: self._report(key))  # type: ignore[misc]
        finally:
            if fifo is not None:
                os.close(fifo)
            for end in self._wakeup:
                os.close(end)

    def scan(self) -> None:
        """Report every open command that has ended, however it ended."""
        now = self._clock.monotonic()
        keys = open_keys(self._folder)
        # An end that the run has noted is open no more.
        self._reported = {key: at for key, at in self._reported.items() if key in keys and now - at < _AGAIN_SECONDS}
        for key in keys:
            if key not in self._reported and self._has_ended(CommandRecord(self._folder, key)):
                self._report(key)

    def _has_ended(self, record: CommandRecord) -> bool:
        if not record.exists():
            return True
        begun = record.begun()
        sighting = record.sighting(begun)
        fate = decide_fate(begun, record.ended(), sighting)
        if fate is Fate.ORPHANED and begun is not None:
            # The poll of the run ends a command past its time.
            return self._clock.seconds() * 1000 >= begun.ends_by_ms
        return fate in (Fate.ENDED, Fate.LOST, Fate.REBOOTED)

    def _report(self, key: str) -> None:
        self._reported[key] = self._clock.monotonic()
        self._on_end(key)

    def _isolated(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (HeadgateError, OSError) as exc:
            # The store or the disk is unavailable: the next scan reports it again.
            self._reported.clear()
            _log.warning("end of a command not reported", action="command.end", error=str(exc))

    def _open(self) -> int | None:
        """Open the FIFO for reading, and for writing, so that it stays open without a writer."""
        if not self._folder.parent.is_dir():
            return None
        path = self._folder / FIFO
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            _log.warning("FIFO of command ends not opened", action="command.end", path=str(path), error=str(exc))
            return None
