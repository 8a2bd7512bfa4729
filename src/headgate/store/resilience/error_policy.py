"""Failures: what each error means, whether and how often a retry is worth it, and how many a minute are too many.

One table for our own errors and for the codes of AWS. Whether a retry is *safe* is not decided here: that depends on
whether the failed attempt may have been applied, which `dynamodb_calls` knows.
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


class Category(enum.StrEnum):
    """What is to be done about a failure."""

    TRANSIENT = "TRANSIENT"  # Try again after a pause.
    CLIENT = "CLIENT"  # Tell the caller, who must change something.
    SYSTEM = "SYSTEM"  # Wake someone, and serve what can be served.
    DATA = "DATA"  # Note it, leave it out, and go on.


class FailurePolicy(msgspec.Struct, frozen=True):
    """How one kind of failure is dealt with. More than `alerts_above` of them a minute are too many."""

    category: Category
    retries_max: int
    base_ms: int
    alerts_above: int

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may well succeed a little later."""
        return self.retries_max > 0

    @property
    def blames_the_backend(self) -> bool:
        """Whether it says that the backend is ill, and not that the caller or the data is."""
        return self.category in (Category.TRANSIENT, Category.SYSTEM)

    def longest_pause_seconds(self, retry: int) -> float:
        """Return the upper bound of the pause before the `retry`-th retry, counted from 1."""
        # The exponent is bounded so that a patient caller does not compute with huge numbers.
        return min((self.base_ms << min(retry - 1, 20)) / 1000, PAUSE_SECONDS_MAX)

    def pause_seconds(self, retry: int, draw: Callable[[], float] = random.random) -> float:
        """Return a pause of full jitter: anything between nothing and the upper bound."""
        return draw() * self.longest_pause_seconds(retry)


THROTTLED: Final = FailurePolicy(Category.TRANSIENT, 5, 100, 100)
# Another transaction holds an item: it will let go within milliseconds.
CONTENDED: Final = FailurePolicy(Category.TRANSIENT, 20, 25, 100)
# No connection, no answer, or half of one.
DISCONNECTED: Final = FailurePolicy(Category.TRANSIENT, 20, 25, 10)
CONFLICT: Final = FailurePolicy(Category.CLIENT, 0, 0, 1000)
INVALID: Final = FailurePolicy(Category.CLIENT, 0, 0, 10)
NOT_ALLOWED: Final = FailurePolicy(Category.SYSTEM, 0, 0, 5)
MISCONFIGURED: Final = FailurePolicy(Category.SYSTEM, 0, 0, 5)
INTERNAL: Final = FailurePolicy(Category.SYSTEM, 3, 500, 10)
UNAVAILABLE: Final = FailurePolicy(Category.SYSTEM, 5, 1000, 5)
ABSENT: Final = FailurePolicy(Category.DATA, 0, 0, 100)
BAD_DATA: Final = FailurePolicy(Category.DATA, 0, 0, 0)
FATAL: Final = FailurePolicy(Category.SYSTEM, 0, 0, 0)
# A failure that our own guards made: retrying at once would only meet the same guard.
REFUSED: Final = FailurePolicy(Category.TRANSIENT, 0, 0, 1000)
UNKNOWN: Final = FailurePolicy(Category.SYSTEM, 3, 100, 10)
# An exception that is neither ours nor AWS's is a mistake in the program, which a retry does not mend.
MISTAKE: Final = FailurePolicy(Category.SYSTEM, 0, 0, 0)


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

# The nearest ancestor counts, so that a new error class has the policy of its family until it is given its own.
BY_CLASS: Final[Mapping[type[HeadgateError], FailurePolicy]] = {
    HeadgateError: UNKNOWN,
    UserError: INVALID,
    UnauthenticatedError: FailurePolicy(Category.CLIENT, 0, 0, 100),
    ForbiddenError: FailurePolicy(Category.CLIENT, 0, 0, 100),
    NotFoundError: ABSENT,
    DatasetNotFoundError: ABSENT,
    ConflictError: CONFLICT,
    # The connection broke: the caller must read before it goes on, and the backend is to blame.
    OutcomeUnknownError: FailurePolicy(Category.SYSTEM, 0, 0, 10),
    TransientError: FailurePolicy(Category.TRANSIENT, 3, 100, 10),
    ThrottledError: THROTTLED,
    StoreBusyError: DISCONNECTED,
    BreakerOpenError: REFUSED,
    ServerBusyError: REFUSED,
    NotAdmittedError: REFUSED,
    DeadlineExceededError: FailurePolicy(Category.TRANSIENT, 0, 0, 100),
    FatalError: FATAL,
    CorruptionError: FATAL,
    # Whoever goes on using a store that was closed is at fault, not the backend.
    StoreClosedError: INVALID,
    StreamTrimmedError: BAD_DATA,
    DeterminismError: BAD_DATA,
    BadOutputError: BAD_DATA,
}


