"""Command trigger: runs a program of this machine without a shell.

A repeated start for the same run does not run it again: its end is on record, and one that is still running, even if
its server has died, is awaited. A command whose end is unknown is run once more.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from headgate.clock import Clock
from headgate.durable.model.duration import Seconds
from headgate.errors import StoreMovedError
from headgate.triggers.config import Config, between
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    completed,
    failed,
    shown,
)
from headgate.triggers.local.command_process import Command, Finished, kill_group, run
from headgate.triggers.local.command_records import Begun, CommandRecord, Ended, sweep

# Variables every program gets; all others are named in the config.
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
_NEVER_INHERITED: Final = re.compile(r"AWS_|HEADGATE_|HG_SECRET_")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMEOUT_SECONDS_MAX: Final = 7 * 86_400.0
_OUTPUT_BYTES_MAX: Final = 1_048_576
_LOOK_SECONDS: Final = 0.05
_SWEEP_SECONDS: Final = 3_600.0
_STORED_CHARS: Final = 2_000
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
    output_bytes_max: int = 65_536
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

    def argv(self) -> list[str]:
        """Return the program and its arguments. Raises `ValueError` for an unclosed quote."""
        return shlex.split(self.command) if isinstance(self.command, str) else list(self.command)


class CommandKind:
    """Programs of this machine. `environ` is the server's own environment."""

    name: ClassVar[str] = "command"
    config_type: ClassVar[type[CommandConfig]] = CommandConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"environment"})
    is_local: ClassVar[bool] = True

    def __init__(self, clock: Clock, folder: Path, environ: Mapping[str, str]) -> None:
        self._clock = clock
        self._folder = folder
        self._environ = environ
        self._swept_at: float | None = None

    def start(self, job: Job[CommandConfig]) -> Started:
        if not self._folder.parent.is_dir():
            # Creating it would keep a home that was moved away from being moved back.
            raise StoreMovedError(f"{self._folder.parent}: it was moved or deleted; move it back")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()
        record = CommandRecord(self._folder, job.key)
        ended = record.ended()
        while ended is None:
            with record.try_lock() as lock:
                # The previous holder of the lock may have written the record meanwhile.
                ended = record.ended()
                if ended is None and lock is not None:
                    ended = self._run(job, record, lock)
            if ended is None:
                self._wait(record)
        return _started(job, ended)

    def poll(self, job: Job[CommandConfig], metadata: Mapping[str, str]) -> PollResult:
        del metadata
        record = CommandRecord(self._folder, job.key)
        ended = record.ended()
        if ended is not None:
            return PollResult(JobState.SUCCEEDED) if ended.category is None else failed(ended.category, ended.reason)
        if not self._folder.exists():
            return failed(FailureCategory.TRANSIENT, f"run {job.key}: nothing is known of its command here")
        if _is_locked(record):
            return PollResult(JobState.RUNNING)
        return failed(FailureCategory.TRANSIENT, f"run {job.key}: its command ended, and its exit code is unknown")

    def cancel(self, job: Job[CommandConfig], metadata: Mapping[str, str]) -> None:
        del metadata
        if not self._folder.exists():
            return
        record = CommandRecord(self._folder, job.key)
        if record.ended() is not None:
            return
        record.cancel()
        begun = record.begun()
        if begun is None or not _is_locked(record):
            return
        kill_group(begun.group, signal.SIGTERM)
        ends_at = self._clock.monotonic() + job.config.grace
        while _is_locked(record) and self._clock.monotonic() < ends_at:
            self._clock.sleep(_LOOK_SECONDS)
        if _is_locked(record):
            kill_group(begun.group)

    def _run(self, job: Job[CommandConfig], record: CommandRecord, lock: int) -> Ended:
        config = job.config
        if record.is_cancelled():
            return Ended(0, category=FailureCategory.PERMANENT, reason="it was cancelled before it began")
        command = Command(
            argv=config.argv(),
            environment=self._environment(job),
            folder=config.folder,
            timeout_seconds=config.timeout,
            grace_seconds=config.grace,
            output_bytes_max=config.output_bytes_max,
        )
        ends_by = self._clock.seconds() + config.timeout + config.grace
        try:
            finished = run(command, self._clock, lock, lambda group: record.begin(Begun(group, ends_by)))
        except OSError as exc:
            raise _not_started(command, exc) from exc
        ended = _judged(job, finished, is_cancelled=record.is_cancelled())
        record.end(ended)
        return ended

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if self._swept_at is None or now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            sweep(self._folder, self._clock.seconds())

    def _wait(self, record: CommandRecord) -> None:
        """Wait a little for a command that another process started; kill it if it is past its time-out."""
        begun = record.begun()
        if begun is not None and self._clock.seconds() > begun.ends_by_seconds + 1:
            kill_group(begun.group)
        self._clock.sleep(_LOOK_SECONDS)

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


def _is_locked(record: CommandRecord) -> bool:
    """Whether a command is running or about to start."""
    with record.try_lock() as lock:
        return lock is None


def _judged(job: Job[CommandConfig], finished: Finished, *, is_cancelled: bool) -> Ended:
    output = job.scrub(finished.output.decode(errors="replace"))
    code = finished.exit_code
    detail = shown(output[-400:])
    what = job.config.argv()[0]
    if is_cancelled:
        return Ended(code, output, FailureCategory.PERMANENT, "it was cancelled")
    if finished.is_out_of_time:
        reason = f"{what}: not done within {job.config.timeout:g} s, and killed"
        return Ended(code, output, FailureCategory.TIMEOUT, reason)
    if code == 0:
        return Ended(0, output)
    how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
    category = FailureCategory.PERMANENT if code in job.config.permanent_exits else FailureCategory.TRANSIENT
    return Ended(code, output, category, f"{what}: {how}" + (f": {detail}" if detail else ""))


def _started(job: Job[CommandConfig], ended: Ended) -> Started:
    if ended.category is not None:
        raise TriggerFailedError(f"run {job.key}: {ended.reason}", ended.category, was_started=True)
    return completed(job.key, exit_code=str(ended.exit_code), output=ended.output[-_STORED_CHARS:])


def _not_started(command: Command, error: OSError) -> TriggerFailedError:
    category = FailureCategory.TRANSIENT if error.errno in _PASSING else FailureCategory.PERMANENT
    what = command.argv[0] if error.filename in (None, command.argv[0]) else error.filename
    return TriggerFailedError(f"command {what!r}: it cannot be started: {error.strerror}", category)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
