"""Every error Headgate raises, in four families that answer one question: what should the caller do?

HeadgateError
├── UserError               fix the input                400  INVALID_ARGUMENT     exit 2
│   ├── SettingsError           a setting is unknown or has a value that is not allowed
│   ├── InvalidItemError        an item, key, condition or query cannot be stored or asked
│   ├── ItemTooLargeError       an item is over 400 KB and cannot spill
│   ├── TransactionLimitError   too many writes, too many bytes, or two writes of one item
│   ├── CursorError             a page cursor was altered, or belongs to another query
│   ├── SignatureError          a signed token was altered, or its key is gone
│   ├── ForeignFileError        the file or folder belongs to another program
│   ├── InvalidIdError          an id has a form that is not allowed
│   ├── InvalidPayloadError     a value cannot be stored as JSON, or is not what the code expects
│   ├── PayloadTooLargeError    a value is larger than is accepted
│   ├── InvalidScheduleError    a cron expression, time zone or policy is not understood
│   ├── DefinitionError         a workflow, activity, subscription or route cannot be declared so
│   ├── WorkflowViolationError  workflow code did what only an activity may do
│   ├── KeyReusedError          one Idempotency-Key, two different requests           422
│   ├── QueryLimitError         a query is too deep or asks for too much
│   ├── UnauthenticatedError    who calls is not known                401  UNAUTHENTICATED
│   ├── ForbiddenError          who calls may not do this             403  PERMISSION_DENIED
│   │   └── ApprovalRequiredError   the change needs an approval ticket
│   └── NotFoundError           the thing named does not exist        404  NOT_FOUND
│       ├── UnknownWorkflowError    no app that is loaded here has this workflow
│       └── DatasetNotFoundError    no dataset of this name is registered
├── ConflictError           re-read, then decide         409  ABORTED              exit 3
│   ├── OutcomeUnknownError     a write may or may not have been applied
│   ├── TokenReusedError        one idempotency token, two different requests
│   ├── VersionConflictError    the thing was changed since it was read
│   ├── PreconditionFailedError it is not what If-Match says           412  FAILED_PRECONDITION
│   ├── AlreadyExistsError      a thing of this name exists
│   ├── IllegalTransitionError  from where it stands it cannot go there
│   ├── AlreadyStartedError     an execution of this id exists, and its input differs
│   ├── ExecutionClosedError    the execution has ended, or waits for someone to look at it
│   └── StaleClaimError         the activity is no longer this worker's: its lease ran out, or it was cancelled
├── TransientError          retry with backoff           503  UNAVAILABLE          exit 75
│   ├── ServerBusyError         the server has more to do than it will soon get to
│   ├── IntakeEndedError        the process that was answering a call ended before it did
│   ├── QueryTimeoutError       the code of an execution did not answer a query in time
│   ├── NotAdmittedError        a chunk is not to be run now: someone else is at it, or it is paused
│   ├── BreakerOpenError        a part that kept failing is left alone for a while
│   ├── StillRunningError       the first request with this Idempotency-Key has no answer yet   409
│   ├── DeadlineExceededError   the caller's time was up before there was an answer   504  DEADLINE_EXCEEDED
│   ├── StoreBusyError          the store did not let us in before the deadline
│   └── ThrottledError          the backend asks for less traffic     429  RESOURCE_EXHAUSTED
└── FatalError              stop, page a human           500  INTERNAL             exit 70
    ├── CorruptionError         stored bytes are not what was written     DATA_LOSS
    ├── StoreFullError          no space left where the state lives
    ├── ReadOnlyStoreError      the state cannot be written
    ├── StoreIOError            the operating system or the backend refused
    ├── NewerStoreError         the state was written by a newer Headgate
    ├── StoreClosedError        the store was closed, or carried over a fork
    ├── StreamTrimmedError      a consumer slept past the stream's retention
    ├── DeterminismError        workflow code does not do what its history says it did
    └── BadOutputError          an app answered a request with what cannot be sent, or is not what it declared
"""

