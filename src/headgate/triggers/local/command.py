"""Command trigger: runs a program of this machine without a shell, under a supervisor that outlives the server.

A repeated start for the same run starts nothing: the program that was started for it is found again, running or ended.
A program whose exit code is unknown, because its supervisor was killed, has failed; it is not run again by itself.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shlex
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from headgate.clock import Clock, epoch_ms
from headgate.durable.model.duration import Seconds
from headgate.errors import StoreMovedError
from headgate.triggers.config import Config, between
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobOutput,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    failed,
    running_here,
    shown,
)
from headgate.triggers.local.command_fate import Begun, EndCause, Ended, Fate, decide_fate, may_signal
from headgate.triggers.local.command_output import read_output, tail_text
from headgate.triggers.local.command_records import FIFO, CommandRecord, sweep
from headgate.triggers.local.command_supervisor import process_start
from headgate.triggers.local.supervisor_client import StartReply, SupervisedCommand, SupervisorClient

# Variables every program gets; all others are named in the config.
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
_NEVER_INHERITED: Final = re.compile(r"AWS_|HEADGATE_|HG_SECRET_")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([KMGT]?)i?B?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMEOUT_SECONDS_MAX: Final = 7 * 86_400.0
_OUTPUT_BYTES_MAX: Final = 1_073_741_824
_MEMORY_BYTES_MIN: Final = 1_048_576
_POLL_SECONDS: Final = 0.05
_WAIT_SECONDS: Final = 0.005
_SWEEP_SECONDS: Final = 3_600.0
# How long a start by another process may take to be on record, and an end after the last signal.
_START_SECONDS: Final = 10.0
_END_SECONDS: Final = 3.0
_REASON_BYTES: Final = 400
# Temporary reasons why the machine cannot start a program.
_PASSING: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETXTBSY})
# Codes of sysexits.h for errors of the user, the data or permissions.
_PERMANENT_EXITS: Final = (64, 65, 66, 67, 68, 69, 72, 73, 76, 77, 78, 126, 127)


class CommandConfig(Config, frozen=True):
    """A program and its arguments, as a list, or as a text split like a shell would, without other shell features."""

    command: str | list[str]
    folder: str | None = None
    environment: dict[str, str] = {}
    # Further variables of the server that the command inherits.
    inherit: list[str] = []
    timeout: Seconds = Seconds(3_600)
    # Time between SIGTERM and SIGKILL.
    grace: Seconds = Seconds(5)
    # Bytes of output kept on disk: its beginning and its end.
    output_bytes_max: int = 16_777_216
    # Resident memory of the program and its descendants, as bytes or as a text such as 512MB; beyond it is ended.
    memory_max: int | str | None = None
    # Exit codes after which a retry is useless.
    permanent_exits: tuple[int, ...] = _PERMANENT_EXITS

    def __post_init__(self) -> None:
        if not self.argv() or not self.argv()[0].strip():
            raise ValueError("command: there is none; name a program")
        if any("\0" in argument for argument in self.argv()):
            raise ValueError("command: a program cannot be given a zero byte")
        for name in (*self.environment, *self.inherit):
            if not _NAME.fullmatch(name):
                raise ValueError(f"environment: {name[:40]!r} is not the name of a variable")
        for name in self.inherit:
            if _NEVER_INHERITED.match(name):
                raise ValueError(f"inherit: {name} is the server's own; give the command what it needs in environment")
        between("timeout", self.timeout, 0.1, _TIMEOUT_SECONDS_MAX)
        between("grace", self.grace, 0, 600)
        between("output_bytes_max", self.output_bytes_max, 1, _OUTPUT_BYTES_MAX)
        if self.memory_max is not None and self.memory_bytes_max() < _MEMORY_BYTES_MIN:
            raise ValueError(f"memory_max {self.memory_max}: use at least 1MB")

    def argv(self) -> list[str]:
        """Return the program and its arguments. Raises `ValueError` for an unclosed quote."""
        return shlex.split(self.command) if isinstance(self.command, str) else list(self.command)

    def memory_bytes_max(self) -> int:
        """Return the memory limit in bytes; 0: none. Raises `ValueError` for a text that is no size."""
        if self.memory_max is None or isinstance(self.memory_max, int):
            return self.memory_max or 0
        found = _SIZE.fullmatch(self.memory_max.strip())
        if found is None:
            raise ValueError(f"memory_max {self.memory_max[:40]!r}: use bytes, or a text such as 512MB or 2GB")
        return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


class CommandKind:
    """Programs of this machine. `environ` is the server's own environment."""

    name: ClassVar[str] = "command"
    config_type: ClassVar[type[CommandConfig]] = CommandConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"environment"})
    is_local: ClassVar[bool] = True

    def __init__(
        self, clock: Clock, folder: Path, environ: Mapping[str, str], supervisors: SupervisorClient | None = None
    ) -> None:
        self._clock = clock
        self._folder = folder
        self._environ = environ
        self._supervisors = SupervisorClient() if supervisors is None else supervisors
        self._swept_at: float | None = None

    def start(self, job: Job[CommandConfig]) -> Started:
        if not self._folder.parent.is_dir():
            # Creating it would keep a home that was moved away from being moved back.
            raise StoreMovedError(f"{self._folder.parent}: it was moved or deleted; move it back")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()
        record = CommandRecord(self._folder, job.key)
        if record.is_flat_begun() or record.flat_ended() is not None:
            return running_here(job.key)
        record.create()
        gives_up_at = self._clock.monotonic() + _START_SECONDS
        while True:
            with record.try_lock() as lock:
                begun = record.begun()
                if begun is None and lock is not None:
                    self._start(job, record, lock)
                    begun = record.begun()
            if begun is not None:
                return running_here(job.key, started_at_ms=begun.started_at_ms or None, pid=str(begun.pid))
            if self._clock.monotonic() >= gives_up_at:
                reason = f"run {job.key}: another process has been starting its command for {_START_SECONDS:g} s"
                raise TriggerFailedError(reason, FailureCategory.TRANSIENT)
            self._clock.sleep(_POLL_SECONDS)

    def poll(self, job: Job[CommandConfig], metadata: Mapping[str, str]) -> PollResult:
        del metadata
        record = CommandRecord(self._folder, job.key)
        if not record.exists() or (record.begun() is None and not record.is_locked()):
            return _flat_poll(record)
        ended = self._ended(record)
        if ended is None:
            return PollResult(JobState.RUNNING)
        record.close()
        return _judged(job, ended, tail_text(record, job.secrets, _REASON_BYTES))

    def cancel(self, job: Job[CommandConfig], metadata: Mapping[str, str]) -> None:
        """End the process group of a command: SIGTERM, then SIGKILL. Returns when it has ended."""
        del metadata
        if not self._folder.exists():
            return
        record = CommandRecord(self._folder, job.key)
        if record.is_flat_begun():
            self._end_flat(record, job.config.grace)
            return
        record.create()
        record.request_cancel()
        begun = record.begun()
        if begun is not None and record.ended() is None:
            self._end(record, begun, job.config.grace)
        record.close()

    def read_output(
        self, key: str, secrets: Callable[[], tuple[str, ...]], *, offset: int, limit: int
    ) -> JobOutput | None:
        """Return a part of the output of a command, without its secrets. None: nothing of it is on this machine.

        A negative offset counts from the end. `secrets` is called if the output on disk still holds them.
        """
        record = CommandRecord(self._folder, key)
        if record.exists():
            return read_output(record, secrets, offset=offset, limit=limit)
        ended = record.flat_ended()
        if ended is None:
            return None
        size = len(ended.output)
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        part = ended.output[start : start + limit]
        return JobOutput(text=part, offset=start, next_offset=start + len(part), size=size, is_ended=True)

    def _start(self, job: Job[CommandConfig], record: CommandRecord, lock: int) -> None:
        """Have the command started. Raises `TriggerFailedError` if it was not."""
        if record.is_cancelled():
            raise TriggerFailedError(f"run {job.key}: it was cancelled before it began", FailureCategory.PERMANENT)
        command = SupervisedCommand(
            key=job.key,
            folder=str(record.folder.resolve()),
            notify=str((self._folder / FIFO).resolve()),
            argv=job.config.argv(),
            environment=self._environment(job),
            cwd=job.config.folder,
            timeout=float(job.config.timeout),
            grace=float(job.config.grace),
            memory_max=job.config.memory_bytes_max(),
            output_bytes_max=job.config.output_bytes_max,
            secrets=job.secrets,
        )
        try:
            reply = self._supervisors.start(command, lock)
        except OSError as exc:
            reply = StartReply(errno=exc.errno, filename="its supervisor")
        if reply is None and record.begun() is None:
            reason = f"run {job.key}: its supervisor was killed before it started the command"
            raise TriggerFailedError(reason, FailureCategory.TRANSIENT)
        if reply is not None and reply.pid is None:
            record.close()
            raise _not_started(command, reply)

    def _ended(self, record: CommandRecord) -> Ended | None:
        """Return the end of a command, or None while it runs. An end that only shows in the processes is recorded."""
        begun = record.begun()
        sighting = record.sighting(begun)
        ended = record.ended()
        match decide_fate(begun, ended, sighting):
            case Fate.RUNNING | Fate.STARTING:
                return None
            case Fate.ORPHANED if begun is not None:
                if epoch_ms(self._clock) < begun.ends_by_ms:
                    return None
                # Its supervisor would have ended it.
                ended = self._end_orphan(record, begun, EndCause.TIMEOUT, grace_seconds=0)
            case Fate.LOST | Fate.NOT_STARTED:
                ended = self._lost(record, begun, EndCause.LOST)
            case Fate.REBOOTED:
                ended = self._lost(record, begun, EndCause.REBOOT)
        return ended

    def _lost(self, record: CommandRecord, begun: Begun | None, cause: EndCause) -> Ended:
        # The last heartbeat is the last time that the command is known to have run.
        seen_ms = record.heartbeat_ms() if begun is not None else None
        ended = Ended(exit_code=None, cause=cause, ended_at_ms=epoch_ms(self._clock) if seen_ms is None else seen_ms)
        if begun is not None:
            record.end(ended)
        return ended

    def _end(self, record: CommandRecord, begun: Begun, grace_seconds: float) -> None:
        """End a command through its supervisor, or directly if that is gone."""
        sighting = record.sighting(begun)
        if decide_fate(begun, None, sighting) is Fate.RUNNING:
            _signal_and_wait(begun.supervisor, begun.supervisor_start, grace_seconds + _END_SECONDS)
            self._wait_unlocked(record, _END_SECONDS)
        if record.ended() is None:
            self._end_orphan(record, begun, EndCause.CANCELLED, grace_seconds)

    def _end_orphan(self, record: CommandRecord, begun: Begun, cause: EndCause, grace_seconds: float) -> Ended:
        """End a command whose supervisor is gone."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _END_SECONDS)):
            sighting = record.sighting(begun)
            if decide_fate(begun, None, sighting) is not Fate.ORPHANED or not may_signal(begun, sighting):
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(begun.pid, number)
            self._wait_unlocked(record, seconds)
        ended = Ended(exit_code=None, cause=cause, ended_at_ms=epoch_ms(self._clock))
        record.end(ended)
        return ended

    def _wait_unlocked(self, record: CommandRecord, seconds: float) -> None:
        """Wait until every process of a command is gone."""
        gives_up_at = self._clock.monotonic() + seconds
        while record.is_locked() and self._clock.monotonic() < gives_up_at:
            self._clock.sleep(_WAIT_SECONDS)

    def _end_flat(self, record: CommandRecord, grace_seconds: float) -> None:
        """End a command that an earlier build of the server ran itself."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _END_SECONDS)):
            group = record.flat_group()
            # While the lock is held, a process of the group exists.
            if group is None or not record.is_flat_locked():
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
            gives_up_at = self._clock.monotonic() + seconds
            while self._clock.monotonic() < gives_up_at and record.is_flat_locked():
                self._clock.sleep(_POLL_SECONDS)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if self._swept_at is None or now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            sweep(self._folder, self._clock.seconds())

    def _environment(self, job: Job[CommandConfig]) -> dict[str, str]:
        order = job.order
        kept = {name: self._environ[name] for name in (*INHERITED, *job.config.inherit) if name in self._environ}
        ours = {
            "HEADGATE_PIPELINE": order.pipeline,
            "HEADGATE_SCHEDULE": order.schedule,
            "HEADGATE_DATE": order.date,
            "HEADGATE_RUN_ID": order.run_id,
            "HEADGATE_ATTEMPT": str(order.attempt),
        }
        return {"PATH": os.defpath} | kept | ours | job.config.environment


