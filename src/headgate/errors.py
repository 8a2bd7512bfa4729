"""Errors: every error Headgate raises, in four families by what the caller should do.

HeadgateError
├── UserError               fix the input                400  INVALID_ARGUMENT     exit 2
│   ├── SettingsError           a setting is unknown or has an invalid value
│   ├── InvalidItemError        an item, key, condition or query is invalid
│   ├── ItemTooLargeError       an item is over 400 KB and cannot spill
│   ├── TransactionLimitError   too many writes, too many bytes, or two writes of one item
│   ├── CursorError             a page cursor was altered, or belongs to another query
│   ├── SignatureError          a signed token was altered, or its key was dropped
│   ├── ForeignFileError        the file or folder belongs to another program
│   ├── InvalidIdError          an id is malformed
│   ├── InvalidPayloadError     a value is not valid JSON or does not fit the expected type
│   │   └── SealedPayloadError      a value is encrypted, and its key is not here, or it was altered or moved
│   ├── PayloadTooLargeError    a value exceeds the size limit
│   ├── InvalidScheduleError    a cron expression, time zone or policy is invalid
│   ├── DefinitionError         a workflow, activity, subscription or route is declared wrongly
│   ├── WorkflowViolationError  workflow code did what only an activity may do
│   ├── KeyReusedError          one Idempotency-Key, two different requests           422
│   ├── UnknownSensorError      the pipeline reads no sensor of this key
│   ├── QueryLimitError         a query is too deep or too expensive
│   ├── UnauthenticatedError    the caller is not authenticated       401  UNAUTHENTICATED
│   ├── ForbiddenError          the caller lacks the permission       403  PERMISSION_DENIED
│   │   └── ApprovalRequiredError   the change needs an approval ticket
│   └── NotFoundError           the resource does not exist           404  NOT_FOUND
│       ├── UnknownWorkflowError    no loaded app has this workflow
│       └── DatasetNotFoundError    no dataset of this name is registered
├── ConflictError           re-read, then decide         409  ABORTED              exit 3
│   ├── OutcomeUnknownError     a write may or may not have been applied
│   ├── TokenReusedError        one idempotency token, two different requests
│   ├── VersionConflictError    the resource was changed since it was read
│   ├── PreconditionFailedError If-Match does not match               412  FAILED_PRECONDITION
│   ├── AlreadyExistsError      a resource of this name exists
│   ├── IllegalTransitionError  the current state does not allow this transition
│   ├── AlreadyStartedError     an execution of this id exists with a different input
│   ├── ExecutionClosedError    the execution has ended or is stuck
│   ├── StuckExecutionError     the execution is stuck until it is redriven                exit 5
│   └── StaleClaimError         the worker's claim is void: its lease expired, or the activity was cancelled
├── TransientError          retry with backoff           503  UNAVAILABLE          exit 75
│   ├── ServerBusyError         the server is overloaded
│   ├── NotReadyError           the server is starting or stopping
│   ├── RateLimitedError        the caller exceeds a rate limit       429  RESOURCE_EXHAUSTED
│   ├── IntakeEndedError        the intake process ended before it answered a call
│   ├── QueryTimeoutError       workflow code did not answer a query in time
│   ├── NotAdmittedError        a chunk must not run now: another worker holds it, or it is paused
│   ├── BreakerOpenError        the circuit breaker of a dependency is open
│   ├── StillRunningError       the first request with this Idempotency-Key is still running   409
│   ├── DeadlineExceededError   the caller's deadline passed before an answer   504  DEADLINE_EXCEEDED
│   ├── StoreBusyError          the store stayed locked or overloaded until the deadline
│   ├── ThrottledError          the backend throttles                 429  RESOURCE_EXHAUSTED
│   └── StoreUnavailableError   the store's disk refuses; an operator removes the cause        exit 70
│       ├── StoreFullError          the disk or the table space is full   507  RESOURCE_EXHAUSTED
│       ├── ReadOnlyStoreError      the store can be read but not written
│       ├── StoreMovedError         the database file was moved, deleted or replaced
│       └── StoreDamagedError       the database file is damaged; it is read-only until it is restored
└── FatalError              stop, page a human           500  INTERNAL             exit 70
    ├── CorruptionError         stored bytes are corrupt                  DATA_LOSS
    ├── StoreIOError            the operating system or the backend refused an operation
    ├── NewerStoreError         the store was written by a newer Headgate
    ├── KeysLostError           the store holds data of keys that the keyring does not hold
    ├── StoreClosedError        the store was closed, or used after a fork
    ├── StreamTrimmedError      a consumer's checkpoint is older than the stream's retention
    ├── DeterminismError        workflow code does not match its recorded history
    └── BadOutputError          an app returned an invalid response
"""

from __future__ import annotations

from typing import Any, ClassVar

from headgate.exit_codes import ExitCode


