"""Exit codes of every command and process: one table."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit code of a command, by how a program should react to it."""

    OK = 0
    FAILED = 1
    INVALID = 2
    CONFLICT = 3
    NOT_FOUND = 4
    STALLED = 5
    WARN = 10
    BLOCK = 20
    UNKNOWN = 30
    FATAL = 70
    TRY_AGAIN = 75
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What the code says, in one sentence."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    ExitCode.OK: "Success.",
    ExitCode.FAILED: "The command worked, and its outcome is negative: a run, fan-out, execution or check failed.",
    ExitCode.INVALID: "Invalid usage, input or definition, or no permission: change the request.",
    ExitCode.CONFLICT: "Refused in the current state: read it again and decide.",
    ExitCode.NOT_FOUND: "The server has nothing of this id.",
    ExitCode.STALLED: "A fan-out, execution, period or backfill does not go on by itself.",
    ExitCode.WARN: "'gate check': use the dataset with care; 'aws doctor': there are only warnings.",
    ExitCode.BLOCK: "'gate check': do not use the dataset.",
    ExitCode.UNKNOWN: "'gate check': the state of the dataset is unknown.",
    ExitCode.FATAL: "Fatal: page someone.",
    ExitCode.TRY_AGAIN: "Not now: try again later, such as when no server is running.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C.",
}
