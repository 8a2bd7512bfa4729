"""Error policies: the category, retry policy and alert threshold of every Headgate error and AWS error code.

Whether a retry is *safe* is not decided here: that depends on whether the failed attempt may have been applied, which
`store.dynamodb.client` knows.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.errors import (
    BadOutputError,
    BreakerOpenError,
    ConflictError,
    CorruptionError,
    DatasetNotFoundError,
    DeadlineExceededError,
    DeterminismError,
    FatalError,
    ForbiddenError,
    HeadgateError,
    NotAdmittedError,
    NotFoundError,
    OutcomeUnknownError,
    ServerBusyError,
    StoreBusyError,
    StoreClosedError,
    StoreUnavailableError,
    StreamTrimmedError,
    ThrottledError,
    TransientError,
    UnauthenticatedError,
    UserError,
)

PAUSE_SECONDS_MAX: Final = 1.0
UNKNOWN_CODE: Final = "unknown"
CANCELED: Final = "TransactionCanceledException"
_WINDOW_SECONDS: Final = 60.0
_STATUS_SERVER_FAULT: Final = 500
_STATUS_UNAVAILABLE: Final = 503


class ErrorCategory(enum.StrEnum):
    """How a failure is handled."""

    TRANSIENT = "TRANSIENT"  # Retry after a pause.
    CLIENT = "CLIENT"  # Return it to the caller, who has to change the request.
    SYSTEM = "SYSTEM"  # Alert, and degrade.
    DATA = "DATA"  # Log it, skip the item, and continue.


class FailurePolicy(msgspec.Struct, frozen=True):
    """The retry policy and alert threshold of one kind of failure. `alerts_above` is per minute."""

    category: ErrorCategory
    retries_max: int
    base_ms: int
    alerts_above: int

    @property
    def is_retryable(self) -> bool:
        """Whether the same call is likely to succeed later."""
        return self.retries_max > 0

    @property
    def is_backend_failure(self) -> bool:
        """Whether the backend failed, rather than the caller or the data."""
        return self.category in (ErrorCategory.TRANSIENT, ErrorCategory.SYSTEM)

    def longest_pause_seconds(self, retry: int) -> float:
        """Return the upper bound of the pause before the `retry`-th retry, counted from 1."""
        # The exponent is bounded to avoid huge integers.
        return min((self.base_ms << min(retry - 1, 20)) / 1000, PAUSE_SECONDS_MAX)

    def pause_seconds(self, retry: int, draw: Callable[[], float] = random.random) -> float:
        """Return a pause with full jitter: between 0 and the upper bound."""
        return draw() * self.longest_pause_seconds(retry)


THROTTLED: Final = FailurePolicy(ErrorCategory.TRANSIENT, 5, 100, 100)
# Another transaction holds an item, for milliseconds.
CONTENDED: Final = FailurePolicy(ErrorCategory.TRANSIENT, 20, 25, 100)
# No connection, no response, or a truncated one.
DISCONNECTED: Final = FailurePolicy(ErrorCategory.TRANSIENT, 20, 25, 10)
CONFLICT: Final = FailurePolicy(ErrorCategory.CLIENT, 0, 0, 1000)
INVALID: Final = FailurePolicy(ErrorCategory.CLIENT, 0, 0, 10)
NOT_ALLOWED: Final = FailurePolicy(ErrorCategory.SYSTEM, 0, 0, 5)
MISCONFIGURED: Final = FailurePolicy(ErrorCategory.SYSTEM, 0, 0, 5)
INTERNAL: Final = FailurePolicy(ErrorCategory.SYSTEM, 3, 500, 10)
UNAVAILABLE: Final = FailurePolicy(ErrorCategory.SYSTEM, 5, 1000, 5)
ABSENT: Final = FailurePolicy(ErrorCategory.DATA, 0, 0, 100)
BAD_DATA: Final = FailurePolicy(ErrorCategory.DATA, 0, 0, 0)
FATAL: Final = FailurePolicy(ErrorCategory.SYSTEM, 0, 0, 0)
# Refused by a circuit breaker or limiter: an immediate retry would be refused as well.
REFUSED: Final = FailurePolicy(ErrorCategory.TRANSIENT, 0, 0, 1000)
UNKNOWN: Final = FailurePolicy(ErrorCategory.SYSTEM, 3, 100, 10)
# An exception of neither Headgate nor AWS is a bug, which a retry does not fix.
BUG: Final = FailurePolicy(ErrorCategory.SYSTEM, 0, 0, 0)


def _codes(policy: FailurePolicy, *codes: str) -> dict[str, FailurePolicy]:
    return dict.fromkeys(codes, policy)


BY_CODE: Final[Mapping[str, FailurePolicy]] = {
    **_codes(
        THROTTLED,
        "LimitExceededException", "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException",
        "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "SlowDown", "Throttling",
        "ThrottlingError", "ThrottlingException", "TooManyRequestsException",
    ),
    **_codes(
        CONTENDED,
        "ReplicatedWriteConflictException", "TransactionConflict", "TransactionConflictException",
        "TransactionInProgressException",
    ),
    **_codes(
        DISCONNECTED,
        "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError", "HTTPClientError",
        "ProxyConnectionError", "ReadTimeoutError", "RequestTimeout", "RequestTimeoutException", "ResponseParserError",
        "SSLError",
    ),
    **_codes(CONFLICT, "ConditionalCheckFailed", "ConditionalCheckFailedException", "DuplicateItem"),
    **_codes(
        INVALID,
        "IdempotentParameterMismatchException", "ItemCollectionSizeLimitExceeded",
        "ItemCollectionSizeLimitExceededException", "SerializationException", "ValidationError", "ValidationException",
    ),
    **_codes(
        NOT_ALLOWED,
        "AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException", "IncompleteSignature",
        "InvalidClientTokenId", "InvalidSignatureException", "MissingAuthenticationToken",
        "MissingAuthenticationTokenException", "UnrecognizedClientException",
    ),
    **_codes(MISCONFIGURED, "ResourceInUseException", "ResourceNotFoundException", "TableNotFoundException"),
    **_codes(INTERNAL, "InternalFailure", "InternalServerError"),
    **_codes(UNAVAILABLE, "ServiceUnavailable", "ServiceUnavailableException"),
}  # fmt: skip

# The nearest ancestor in the table counts, so that a new error class has the policy of its family.
BY_CLASS: Final[Mapping[type[HeadgateError], FailurePolicy]] = {
    HeadgateError: UNKNOWN,
    UserError: INVALID,
    UnauthenticatedError: FailurePolicy(ErrorCategory.CLIENT, 0, 0, 100),
    ForbiddenError: FailurePolicy(ErrorCategory.CLIENT, 0, 0, 100),
    NotFoundError: ABSENT,
    DatasetNotFoundError: ABSENT,
    ConflictError: CONFLICT,
    # The connection broke, which is a backend failure; the caller must read before it continues.
    OutcomeUnknownError: FailurePolicy(ErrorCategory.SYSTEM, 0, 0, 10),
    TransientError: FailurePolicy(ErrorCategory.TRANSIENT, 3, 100, 10),
    ThrottledError: THROTTLED,
    StoreBusyError: DISCONNECTED,
    BreakerOpenError: REFUSED,
    ServerBusyError: REFUSED,
    # An operator has to remove the cause.
    StoreUnavailableError: FailurePolicy(ErrorCategory.TRANSIENT, 0, 0, 0),
    NotAdmittedError: REFUSED,
    DeadlineExceededError: FailurePolicy(ErrorCategory.TRANSIENT, 0, 0, 100),
    FatalError: FATAL,
    CorruptionError: FATAL,
    # Using a closed store is a fault of the caller, not of the backend.
    StoreClosedError: INVALID,
    StreamTrimmedError: BAD_DATA,
    DeterminismError: BAD_DATA,
    BadOutputError: BAD_DATA,
}


def codes_of(policy: FailurePolicy) -> frozenset[str]:
    """Return the AWS error codes with this policy."""
    return frozenset(code for code, each in BY_CODE.items() if each is policy)


def policy_of_code(code: str, *, http_status: int = 400, reasons: Collection[str] = ()) -> FailurePolicy:
    """Return the policy of an AWS error code; for a cancelled transaction, that of its most severe reason.

    An unknown code is a server or client fault by its HTTP status.
    """
    if code == CANCELED:
        return _most_severe([BY_CODE[reason] for reason in reasons if reason in BY_CODE])
    policy = BY_CODE.get(code, INVALID)
    if policy.is_retryable or http_status < _STATUS_SERVER_FAULT:
        return policy
    return UNAVAILABLE if http_status == _STATUS_UNAVAILABLE else UNKNOWN


def policy_of(error: BaseException) -> FailurePolicy:
    """Return the policy of an exception: Headgate's by class, botocore's by error code or class name."""
    if isinstance(error, HeadgateError):
        return next(BY_CLASS[kind] for kind in type(error).__mro__ if kind in BY_CLASS)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        reasons = [str(reason.get("Code")) for reason in response.get("CancellationReasons", [])]
        return policy_of_code(str(response["Error"].get("Code", "")), http_status=status, reasons=reasons)
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((BY_CODE[name] for name in names if name in BY_CODE), BUG)


def _answered_code(error: BaseException) -> str | None:
    """Return the error code of an AWS response, or None if the error is not one."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping) or "Error" not in response:
        return None
    code = str(response["Error"].get("Code", ""))
    return code if code in BY_CODE or code == CANCELED else UNKNOWN_CODE