class HeadgateError(Exception):
    """Root of the tree; never raised itself. `code` is stable and safe to match on."""

    code: ClassVar[str] = "headgate"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = ExitCode.FATAL

    @property
    def message(self) -> str:
        """The text for a person: the id, the fact, the remedy."""
        return str(self)


class UserError(HeadgateError):
    """The input is wrong; the same call fails again until the input is changed."""

    code = "user"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    exit_code = ExitCode.INVALID


class SettingsError(UserError):
    """A setting is unknown or has an invalid value."""

    code = "bad_setting"


class InvalidItemError(UserError):
    """An item, key, condition or query is invalid. Nothing was written."""

    code = "invalid_item"


class ItemTooLargeError(UserError):
    """An item exceeds 400 KB, and no attribute is left that could spill to a blob."""

    code = "item_too_large"
    http_status = 413


class TransactionLimitError(UserError):
    """A transaction or batch exceeds a limit of the store. Nothing was written."""

    code = "transaction_limit"


class CursorError(UserError):
    """A page cursor was altered, is not a cursor, or belongs to another query."""

    code = "bad_cursor"


class SignatureError(UserError):
    """A signed token was altered, or was signed with a key that has been dropped."""

    code = "bad_signature"


class ForeignFileError(UserError):
    """The file belongs to another program. It was not changed."""

    code = "foreign_file"


class InvalidIdError(UserError):
    """An id is malformed."""

    code = "bad_id"


class InvalidPayloadError(UserError):
    """A value is not valid JSON, or does not fit the expected type."""

    code = "bad_payload"


class SealedPayloadError(InvalidPayloadError):
    """A value is encrypted and its key is not here, or it was altered or moved to another place."""

    code = "sealed_payload"


class PayloadTooLargeError(UserError):
    """A value exceeds the size limit."""

    code = "payload_too_large"
    http_status = 413


class InvalidScheduleError(UserError):
    """A cron expression, a time zone or a policy is invalid."""

    code = "bad_schedule"


class DefinitionError(UserError):
    """A workflow, activity, subscription or route is declared wrongly."""

    code = "bad_definition"


class WorkflowViolationError(UserError):
    """Workflow code did what only an activity may do: real I/O, threads, or a wait for the real clock."""

    code = "workflow_violation"


class KeyReusedError(UserError):
    """One Idempotency-Key was sent with two different requests."""

    code = "idempotency_key_reused"
    http_status = 422


class UnknownSensorError(UserError):
    """A pipeline reads no sensor of this key; correct it, or say that it is new."""

    code = "unknown_sensor"


class QueryLimitError(UserError):
    """A query is too deep or too expensive."""

    code = "query_limit"


class UnauthenticatedError(UserError):
    """The caller is not authenticated: the API key or token is missing or invalid."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class ForbiddenError(UserError):
    """The caller lacks the permission for this action or this resource."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class ApprovalRequiredError(ForbiddenError):
    """The change needs an approval ticket."""

    code = "approval_required"


class NotFoundError(UserError):
    """The resource does not exist."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


class UnknownWorkflowError(NotFoundError):
    """No loaded app has a workflow of this name."""

    code = "unknown_workflow"


class DatasetNotFoundError(NotFoundError):
    """No dataset of this name is registered."""

    code = "dataset_not_found"


class ConflictError(HeadgateError):
    """A condition did not hold, and nothing was written.

    `current` is the current item, or None if it does not exist, so that the loser of a race needs no second read.
    `write_index` is the position of the first failed write in its transaction; `failures` maps the position of every
    failed write to its current item.
    """

    code = "conflict"
    http_status = 409
    grpc_status = "ABORTED"
    exit_code = ExitCode.CONFLICT

    def __init__(
        self,
        message: str,
        *,
        current: dict[str, Any] | None = None,
        write_index: int = 0,
        failures: dict[int, dict[str, Any] | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.current = current
        self.write_index = write_index
        self.failures = failures if failures is not None else {write_index: current}

    @property
    def current_version(self) -> int | None:
        """The version of the current resource, or None if it is not known."""
        current = self.current or {}
        found = next((current[name] for name in ("config_version", "version", "revision") if name in current), None)
        return found if isinstance(found, int) else None


class OutcomeUnknownError(ConflictError):
    """The connection broke during a conditional write, and the item now differs from both outcomes."""

    code = "outcome_unknown"


class TokenReusedError(ConflictError):
    """An idempotency token was used before for a different request. Nothing was written."""

    code = "token_reused"


class VersionConflictError(ConflictError):
    """The resource was changed since the caller read it. Nothing was written."""

    code = "version_conflict"


class PreconditionFailedError(ConflictError):
    """The caller's If-Match does not match the current version. Nothing was written."""

    code = "precondition_failed"
    http_status = 412
    grpc_status = "FAILED_PRECONDITION"


