"""DynamoDB calls: classifies the failure of every attempt, retries it under a deadline, or translates it.

botocore's own retries are off, so that there is one policy and one count. The kind of failure decides whether a write
may be retried: a throttled request was not applied, a broken connection may have been. A call that ends in such doubt
raises `OutcomeUnknownError`, never an error that promises that nothing was written.
"""

from __future__ import annotations

import enum
import logging
import sys
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import (
    HeadgateError,
    InvalidItemError,
    ItemTooLargeError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreIOError,
    ThrottledError,
    TransactionLimitError,
)
from headgate.store.deadlines import current_deadline
from headgate.store.dynamodb.marshalling import Attributes
from headgate.store.resilience.error_policy import (
    CANCELED,
    CONTENDED,
    INTERNAL,
    NOT_ALLOWED,
    THROTTLED,
    UNAVAILABLE,
    ErrorCategory,
    FailurePolicy,
    codes_of,
    policy_of,
)
from headgate.store.stats import AttemptObserver, StoreStats

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

CONNECTIONS_MAX: Final = 64
CONNECT_SECONDS: Final = 2.0

CONDITION_FAILED: Final = "ConditionalCheckFailedException"
NOT_FOUND: Final = "ResourceNotFoundException"
IN_USE: Final = "ResourceInUseException"

_THROTTLES: Final = codes_of(THROTTLED)
_CONTENTION: Final = codes_of(CONTENDED)
_SERVER_FAULTS: Final = codes_of(INTERNAL) | codes_of(UNAVAILABLE)
_NOT_ALLOWED: Final = codes_of(NOT_ALLOWED)
_VALIDATION: Final = frozenset({"ValidationException", "ValidationError"})
# DynamoDB's messages for updates that the current item does not allow.
_BAD_UPDATES: Final = ("incorrect data type", "number overflow", "type mismatch", "nesting levels")

# The operations that report consumed capacity, and its kind.
_METERED: Final = {
    **dict.fromkeys(("get_item", "batch_get_item", "query", "scan", "transact_get_items"), "READ"),
    **dict.fromkeys(("put_item", "update_item", "delete_item", "batch_write_item", "transact_write_items"), "WRITE"),
}

# The standard logger: commands that open a store themselves do not show these lines.
_log = logging.getLogger(__name__)
R = TypeVar("R")
Failure = ClientError | BotoCoreError | ResponseParserError


class Fault(enum.Enum):
    """The class of a failed attempt, which decides about a retry."""

    THROTTLED = "throttled"  # Not applied; DynamoDB throttled it.
    CONTENDED = "contended"  # Not applied; another transaction holds an item.
    UNREACHED = "unreached"  # Not applied; the request was never sent.
    UNCERTAIN = "uncertain"  # Possibly applied; the response is missing.
    FINAL = "final"  # Not applied; a retry would fail as well.


class Refusal(msgspec.Struct, frozen=True):
    """An error response that is returned to the caller instead of raised.

    `items` maps the position of each write whose condition failed to its current item. `after_doubt` is set if an
    earlier attempt of the same call may have been applied.
    """

    code: str
    items: dict[int, Attributes | None]
    after_doubt: bool


# Unprocessed items have no error policy: they are retried until the deadline.
_UNPROCESSED: Final = FailurePolicy(ErrorCategory.TRANSIENT, sys.maxsize, 25, 100)


