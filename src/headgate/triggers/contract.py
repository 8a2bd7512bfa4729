"""The contract of triggers: what is ordered, what a start and a poll come to, and why one failed.

A start is idempotent by `TriggerOrder.key`: asked for again, it finds the job that is there and starts no second one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from headgate.errors import HeadgateError

EXTERNAL_ID: Final = "external_id"
REASON_CHARS_MAX: Final = 512
HIDDEN: Final = "***"


class JobState(enum.StrEnum):
    """What a poll of a job says."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class FailureCategory(enum.StrEnum):
    """Why something failed, as far as trying again is concerned."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"
    EVALUATOR_CRASH = "EVALUATOR_CRASH"


class StartStatus(enum.StrEnum):
    """Whether a job that was started is under way, or over and done well."""

    RUNNING = "running"
    COMPLETED = "completed"


class TriggerOrder(Struct, frozen=True, kw_only=True):
    """A job that is to be started, and what for. `config` is as the definition has it, with its templates."""

    type: str
    config: dict[str, Any]
    pipeline: str
    schedule: str
    date: str
    run_id: str
    attempt: int = 1
    # Where the job says that it has ended, if it does so itself.
    callback_url: str | None = None

    @property
    def key(self) -> str:
        """What tells this attempt from all others: the id of the run, from the second attempt on with its number."""
        return self.run_id if self.attempt == 1 else f"{self.run_id}-{self.attempt}"


class Started(Struct, frozen=True):
    """A job that was started. `metadata` is what `poll` and `cancel` need; it is stored, and holds no secret."""

    status: StartStatus
    external_id: str
    metadata: dict[str, str]
    # Whether an event on the bus tells of its end, with the key of the order as its subject.
    tells_end: bool = False


class Polled(Struct, frozen=True):
    """How a job is. A failure has a category; `reason` may also say what is to be known about a success."""

    state: JobState
    category: FailureCategory | None = None
    reason: str = ""


class TriggerFailedError(HeadgateError):
    """A job was not started, failed at once, or cannot be asked after. `category` says whether to try again.

    `was_started` tells a job that ran and failed from one that was never begun.
    """

    code = "trigger_failed"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 75

    def __init__(self, message: str, category: FailureCategory, *, was_started: bool = False) -> None:
        super().__init__(message)
        self.category = category
        self.was_started = was_started


class Trigger(Protocol):
    """What pipelines see of every kind of trigger."""

    def start(self, order: TriggerOrder) -> Started:
        """Start a job, or find the one that was started for this key. Raises `TriggerFailedError`."""

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> Polled:
        """Return how a job is. Raises `TriggerFailedError` if that cannot be found out: the job may be well."""

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        """Have a job end; one that has ended stays as it is. Raises `TriggerFailedError`."""


C = TypeVar("C")


class Job(Struct, Generic[C], frozen=True):
    """An order whose config is filled in. It holds secrets, so it is neither stored nor shown."""

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


class Kind(Protocol[C]):
    """One kind of trigger. Whoever calls it has filled in the config, and takes secrets out of what it says."""

    @property
    def name(self) -> str:
        """The `type` of definitions."""

    @property
    def config_type(self) -> type[C]:
        """What a config is read into."""

    @property
    def secret_fields(self) -> frozenset[str]:
        """The fields of the config that may refer to secrets."""

    @property
    def is_local(self) -> bool:
        """Whether it may be defined in the project folder only, and never through an API."""

    def start(self, job: Job[C]) -> Started:
        """As `Trigger.start`."""

    def poll(self, job: Job[C], metadata: Mapping[str, str]) -> Polled:
        """As `Trigger.poll`."""

    def cancel(self, job: Job[C], metadata: Mapping[str, str]) -> None:
        """As `Trigger.cancel`."""


def running(external_id: str, **metadata: str) -> Started:
    """Return a job that is under way."""
    return Started(StartStatus.RUNNING, external_id, {EXTERNAL_ID: external_id, **metadata})


def running_here(external_id: str) -> Started:
    """Return a job of ours that is under way, of whose end the bus tells."""
    return Started(StartStatus.RUNNING, external_id, {EXTERNAL_ID: external_id}, tells_end=True)


def completed(external_id: str, **metadata: str) -> Started:
    """Return a job that is done."""
    return Started(StartStatus.COMPLETED, external_id, {EXTERNAL_ID: external_id, **metadata})


def external_id_of(order: TriggerOrder, metadata: Mapping[str, str]) -> str:
    """Return under which id the other side knows a job. Raises `TriggerFailedError` if that was not kept."""
    found = metadata.get(EXTERNAL_ID, "")
    if not found:
        raise TriggerFailedError(
            f"run {order.key}: the id of its {order.type} job was not kept, so that it cannot be asked after; "
            "start the run again",
            FailureCategory.PERMANENT,
        )
    return found


def failed(category: FailureCategory, reason: str) -> Polled:
    """Return a job that has failed."""
    return Polled(JobState.FAILED, category, shown(reason))


def shown(text: str) -> str:
    """Return a foreign text as it may be kept and logged: short, and without control characters."""
    plain = "".join(character if character.isprintable() else " " for character in text[: 4 * REASON_CHARS_MAX])
    plain = " ".join(plain.split())
    return plain if len(plain) <= REASON_CHARS_MAX else plain[: REASON_CHARS_MAX - 1] + "…"


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """Return a text in which no secret can be read."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