class AlreadyExistsError(ConflictError):
    """A resource of this name exists."""

    code = "already_exists"
    grpc_status = "ALREADY_EXISTS"


class IllegalTransitionError(ConflictError):
    """The current state does not allow this transition. Nothing was written."""

    code = "illegal_transition"
    grpc_status = "FAILED_PRECONDITION"


class AlreadyStartedError(ConflictError):
    """An execution of this id exists, with a different workflow or input."""

    code = "already_started"


class ExecutionClosedError(ConflictError):
    """The execution has ended and accepts no more messages."""

    code = "execution_closed"


class StuckExecutionError(ConflictError):
    """The execution is stuck: it does not go on until its code is fixed or it is redriven."""

    code = "execution_stuck"
    exit_code = ExitCode.STALLED


class StaleClaimError(ConflictError):
    """The worker's claim is void: its lease expired, the activity was cancelled, or its execution has ended."""

    code = "stale_claim"


class TransientError(HeadgateError):
    """The request is valid but cannot be served now; retry it after `retry_after_seconds`."""

    code = "transient"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    exit_code = ExitCode.TRY_AGAIN
    retry_after_seconds: float = 1.0


class ServerBusyError(TransientError):
    """The server is overloaded. The request was not started."""

    code = "server_busy"


class NotReadyError(TransientError):
    """The server is starting or stopping. The request was not started."""

    code = "not_ready"


class RateLimitedError(TransientError):
    """The caller or its address exceeds a rate limit. The request was not started."""

    code = "rate_limited"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class IntakeEndedError(TransientError):
    """The intake process ended before it answered. The write may have been applied; a retry does not apply it twice."""

    code = "intake_ended"


class QueryTimeoutError(TransientError):
    """Workflow code did not answer a query in time. Nothing was changed."""

    code = "query_timeout"


class NotAdmittedError(TransientError):
    """A chunk must not run now. `admission` is BUSY if another worker holds it, PAUSED if its fan-out is paused."""

    code = "not_admitted"

    def __init__(self, message: str, admission: str) -> None:
        super().__init__(message)
        self.admission = admission


class BreakerOpenError(TransientError):
    """The circuit breaker of a dependency is open. It allows another attempt after `retry_after_seconds`."""

    code = "breaker_open"


class StillRunningError(TransientError):
    """The first request with this Idempotency-Key is still running."""

    code = "still_running"
    http_status = 409
    grpc_status = "ABORTED"


class DeadlineExceededError(TransientError):
    """The caller's deadline passed before an answer. Work already started may still complete."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class StoreBusyError(TransientError):
    """The store stayed locked or overloaded until the deadline."""

    code = "store_busy"


class ThrottledError(TransientError):
    """The backend throttled every attempt until the deadline."""

    code = "throttled"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"


class StoreUnavailableError(TransientError):
    """The store refuses for a cause that an operator has to remove: the disk, its mount or the file.

    Processes continue and retry: the store recovers when the cause is removed.
    """

    code = "store_unavailable"
    exit_code = ExitCode.FATAL
    retry_after_seconds = 5.0


class StoreFullError(StoreUnavailableError):
    """The disk or the table space is full. All acknowledged writes are safe."""

    code = "store_full"
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"


class ReadOnlyStoreError(StoreUnavailableError):
    """The store can be read but not written."""

    code = "store_read_only"


class StoreMovedError(StoreUnavailableError):
    """The database file was moved, deleted or replaced while it was open. It can still be read."""

    code = "store_moved"


class StoreDamagedError(StoreUnavailableError):
    """The database file is damaged. It is read-only until a backup is restored."""

    code = "store_damaged"


class FatalError(HeadgateError):
    """Continuing could lose or corrupt data: stop, and page a human."""

    code = "fatal"


class CorruptionError(FatalError):
    """Stored bytes are corrupt."""

    code = "corruption"
    grpc_status = "DATA_LOSS"


class StoreIOError(FatalError):
    """The operating system or the backend refused an operation, and a retry would not help."""

    code = "store_io"


class NewerStoreError(FatalError):
    """The store was written by a newer Headgate. It was not changed."""

    code = "newer_store"


class KeysLostError(FatalError):
    """The store holds data that was signed or encrypted with keys that the keyring does not hold."""

    code = "keys_lost"


class StoreClosedError(FatalError):
    """The store was closed, or was opened before a fork and used after it."""

    code = "store_closed"


class StreamTrimmedError(FatalError):
    """A consumer's checkpoint is older than the oldest retained change: changes were missed."""

    code = "stream_trimmed"


class DeterminismError(FatalError):
    """Workflow code does not match its recorded history. The execution is stuck until the code is fixed."""

    code = "nondeterministic"


class BadOutputError(FatalError):
    """The app returned a response that cannot be encoded or does not fit its declared type."""

    code = "bad_output"