from __future__ import annotations

from typing import Any, ClassVar


class HeadgateError(Exception):
    """Root of the tree; never raised itself. `code` is stable and safe to match on."""

    code: ClassVar[str] = "headgate"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70

    @property
    def message(self) -> str:
        """The sentence for a person: the id, the fact, the remedy."""
        return str(self)


class UserError(HeadgateError):
    """The input is wrong; the same call will fail again until it is changed."""

    code = "user"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 2


class SettingsError(UserError):
    """A setting is unknown or has a value that is not allowed."""

    code = "bad_setting"


class InvalidItemError(UserError):
    """An item, key, condition or query cannot be stored or asked. Nothing was written."""

    code = "invalid_item"


class ItemTooLargeError(UserError):
    """An item is larger than every backend allows, and no attribute is left that could spill."""

    code = "item_too_large"
    http_status = 413


class TransactionLimitError(UserError):
    """A transaction or batch breaks a limit that binds on every backend. Nothing was written."""

    code = "transaction_limit"


class CursorError(UserError):
    """A page cursor was altered, is not a cursor, or belongs to another query."""

    code = "bad_cursor"


class SignatureError(UserError):
    """A signed token was altered, or was signed with a key that is no longer kept."""

    code = "bad_signature"


class ForeignFileError(UserError):
    """The file belongs to another program. It was not touched."""

    code = "foreign_file"


class InvalidIdError(UserError):
    """An id has a form that is not allowed."""

    code = "bad_id"


class InvalidPayloadError(UserError):
    """A value cannot be stored as JSON, or is not what the code that reads it expects."""

    code = "bad_payload"


class PayloadTooLargeError(UserError):
    """A value is larger than is accepted."""

    code = "payload_too_large"
    http_status = 413


class InvalidScheduleError(UserError):
    """A cron expression, a time zone or a policy is not understood."""

    code = "bad_schedule"


class DefinitionError(UserError):
    """A workflow, activity, subscription or route cannot be declared like this."""

    code = "bad_definition"


class WorkflowViolationError(UserError):
    """Workflow code did what only an activity may do: real I/O, threads, or a wait for the real clock."""

    code = "workflow_violation"


class KeyReusedError(UserError):
    """One Idempotency-Key was sent with two different requests."""

    code = "idempotency_key_reused"
    http_status = 422


class QueryLimitError(UserError):
    """A query is deeper than is allowed, or would cost more."""

    code = "query_limit"


class UnauthenticatedError(UserError):
    """Who calls is not known: no key or token was given, or one that is not valid."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class ForbiddenError(UserError):
    """Who calls is known, and may not do this, or not to this."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class ApprovalRequiredError(ForbiddenError):
    """The change is of a kind that needs an approval ticket, and none was given."""

    code = "approval_required"


class NotFoundError(UserError):
    """The thing named does not exist."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"
    exit_code = 4


class UnknownWorkflowError(NotFoundError):
    """No app that is loaded here has a workflow of this name."""

    code = "unknown_workflow"


class DatasetNotFoundError(NotFoundError):
    """No dataset of this name is registered."""

    code = "dataset_not_found"


class ConflictError(HeadgateError):
    """A condition did not hold, and nothing was written.

    `current` is the item as it stands (None: there is none), so that a loser needs no second read.
    `write_index` is the position of the first refused write in its transaction; `failures` maps the
    position of every refused write to the item that refused it.
    """

    code = "conflict"
    http_status = 409
    grpc_status = "ABORTED"
    exit_code = 3

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


class OutcomeUnknownError(ConflictError):
    """The connection broke during a conditional write, and the item now differs from both outcomes."""

    code = "outcome_unknown"


class TokenReusedError(ConflictError):
    """An idempotency token was used before for a different request. Nothing was written."""

    code = "token_reused"


class VersionConflictError(ConflictError):
    """The thing was changed since the caller read it. Nothing was written."""

    code = "version_conflict"


class PreconditionFailedError(ConflictError):
    """The thing is not the one that the caller's If-Match names. Nothing was written."""

    code = "precondition_failed"
    http_status = 412
    grpc_status = "FAILED_PRECONDITION"