def _most_severe(policies: list[FailurePolicy]) -> FailurePolicy:
    """Return the deciding policy: one that is not retryable wins."""
    if not policies:
        return INVALID
    return min(policies, key=lambda policy: (policy.is_retryable, -policy.base_ms))


class ErrorRateExceeded(msgspec.Struct, frozen=True):
    """One kind of failure exceeded its alert threshold in the last minute."""

    code: str
    category: ErrorCategory
    alerts_above: int


class ErrorRates:
    """Counts failures by kind over the last minute and raises an alarm when one kind exceeds its threshold.

    The alarm is raised once, and again only after the rate has fallen below the threshold. Thread-safe; `alarm` is
    called in the thread of the failure and must neither block nor raise.
    """

    def __init__(self, clock: Clock, alarm: Callable[[ErrorRateExceeded], None]) -> None:
        self._clock = clock
        self._alarm = alarm
        self._lock = threading.Lock()
        # The latest failure times of each kind, as many as the threshold needs.
        self._failure_times: dict[str, deque[float]] = {}
        self._raised: set[str] = set()

    def record(self, error: BaseException) -> None:
        """Count a failure under its error code or AWS code, or else under its class name.

        Unknown AWS codes are counted together.
        """
        code = error.code if isinstance(error, HeadgateError) else _answered_code(error) or type(error).__name__
        self.count(code, policy_of(error))

    def count(self, code: str, policy: FailurePolicy) -> None:
        """Count a failure under a code with a policy."""
        now = self._clock.monotonic()
        with self._lock:
            times = self._failure_times.get(code)
            if times is None:
                times = self._failure_times[code] = deque(maxlen=policy.alerts_above + 1)
            times.append(now)
            is_over = len(times) == times.maxlen and now - times[0] < _WINDOW_SECONDS
            is_new = is_over and code not in self._raised
            (self._raised.add if is_over else self._raised.discard)(code)
        if is_new:
            self._alarm(ErrorRateExceeded(code, policy.category, policy.alerts_above))

    def per_minute(self) -> dict[str, int]:
        """Return the failures of each kind in the last minute, capped at one above the threshold."""
        since = self._clock.monotonic() - _WINDOW_SECONDS
        with self._lock:
            counted = {code: sum(at > since for at in times) for code, times in self._failure_times.items()}
        return {code: count for code, count in counted.items() if count}