class Backoff:
    """Full-jitter backoff by the policy of each error, until a deadline.

    The deadline starts at construction and is shared by all calls with this backoff.
    """

    def __init__(self, clock: Clock, stats: StoreStats, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        self._clock = clock
        self._stats = stats
        self._began_at = clock.monotonic()
        self._retries: dict[FailurePolicy, int] = {}

    def pause(self, policy: FailurePolicy = _UNPROCESSED) -> bool:
        """Sleep before another attempt; return False if the deadline has passed or the policy allows no more."""
        left_seconds = self._began_at + self.deadline_seconds - self._clock.monotonic()
        retry = self._retries.get(policy, 0) + 1
        if left_seconds <= 0 or retry > policy.retries_max:
            return False
        self._retries[policy] = retry
        self._stats.retries += 1
        self._clock.sleep(min(policy.pause_seconds(retry), left_seconds))
        return True

    def spent(self) -> str:
        """Return the number of attempts and the elapsed time, for messages."""
        attempts = sum(self._retries.values()) + 1
        return f"{attempts} attempts in {self._clock.monotonic() - self._began_at:.2g} s"


class Calls:
    """Makes the calls of one store. A call ends at its deadline or at the latest one attempt after it.

    It ends earlier if an error has occurred as often as its policy in `error_policy` allows.
    """

    def __init__(
        self, clock: Clock, stats: StoreStats, deadline_seconds: float, observer: AttemptObserver | None = None
    ) -> None:
        self._clock = clock
        self._stats = stats
        self._deadline_seconds = deadline_seconds
        self._observer = observer

    def backoff(self, deadline_seconds: float | None = None) -> Backoff:
        """Return a backoff that several calls share, whose deadline is not later than the caller's. It starts now."""
        seconds = deadline_seconds or self._deadline_seconds
        caller_deadline = current_deadline()
        if caller_deadline is not None:
            seconds = min(seconds, max(0.0, caller_deadline - self._clock.monotonic()))
        return Backoff(self._clock, self._stats, seconds)

    def read(
        self, operation: Callable[..., R], request: Mapping[str, Any], about: str, backoff: Backoff | None = None
    ) -> R:
        """Make an idempotent call. `about` names the table or stream, for messages."""
        answer = self.ask(operation, request, about, refusals=(), backoff=backoff)
        assert not isinstance(answer, Refusal), "no refusals were requested"
        return answer

    def ask(
        self,
        operation: Callable[..., R],
        request: Mapping[str, Any],
        about: str,
        *,
        refusals: Collection[str],
        backoff: Backoff | None = None,
    ) -> R | Refusal:
        """Make an idempotent call and return a `Refusal` for the error codes in `refusals`."""
        return self._attempts(operation, request, about, refusals, backoff, is_write=False, repeatable=True)

    def write(
        self,
        operation: Callable[..., R],
        request: Mapping[str, Any],
        about: str,
        *,
        repeatable: bool = True,
    ) -> R | Refusal:
        """Make a write call and return a `Refusal` if a condition failed.

        Raises `OutcomeUnknownError` if it is unknown whether the write was applied: at the deadline, or after the first
        uncertain attempt if the write is not `repeatable`.
        """
        refusals = (CONDITION_FAILED, CANCELED)
        return self._attempts(operation, request, about, refusals, None, is_write=True, repeatable=repeatable)

    def _attempts(
        self,
        operation: Callable[..., R],
        request: Mapping[str, Any],
        about: str,
        refusals: Collection[str],
        backoff: Backoff | None,
        *,
        is_write: bool,
        repeatable: bool,
    ) -> R | Refusal:
        backoff = backoff or self.backoff()
        doubt = False
        capacity = _METERED.get(operation.__name__)
        if capacity is not None:
            request = {**request, "ReturnConsumedCapacity": "TOTAL"}
        while True:
            try:
                answer = operation(**request)
                if capacity is not None:
                    self._count_capacity(capacity, answer)
                return answer
            except (ClientError, BotoCoreError, ResponseParserError) as exc:
                if self._observer is not None:
                    self._observer.on_attempt_failed(exc)
                fault = classify(exc)
                if fault is Fault.FINAL and _code(exc) in refusals and (_code(exc) != CANCELED or _failed_items(exc)):
                    return Refusal(_code(exc), _failed_items(exc), doubt)
                doubt = doubt or (is_write and fault is Fault.UNCERTAIN)
                if fault is Fault.THROTTLED:
                    self._stats.count_throttle(operation.__name__, about)
                fields = {"operation": operation.__name__, "about": about, "error": _code(exc)}
                if fault is Fault.FINAL or (doubt and not repeatable) or not backoff.pause(policy_of(exc)):
                    if not is_write:
                        _log.info("dynamodb_read_failed", extra={**fields, "tried": backoff.spent()})
                    raise _translated(exc, fault, operation.__name__, about, backoff, doubt=doubt) from exc
                _log.info("retry_attempt", extra=fields)

    def _count_capacity(self, kind: str, answer: Any) -> None:  # noqa: ANN401 - a response of botocore
        consumed = answer.get("ConsumedCapacity") or []
        for each in consumed if isinstance(consumed, list) else [consumed]:
            self._stats.count_capacity(str(each.get("TableName", "")), kind, float(each.get("CapacityUnits") or 0.0))


def client_config(deadline_seconds: float) -> Config:
    """Return the botocore configuration of a store's clients."""
    return Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=min(CONNECT_SECONDS, deadline_seconds),
        # Half the deadline, so that a lost response leaves time for a second attempt.
        read_timeout=deadline_seconds / 2,
        max_pool_connections=CONNECTIONS_MAX,
        tcp_keepalive=True,
        # Requests are already validated, and validating each attribute again is slow.
        parameter_validation=False,
    )


def require_whole_answers(client: DynamoDBClient | DynamoDBStreamsClient) -> None:
    """Make a corrupt response fail the attempt. Idempotent per client.

    botocore treats an unreadable body as an empty response, which would look like a missing item.
    """
    client.meta.events.register("before-parse", _check_answer, unique_id="headgate-whole-answers")


def classify(exc: Failure) -> Fault:
    """Return the class of a failed attempt."""
    if isinstance(exc, ClientError):
        return _classify_answer(exc)
    if isinstance(exc, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError | SSLError):
        return Fault.UNREACHED
    # A corrupt response is as uncertain as a broken connection.
    return Fault.UNCERTAIN if isinstance(exc, HTTPClientError | ResponseParserError) else Fault.FINAL


def _check_answer(response_dict: Mapping[str, Any], **_: object) -> None:
    body, headers = response_dict["body"], response_dict["headers"]
    checksum = headers.get("x-amz-crc32")
    if checksum is not None and "content-encoding" not in headers:
        if zlib.crc32(body) != int(checksum):
            raise ResponseParserError("the response does not match its checksum")
    elif response_dict["status_code"] < 300:
        try:
            typed_decode.from_json(body, dict[str, msgspec.Raw])
        except msgspec.DecodeError as exc:
            raise ResponseParserError(f"the response is corrupt: {exc}") from exc


