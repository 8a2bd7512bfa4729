"""Execution request: the input of the workflow that runs a machine, the reason it was stopped, its failure."""

from __future__ import annotations

import functools
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import Machine
from headgate.asl.model.names import is_built_in
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.interpreter import Limits


class ExecutionRequest(Struct, frozen=True, omit_defaults=True):
    """The input of the workflow that runs machines. It is complete: a replay years later needs nothing else."""

    machine: str
    name: str
    # The definition as JSON text, variables filled in. Empty: the stored definition of `machine` at `version`.
    definition: str
    started_at_ms: int
    input: Json = None
    version: int = 0
    limits: Limits = Limits()
    # The position to resume from, after a redrive or after continue-as-new.
    resume: Frame | None = None
    # The number of history events before this run.
    events: int = 0
    redrive_count: int = 0
    # Whether a redrive started this run, and why; the idempotency keys of the last redrives.
    is_redriven: bool = False
    redrive_reason: str = ""
    redrive_ids: tuple[str, ...] = ()
    # The event type with which the run before a redrive was ended from outside.
    ended_as: str = ""
    # Whether the routes of its calls are recorded: a resource map or an allowed Lambda function may replace them.
    is_routed: bool = False
    # The machine and the mocked test case under which it runs, as `task_routes.case_of` joins them.
    case: str = ""

    @property
    def is_built_in(self) -> bool:
        """Whether the definition is that of a machine of the product, which only Headgate itself stores.

        A definition inside the request is never trusted, whatever machine it names.
        """
        return not self.definition and is_built_in(self.machine)


class MachineFailed(Exception):
    """An execution of a machine failed with this error and cause."""

    def __init__(self, error: str, cause: str = "") -> None:
        super().__init__(error, cause)
        self.error = error
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.error}: {self.cause}" if self.cause else self.error


STOPPED: Final = "asl.stopped"
# The longest reason that a cancellation may have.
REASON_MAX: Final = 1_000


class StopReason(Struct, frozen=True):
    """The error and cause of a stopped execution, stored as the reason of the cancellation."""

    error: str = ""
    cause: str = ""
    # Distinguishes this from a plain reason that happens to be JSON.
    kind: str = STOPPED

    def text(self) -> str:
        """Return the JSON text, with the cause cut so that it fits a cancellation's reason."""
        cut = self
        while len(text := msgspec.json.encode(cut).decode()) > REASON_MAX and cut.cause:
            cut = StopReason(cut.error, cut.cause[: len(cut.cause) - max(1, (len(text) - REASON_MAX) // 2)])
        return text

    @classmethod
    def read(cls, reason: str) -> StopReason:
        """Parse the reason of a cancellation; plain text becomes the cause."""
        try:
            read = typed_decode.from_json(reason, cls)
        except msgspec.DecodeError:
            return cls(cause=reason)
        return read if f'"kind":"{STOPPED}"' in reason else cls(cause=reason)


@functools.lru_cache(maxsize=512)
def compiled(definition: str) -> Machine:
    """Return the compiled machine of a definition that was validated before."""
    # Imported on use: most processes never run a machine, and the query languages are slow to import.
    from headgate.asl.compile.compiler import compile_known

    return compile_known(msgspec.json.decode(definition))