class AlreadyExistsError(ConflictError):
    """A thing of this name exists already."""

    code = "already_exists"
    grpc_status = "ALREADY_EXISTS"


class IllegalTransitionError(ConflictError):
    """From where the thing stands it cannot go where it was asked to. Nothing was written."""

    code = "illegal_transition"
    grpc_status = "FAILED_PRECONDITION"


class AlreadyStartedError(ConflictError):
    """An execution of this id exists already, and may not be taken for the one that was asked for."""

    code = "already_started"


class ExecutionClosedError(ConflictError):
    """The execution has ended, and takes no more messages."""

    code = "execution_closed"


class StaleClaimError(ConflictError):
    """The activity is no longer this worker's: its lease ran out, it was cancelled, or its execution has ended."""

    code = "stale_claim"


class TransientError(HeadgateError):
    """Nothing is wrong with the request; try it again after a pause."""

    code = "transient"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    exit_code = 75
    retry_after_seconds: float = 1.0


class ServerBusyError(TransientError):
    """The server has more to do than it will soon get to. Nothing was begun."""

    code = "server_busy"


class IntakeEndedError(TransientError):
    """The process that was answering a call ended before it did. What it began may be done; sent again, it is once."""

    code = "intake_ended"


class QueryTimeoutError(TransientError):
    """The code of an execution did not answer a query in time. Nothing was changed."""

    code = "query_timeout"


class NotAdmittedError(TransientError):
    """A chunk is not to be run now. `admission` says why: BUSY, someone else is at it; PAUSED, its fan-out is."""

    code = "not_admitted"

    def __init__(self, message: str, admission: str) -> None:
        super().__init__(message)
        self.admission = admission


class BreakerOpenError(TransientError):
    """A part kept failing and is left alone for a while. `retry_after_seconds` is when it is tried again."""

    code = "breaker_open"


class StillRunningError(TransientError):
    """The first request with this Idempotency-Key has not been answered yet."""

    code = "still_running"
    http_status = 409
    grpc_status = "ABORTED"


class DeadlineExceededError(TransientError):
    """The caller's time was up before there was an answer. What was begun may still be finished."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class StoreBusyError(TransientError):
    """The store did not let us in before the deadline."""

    code = "store_busy"


class ThrottledError(TransientError):
    """The backend kept asking for less traffic until the deadline passed."""

    code = "throttled"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"


class FatalError(HeadgateError):
    """Going on could do harm: stop, and wake someone."""

    code = "fatal"


class CorruptionError(FatalError):
    """Stored bytes are not what was written."""

    code = "corruption"
    grpc_status = "DATA_LOSS"


class StoreFullError(FatalError):
    """There is no space left where the state lives. Everything acknowledged before is safe."""

    code = "store_full"
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"


class ReadOnlyStoreError(FatalError):
    """The state can be read but not written."""

    code = "store_read_only"


class StoreIOError(FatalError):
    """The operating system or the backend refused an operation for a reason that a retry will not cure."""

    code = "store_io"


class NewerStoreError(FatalError):
    """The state was written by a newer Headgate. It was not touched."""

    code = "newer_store"


class StoreClosedError(FatalError):
    """The store was closed, or was opened before a fork and used after it."""

    code = "store_closed"


class StreamTrimmedError(FatalError):
    """A consumer's checkpoint is older than the oldest change that is kept: changes were missed."""

    code = "stream_trimmed"


class DeterminismError(FatalError):
    """Workflow code does not do what its history says it did. The execution waits until the code is mended."""

    code = "nondeterministic"


class BadOutputError(FatalError):
    """The app answered with something that cannot be sent, or that is not what it declared."""

    code = "bad_output"
