"""Trigger contract: orders, starts, polls and failure categories that all triggers share.

A start is idempotent by `TriggerOrder.key`: a repeated start finds the existing job and starts no second one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from headgate.errors import HeadgateError
from headgate.exit_codes import ExitCode

EXTERNAL_ID: Final = "external_id"
REASON_CHARS_MAX: Final = 512
HIDDEN: Final = "***"


class JobState(enum.StrEnum):
    """The state of a job as polled."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class FailureCategory(enum.StrEnum):
    """Why a job failed, in terms of whether a retry helps."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"
    EVALUATOR_CRASH = "EVALUATOR_CRASH"


class StartStatus(enum.StrEnum):
    """Whether a started job is running, or has already succeeded."""

    RUNNING = "running"
    COMPLETED = "completed"


class TriggerOrder(Struct, frozen=True, kw_only=True):
    """A job to start, and for which run. `config` is as defined, with its templates."""

    type: str
    config: dict[str, Any]
    pipeline: str
    schedule: str
    date: str
    run_id: str
    attempt: int = 1
    # Whether the definition is from the project folder, as a trigger that runs a program must be.
    is_from_folder: bool = False
    # For jobs that report their end themselves: where, and the token that admits them. The token is a secret.
    callback_url: str | None = None
    callback_token: str | None = None

    @property
    def key(self) -> str:
        """The idempotency key: the run id, because every attempt at a period is a run of its own."""
        return self.run_id

    def __repr__(self) -> str:
        return f"<order {self.type} {self.key}>"


class Started(Struct, frozen=True):
    """A started job. `metadata` is what `poll` and `cancel` need; it is stored, and holds no secret."""

    status: StartStatus
    external_id: str
    metadata: dict[str, str]
    # Whether its end is reported as it happens, so that the run need not poll often.
    tells_end: bool = False
    # When the job began, if that is known better than by the time of the answer.
    started_at_ms: int | None = None


class PollResult(Struct, frozen=True):
    """The state of a job. A failure has a category; `reason` may also comment on a success."""

    state: JobState
    category: FailureCategory | None = None
    reason: str = ""
    # Of a running job: the other side asks not to be polled earlier.
    check_after_seconds: float | None = None
    # When the job ended, if that is known.
    ended_at_ms: int | None = None


class JobOutput(Struct, frozen=True, kw_only=True):
    """A part of the output of a job. Offsets count bytes; `next_offset` is where the next part begins."""

    text: str
    offset: int
    next_offset: int
    size: int
    is_ended: bool
    # Bytes before this part that were dropped because the output grew beyond its limit.
    dropped_bytes: int = 0


class TriggerFailedError(HeadgateError):
    """A job could not be started, failed at once, or cannot be polled. `category` says whether to retry.

    `was_started` separates a job that ran and failed from one that never started.
    """

    code = "trigger_failed"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    exit_code = ExitCode.TRY_AGAIN

    def __init__(self, message: str, category: FailureCategory, *, was_started: bool = False) -> None:
        super().__init__(message)
        self.category = category
        self.was_started = was_started


class Trigger(Protocol):
    """The interface of triggers to pipelines."""

    def start(self, order: TriggerOrder) -> Started:
        """Start a job, or find the one that was started for this key. Raises `TriggerFailedError`."""

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> PollResult:
        """Return the state of a job. Raises `TriggerFailedError` if it is unknown: the job may be running."""

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        """Cancel a job; one that has ended is left alone. Raises `TriggerFailedError`."""


C = TypeVar("C")


class Job(Struct, Generic[C], frozen=True):
    """An order with its config filled in. It holds secrets, so that it is neither stored nor shown."""

    order: TriggerOrder
    config: C
    secrets: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of the order."""
        return self.order.key

    def scrub(self, text: str) -> str:
        """Return a text without the secrets of this job."""
        return scrubbed(text, self.secrets)

    def __repr__(self) -> str:
        return f"<job {self.order.type} {self.order.key}>"


class TriggerKind(Protocol[C]):
    """One kind of trigger. The registry fills in the config, and removes secrets from results."""

    @property
    def name(self) -> str:
        """The `type` in definitions."""

    @property
    def config_type(self) -> type[C]:
        """The struct of its config."""

    @property
    def secret_fields(self) -> frozenset[str]:
        """Config fields that may refer to secrets."""

    @property
    def is_local(self) -> bool:
        """Whether definitions through an API may not use it, only those in the project folder."""

    def start(self, job: Job[C]) -> Started:
        """As `Trigger.start`."""

    def poll(self, job: Job[C], metadata: Mapping[str, str]) -> PollResult:
        """As `Trigger.poll`."""

    def cancel(self, job: Job[C], metadata: Mapping[str, str]) -> None:
        """As `Trigger.cancel`."""


def running(external_id: str, **metadata: str) -> Started:
    """Return a running job."""
    return Started(StartStatus.RUNNING, external_id, {EXTERNAL_ID: external_id, **metadata})


def running_here(external_id: str, *, started_at_ms: int | None = None, **metadata: str) -> Started:
    """Return a running job whose end is reported as it happens."""
    detail = {EXTERNAL_ID: external_id, **metadata}
    return Started(StartStatus.RUNNING, external_id, detail, tells_end=True, started_at_ms=started_at_ms)


def completed(external_id: str, **metadata: str) -> Started:
    """Return a job that has succeeded."""
    return Started(StartStatus.COMPLETED, external_id, {EXTERNAL_ID: external_id, **metadata})


def external_id_of(order: TriggerOrder, metadata: Mapping[str, str]) -> str:
    """Return the external id of a job. Raises `TriggerFailedError` if it was not stored."""
    found = metadata.get(EXTERNAL_ID, "")
    if not found:
        raise TriggerFailedError(
            f"run {order.key}: the id of its {order.type} job was not stored, so that it cannot be polled; "
            "start the run again",
            FailureCategory.PERMANENT,
        )
    return found


def failed(category: FailureCategory, reason: str, *, ended_at_ms: int | None = None) -> PollResult:
    """Return a failed job."""
    return PollResult(JobState.FAILED, category, shown(reason), ended_at_ms=ended_at_ms)


def shown(text: str) -> str:
    """Return an external text as it may be stored and logged: short, and without control characters."""
    plain = "".join(character if character.isprintable() else " " for character in text[: 4 * REASON_CHARS_MAX])
    plain = " ".join(plain.split())
    return plain if len(plain) <= REASON_CHARS_MAX else plain[: REASON_CHARS_MAX - 1] + "…"


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """Return a text with all secrets removed."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