def _signal_and_wait(pid: int, start: int | None, seconds: float) -> None:
    """Send SIGTERM to a supervisor and wait for its end. A process that has taken its id is left alone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Checked through the descriptor's process: the id cannot be reused while it is open.
        if process_start(pid) == start:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            select.select([descriptor], [], [], seconds)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _judged(job: Job[CommandConfig], ended: Ended, output: str) -> PollResult:
    """Return the result of a command that has ended, with the end of its output in the reason of a failure."""
    code, config = ended.exit_code, job.config
    what, category = config.argv()[0], FailureCategory.TRANSIENT
    if ended.cause is EndCause.EXITED and code == 0:
        return PollResult(JobState.SUCCEEDED, ended_at_ms=ended.ended_at_ms)
    match ended.cause:
        case EndCause.CANCELLED:
            reason, category, output = "it was cancelled", FailureCategory.PERMANENT, ""
        case EndCause.TIMEOUT:
            reason, category = f"{what}: not done within {config.timeout:g} s, and ended", FailureCategory.TIMEOUT
        case EndCause.MEMORY:
            reason = f"{what}: ended because it used more memory than memory_max ({config.memory_max}); raise the limit"
            category = FailureCategory.PERMANENT
        case EndCause.TERMINATED:
            reason = f"{what}: ended because its supervisor got SIGTERM, as at a shutdown of the machine"
        case EndCause.REBOOT:
            reason = f"{what}: the machine restarted while it ran; its exit code is unknown"
        case EndCause.LOST:
            reason = f"{what}: its supervisor was killed, so that its exit code is unknown"
        case _:
            how = f"killed by {_signal_name(-code)}" if code is not None and code < 0 else f"exit code {code}"
            is_permanent = code in config.permanent_exits
            reason, category = f"{what}: {how}", FailureCategory.PERMANENT if is_permanent else category
    detail = shown(_message(output))
    return failed(category, f"{reason}: {detail}" if detail else reason, ended_at_ms=ended.ended_at_ms)


def _message(output: str) -> str:
    """Return the end of an output, or of a traceback only the error, which is its last line."""
    lines = [line for line in output.splitlines() if line.strip()]
    is_traceback = len(lines) > 1 and lines[-2].startswith(" ") and not lines[-1].startswith(" ")
    return lines[-1] if is_traceback else output


def _flat_poll(record: CommandRecord) -> PollResult:
    """Return the state of a command that an earlier build of the server ran itself."""
    ended = record.flat_ended()
    if ended is not None:
        return PollResult(JobState.SUCCEEDED) if ended.category is None else failed(ended.category, ended.reason)
    if record.is_flat_locked():
        return PollResult(JobState.RUNNING)
    if record.is_flat_begun():
        return failed(FailureCategory.TRANSIENT, f"run {record.key}: its command ended, and its exit code is unknown")
    return failed(FailureCategory.TRANSIENT, f"run {record.key}: nothing is known of its command on this machine")


def _not_started(command: SupervisedCommand, reply: StartReply) -> TriggerFailedError:
    category = FailureCategory.TRANSIENT if reply.errno in _PASSING else FailureCategory.PERMANENT
    what = reply.filename or command.argv[0]
    why = os.strerror(reply.errno or 0)
    return TriggerFailedError(f"command {what!r}: it cannot be started: {why}", category)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