def _classify_answer(exc: ClientError) -> Fault:
    code = _code(exc)
    if code == CANCELED:
        codes = {reason.get("Code") for reason in _reasons(exc)}
        # A failed condition or an invalid member is final, whatever the other reasons are.
        if "ConditionalCheckFailed" in codes or codes & _VALIDATION:
            return Fault.FINAL
        return _classify_code(next((code for code in codes if code in _THROTTLES | _CONTENTION), ""))
    if exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400) >= 500 and code not in _THROTTLES:
        return Fault.UNCERTAIN
    return _classify_code(code)


def _classify_code(code: str) -> Fault:
    if code in _THROTTLES:
        return Fault.THROTTLED
    if code in _CONTENTION:
        return Fault.CONTENDED
    return Fault.UNCERTAIN if code in _SERVER_FAULTS else Fault.FINAL


def _translated(
    exc: Failure, fault: Fault, operation: str, about: str, backoff: Backoff, *, doubt: bool
) -> HeadgateError:
    """Return the Headgate error for a failed call."""
    if doubt:
        return OutcomeUnknownError(
            f"{about}: {operation} may or may not have been applied ({_reason(exc)}); read the item before you continue"
        )
    if fault is Fault.FINAL:
        return _final(exc, operation, about)
    spent = backoff.spent()
    if fault is Fault.THROTTLED:
        return ThrottledError(
            f"{about}: DynamoDB throttled {operation}: {spent} ({_reason(exc)}); send less, or raise the capacity"
        )
    if fault is Fault.CONTENDED:
        return StoreBusyError(f"{about}: other transactions held the items of {operation}: {spent}; try again")
    return StoreBusyError(
        f"{about}: no response from DynamoDB to {operation}: {spent} ({_reason(exc)}); check network and endpoint"
    )


def _final(exc: Failure, operation: str, about: str) -> HeadgateError:
    code = _code(exc)
    if code in _VALIDATION or code == CANCELED:
        return _invalid(_invalid_members(exc) or [_reason(exc)], operation, about)
    if code == NOT_FOUND:
        return StoreIOError(
            f"{about}: DynamoDB has no such table; create the tables, or correct the region, the prefix or the name"
        )
    if code in _NOT_ALLOWED or not isinstance(exc, ClientError):
        return StoreIOError(
            f"{about}: DynamoDB did not allow {operation} ({_reason(exc)}); check the credentials and their policy"
        )
    return StoreIOError(f"{about}: DynamoDB refused {operation}: {_reason(exc)}")


def _invalid(messages: list[str], operation: str, about: str) -> HeadgateError:
    reasons = "; ".join(messages)
    lowered = reasons.lower()
    if "item size" in lowered:
        return ItemTooLargeError(f"{about}: {reasons}; store the large part as a blob and its name in the item")
    if "transaction size limit" in lowered:
        return TransactionLimitError(f"{about}: {reasons}; split it")
    if any(sign in lowered for sign in _BAD_UPDATES):
        return InvalidItemError(f"{about}: the current item does not allow this update: {reasons}")
    return StoreIOError(f"{about}: DynamoDB refused {operation}: {reasons}")


def _code(exc: Failure) -> str:
    return str(exc.response.get("Error", {}).get("Code", "")) if isinstance(exc, ClientError) else ""


def _reason(exc: Failure) -> str:
    if not isinstance(exc, ClientError):
        return f"{type(exc).__name__}: {exc}"
    error = exc.response.get("Error", {})
    return f"{error.get('Code', 'unknown error')}: {error.get('Message', 'no message')}"


def _reasons(exc: ClientError) -> list[dict[str, Any]]:
    reasons: list[dict[str, Any]] = exc.response.get("CancellationReasons", [])  # type: ignore[assignment]
    return reasons


def _invalid_members(exc: Failure) -> list[str]:
    """Return DynamoDB's message for each invalid write of a transaction."""
    if not isinstance(exc, ClientError) or _code(exc) != CANCELED:
        return []
    return [
        f"write {position}: {reason.get('Message', reason['Code'])}"
        for position, reason in enumerate(_reasons(exc))
        if reason.get("Code") not in (None, "None", "ConditionalCheckFailed", *_THROTTLES, *_CONTENTION)
    ]


def _failed_items(exc: Failure) -> dict[int, Attributes | None]:
    """Return the position of each write whose condition failed, with its current item."""
    if not isinstance(exc, ClientError) or _code(exc) not in (CONDITION_FAILED, CANCELED):
        return {}
    if _code(exc) == CONDITION_FAILED:
        item: Attributes | None = exc.response.get("Item")  # type: ignore[assignment]
        return {0: item}
    return {
        position: reason.get("Item")
        for position, reason in enumerate(_reasons(exc))
        if reason.get("Code") == "ConditionalCheckFailed"
    }
