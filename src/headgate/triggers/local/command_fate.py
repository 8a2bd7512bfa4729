"""Command fate: what became of a command, decided from its record and the processes that exist now.

A process is identified by its id, its start and the boot of the machine: the system reuses ids.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Begun(Struct, frozen=True, kw_only=True):
    """The start of a command, on record before the command begins. Starts of processes are in ticks since boot."""

    # The command, which leads its process group.
    pid: int
    pid_start: int | None
    supervisor: int
    supervisor_start: int | None
    boot_id: str
    started_at_ms: int
    ends_by_ms: int


class EndCause(enum.StrEnum):
    """Why a command ended."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    # The supervisor got SIGTERM, as at the shutdown of the machine.
    TERMINATED = "terminated"
    MEMORY = "memory"
    # Its supervisor was killed, so that its exit code is unknown.
    LOST = "lost"
    # The machine restarted.
    REBOOT = "reboot"


class Ended(Struct, frozen=True, kw_only=True):
    """The end of a command. The exit code is negative for a signal, and None if it is unknown."""

    exit_code: int | None
    cause: EndCause
    ended_at_ms: int
    seconds: float | None = None
    # Whether the output on disk holds no secret of the job.
    is_scrubbed: bool = False


class Sighting(Struct, frozen=True, kw_only=True):
    """The machine now: its boot, the starts of the processes that have the recorded ids, and the command's lock."""

    boot_id: str
    pid_start: int | None
    supervisor_start: int | None
    # Whether the supervisor, the command or a descendant of it has the lock.
    is_locked: bool


class Fate(enum.Enum):
    """What became of a command."""

    NOT_STARTED = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    # It runs, and its supervisor is gone.
    ORPHANED = enum.auto()
    ENDED = enum.auto()
    # It has ended, and its exit code is unknown.
    LOST = enum.auto()
    REBOOTED = enum.auto()


def decide_fate(begun: Begun | None, ended: Ended | None, sighting: Sighting) -> Fate:
    """Return what became of a command. Read `ended` after the sighting: a supervisor records the end and exits."""
    if ended is not None:
        return Fate.ENDED
    if begun is None:
        return Fate.STARTING if sighting.is_locked else Fate.NOT_STARTED
    if sighting.boot_id != begun.boot_id:
        return Fate.REBOOTED
    if begun.supervisor_start is not None and sighting.supervisor_start == begun.supervisor_start:
        return Fate.RUNNING
    is_alive = begun.pid_start is not None and sighting.pid_start == begun.pid_start
    return Fate.ORPHANED if is_alive or sighting.is_locked else Fate.LOST


def may_signal(begun: Begun, sighting: Sighting) -> bool:
    """Whether the process group on record is still that of the command.

    While a process of the group exists, the system gives the group's id to no other process.
    """
    return sighting.boot_id == begun.boot_id and sighting.pid_start in (None, begun.pid_start)