def codes_of(policy: FailurePolicy) -> frozenset[str]:
    """Return the codes of AWS that are dealt with so."""
    return frozenset(code for code, found in BY_CODE.items() if found is policy)


def policy_of_code(code: str, *, http_status: int = 400, reasons: Collection[str] = ()) -> FailurePolicy:
    """Return the policy for an error code of AWS. For a cancelled transaction it is that of its gravest reason.

    A code that nobody knows is the server's fault or the caller's, as the HTTP status says.
    """
    if code == CANCELED:
        return _gravest([BY_CODE[reason] for reason in reasons if reason in BY_CODE])
    found = BY_CODE.get(code, INVALID)
    if found.is_retryable or http_status < _STATUS_SERVER_FAULT:
        return found
    return UNAVAILABLE if http_status == _STATUS_UNAVAILABLE else UNKNOWN


def policy_of(error: BaseException) -> FailurePolicy:
    """Return the policy for an exception: one of ours by its class, one of botocore's by its code or its name."""
    if isinstance(error, HeadgateError):
        return next(BY_CLASS[kind] for kind in type(error).__mro__ if kind in BY_CLASS)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        reasons = [str(reason.get("Code")) for reason in response.get("CancellationReasons", [])]
        return policy_of_code(str(response["Error"].get("Code", "")), http_status=status, reasons=reasons)
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((BY_CODE[name] for name in names if name in BY_CODE), MISTAKE)


def _answered_code(error: BaseException) -> str | None:
    """Return the code in an error that is an answer of AWS, or None for one that is none."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping) or "Error" not in response:
        return None
    code = str(response["Error"].get("Code", ""))
    return code if code in BY_CODE or code == CANCELED else UNKNOWN_CODE


def _gravest(found: list[FailurePolicy]) -> FailurePolicy:
    """Return the one that decides: what a retry cannot cure stands, whatever else held the transaction up."""
    if not found:
        return INVALID
    return min(found, key=lambda policy: (policy.is_retryable, -policy.base_ms))


class TooMany(msgspec.Struct, frozen=True):
    """More failures of one kind in the last minute than its policy allows."""

    code: str
    category: Category
    alerts_above: int


class ErrorRates:
    """Counts failures by kind over the last minute, and says when one kind passes its threshold.

    It says so once, and again only after the rate had gone back below. Safe to use from many threads; `alarm` is
    called in the thread that met the failure, and must neither block nor raise.
    """

    def __init__(self, clock: Clock, alarm: Callable[[TooMany], None]) -> None:
        self._clock = clock
        self._alarm = alarm
        self._lock = threading.Lock()
        # Of each kind no more moments than are needed to know that there were too many.
        self._moments: dict[str, deque[float]] = {}
        self._raised: set[str] = set()

    def record(self, error: BaseException) -> None:
        """Count a failure: one of ours under its code, an answer of AWS under its own, another under its class.

        Codes of AWS that nobody knows are counted together.
        """
        code = error.code if isinstance(error, HeadgateError) else _answered_code(error) or type(error).__name__
        self.count(code, policy_of(error))

    def count(self, code: str, policy: FailurePolicy) -> None:
        """Count a failure under a name and a policy."""
        now = self._clock.monotonic()
        with self._lock:
            moments = self._moments.get(code)
            if moments is None:
                moments = self._moments[code] = deque(maxlen=policy.alerts_above + 1)
            moments.append(now)
            is_over = len(moments) == moments.maxlen and now - moments[0] < _WINDOW_SECONDS
            is_news = is_over and code not in self._raised
            (self._raised.add if is_over else self._raised.discard)(code)
        if is_news:
            self._alarm(TooMany(code, policy.category, policy.alerts_above))

    def per_minute(self) -> dict[str, int]:
        """Return how many of each kind the last minute had, counted no further than one above the threshold."""
        since = self._clock.monotonic() - _WINDOW_SECONDS
        with self._lock:
            counted = {code: sum(at > since for at in moments) for code, moments in self._moments.items()}
        return {code: count for code, count in counted.items() if count}
