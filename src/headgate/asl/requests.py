"""Requests: what an execution of a machine is started with, and how one that failed says so."""

from __future__ import annotations

import functools
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import Machine
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.resume_point import Frame


class Request(Struct, frozen=True, omit_defaults=True):
    """The input of the workflow that runs machines. It says all that is needed to run it again in a year."""

    machine: str
    name: str
    # The definition as JSON text, variables filled in. Empty: the machine's of this version, which is kept for good.
    definition: str
    started_at_ms: int
    input: Json = None
    version: int = 0
    limits: Limits = Limits()
    # Where to go on: after a redrive, or in the next run of a long execution.
    resume: Frame | None = None
    # How many events came before this run.
    events: int = 0
    redrive_count: int = 0
    # Whether this run is the one that a redrive began.
    is_redriven: bool = False
    # The event with which the run before a redrive was ended from outside.
    ended_as: str = ""


class MachineFailed(Exception):
    """An execution of a machine failed, with this error and cause."""

    def __init__(self, error: str, cause: str = "") -> None:
        super().__init__(error, cause)
        self.error = error
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.error}: {self.cause}" if self.cause else self.error


STOPPED: Final = "asl.stopped"
# What a reason of a cancellation may have.
REASON_MAX: Final = 1_000


class Stopped(Struct, frozen=True):
    """Why an execution was stopped: an error and a cause, kept as the reason of the cancellation."""

    error: str = ""
    cause: str = ""
    # So that a cause which happens to be JSON is not taken for this.
    kind: str = STOPPED

    def text(self) -> str:
        """Return it as the reason of a cancellation, no longer than a reason may be."""
        cut = self
        while len(text := msgspec.json.encode(cut).decode()) > REASON_MAX and cut.cause:
            cut = Stopped(cut.error, cut.cause[: len(cut.cause) - max(1, (len(text) - REASON_MAX) // 2)])
        return text

    @classmethod
    def read(cls, reason: str) -> Stopped:
        """Return what a reason says, whoever gave it."""
        try:
            read = typed_decode.from_json(reason, cls)
        except msgspec.DecodeError:
            return cls(cause=reason)
        return read if f'"kind":"{STOPPED}"' in reason else cls(cause=reason)


@functools.lru_cache(maxsize=512)
def compiled(definition: str) -> Machine:
    """Return the machine of a definition that was checked when it was put or started."""
    # Most processes never run a machine, and its query languages take their time to load.
    from headgate.asl.compile.compiler import compile_known

    return compile_known(msgspec.json.decode(definition))
