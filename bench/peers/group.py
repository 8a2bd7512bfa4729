"""A command in a process group of its own, so that nothing it started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

END_SECONDS_MAX = 5.0
POLL_SECONDS = 0.02


class CommandError(Exception):
    """A command failed or took too long. The message has the last line of what it said."""


def output(
    command: Sequence[str], *, seconds_max: float, folder: Path, settings: Mapping[str, str] | None = None
) -> str:
    """Run `command` in `folder` and return what it printed.

    When this returns or raises, also because of Ctrl-C, the command and all that it started have ended.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as exc:
        raise CommandError(f"{command[0]} cannot be run: {exc.strerror}") from exc
    try:
        printed, complaints = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired as exc:
        raise CommandError(f"{command[0]} took longer than {seconds_max:.0f} s") from exc
    finally:
        _end(process)
    if process.returncode != 0:
        raise CommandError(_last_line(complaints or printed) or f"{command[0]} ended with code {process.returncode}")
    return printed


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # Init reaps the remaining processes, which may take a moment; until then they may write to the folder.
    deadline = time.monotonic() + END_SECONDS_MAX
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(POLL_SECONDS)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
