"""Failures: every error has the policy it should have, retries follow it, and too many a minute are reported once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from headgate import errors
from headgate.clock import VirtualClock
from headgate.errors import (
    ConflictError,
    HeadgateError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    StoreIOError,
    ThrottledError,
    TransientError,
    UserError,
    VersionConflictError,
)
from headgate.store.dynamodb.client import Calls, Refusal
from headgate.store.resilience import error_policy as failures
from headgate.store.resilience.error_policy import (
    BY_CODE,
    PAUSE_SECONDS_MAX,
    ErrorCategory,
    ErrorRateExceeded,
    ErrorRates,
    FailurePolicy,
    policy_of,
    policy_of_code,
)
from headgate.store.stats import StoreStats


class PassingClock(VirtualClock):
    """A clock on which time passes while one sleeps, and that remembers for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.advance(seconds)


def answer(code: str, status: int = 400, reasons: tuple[str, ...] = ()) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if reasons:
        response["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    return ClientError(response, "PutItem")


# The table.


@pytest.mark.parametrize(
    ("code", "category", "retries", "base_ms", "alerts_above"),
    [
        ("ProvisionedThroughputExceededException", "TRANSIENT", 5, 100, 100),
        ("ConditionalCheckFailedException", "CLIENT", 0, 0, 1000),
        ("ValidationException", "CLIENT", 0, 0, 10),
        ("InternalServerError", "SYSTEM", 3, 500, 10),
        ("ServiceUnavailable", "SYSTEM", 5, 1000, 5),
        ("ThrottlingException", "TRANSIENT", 5, 100, 100),
        ("RequestLimitExceeded", "TRANSIENT", 5, 100, 100),
        ("TransactionConflictException", "TRANSIENT", 20, 25, 100),
        ("TransactionInProgressException", "TRANSIENT", 20, 25, 100),
        ("ResourceNotFoundException", "SYSTEM", 0, 0, 5),
        ("ItemCollectionSizeLimitExceededException", "CLIENT", 0, 0, 10),
        ("AccessDeniedException", "SYSTEM", 0, 0, 5),
    ],
)
def test_policy__code_of_aws__is_the_one_of_the_table(
    code: str, category: str, retries: int, base_ms: int, alerts_above: int
) -> None:
    policy = policy_of(answer(code))

    assert policy == FailurePolicy(ErrorCategory(category), retries, base_ms, alerts_above)
    assert policy.is_retryable is (retries > 0)


def test_policy__dataset_not_found__is_a_matter_of_the_data() -> None:
    assert policy_of(errors.DatasetNotFoundError("x")) == FailurePolicy(ErrorCategory.DATA, 0, 0, 100)


def test_policy__unknown_code__by_whose_fault_the_status_says_it_is() -> None:
    assert policy_of_code("NeverHeardOf", http_status=500) == FailurePolicy(ErrorCategory.SYSTEM, 3, 100, 10)
    assert policy_of_code("", http_status=503) == policy_of_code("ServiceUnavailable")
    assert policy_of_code("NeverHeardOf", http_status=400).category is ErrorCategory.CLIENT


def test_policy__mistake_of_the_program__is_not_retried() -> None:
    assert not policy_of(TypeError("no")).is_retryable
    assert policy_of(TypeError("no")).category is ErrorCategory.SYSTEM


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        (("None", "ConditionalCheckFailed"), "ConditionalCheckFailedException"),
        (("TransactionConflict", "ConditionalCheckFailed"), "ConditionalCheckFailedException"),
        (("TransactionConflict", "None"), "TransactionConflictException"),
        (("ThrottlingError", "TransactionConflict"), "ThrottlingException"),
        (("ItemCollectionSizeLimitExceeded",), "ValidationException"),
        (("None",), "ValidationException"),
    ],
)
def test_policy__cancelled_transaction__is_that_of_the_gravest_reason(reasons: tuple[str, ...], code: str) -> None:
    assert policy_of(answer(failures.CANCELED, reasons=reasons)) is BY_CODE[code]


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="x"),
        ConnectTimeoutError(endpoint_url="x"),
        ReadTimeoutError(endpoint_url="x"),
    ],
)
def test_policy__no_connection__is_retried(error: Exception) -> None:
    assert policy_of(error) is failures.DISCONNECTED


ALL_ERRORS = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, HeadgateError) and found is not HeadgateError
]


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_policy__each_of_our_errors__is_in_keeping_with_its_family(kind: type[HeadgateError]) -> None:
    policy = policy_of(kind.__new__(kind))

    if issubclass(kind, TransientError):
        assert policy.category is ErrorCategory.TRANSIENT
    elif issubclass(kind, UserError | ConflictError):
        assert not policy.is_retryable
        assert policy.is_backend_failure is (kind is OutcomeUnknownError)
    else:
        assert not policy.is_retryable, "what is fatal is not retried"


def test_policy__descendant__has_its_family_s() -> None:
    assert policy_of(VersionConflictError("x")) is failures.CONFLICT
    assert not policy_of(StoreClosedError("x")).is_backend_failure


def test_pause__grows_with_full_jitter__up_to_the_cap() -> None:
    policy = BY_CODE["ThrottlingException"]

    assert [policy.pause_seconds(retry, lambda: 1.0) for retry in (1, 2, 3, 4, 5, 6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.pause_seconds(4, lambda: 0.0) == 0.0
    assert policy.pause_seconds(10**9, lambda: 1.0) == PAUSE_SECONDS_MAX


# Retries.


class Wire:
    """An operation that fails as instructed, and calls that are made on it."""

    def __init__(self, deadline_seconds: float = 1000.0) -> None:
        self.clock = PassingClock()
        self.stats = StoreStats()
        self.calls = Calls(self.clock, self.stats, deadline_seconds)
        self.attempts = 0

    def read(self, failing: Callable[[int], Exception | None]) -> str:
        def operation() -> str:
            self.attempts += 1
            error = failing(self.attempts)
            if error is not None:
                raise error
            return "answer"

        return self.calls.read(operation, {}, "table t")


@pytest.mark.parametrize(
    ("error", "attempts", "raised"),
    [
        (answer("ProvisionedThroughputExceededException"), 6, ThrottledError),
        (answer("InternalServerError", 500), 4, StoreBusyError),
        (answer("ServiceUnavailable", 503), 6, StoreBusyError),
        (answer("NeverHeardOf", 500), 4, StoreBusyError),
        (answer("AccessDeniedException"), 1, StoreIOError),
        (EndpointConnectionError(endpoint_url="x"), 21, StoreBusyError),
    ],
)
def test_retry__always_the_same_error__as_often_as_its_own_policy_says(
    error: Exception, attempts: int, raised: type[HeadgateError]
) -> None:
    wire = Wire()
    policy = policy_of(error)

    with pytest.raises(raised, match=f"{attempts} attempts" if attempts > 1 else "credentials"):
        wire.read(lambda _: error)

    assert wire.attempts == attempts
    for retry, pause in enumerate(wire.clock.pauses, 1):
        assert 0 <= pause <= policy.longest_pause_seconds(retry)


def test_retry__errors_of_several_kinds__each_has_retries_of_its_own() -> None:
    wire = Wire()
    throttle, fault = answer("ThrottlingException"), answer("InternalServerError", 500)
    script = [throttle] * 5 + [fault] * 3 + [None]

    assert wire.read(lambda attempt: script[attempt - 1]) == "answer"

    assert wire.stats.retries == 8
    assert wire.stats.throttles == 5


def test_retry__deadline_before_the_policy_is_exhausted__ends_at_the_deadline() -> None:
    wire = Wire(deadline_seconds=0.5)

    with pytest.raises(StoreBusyError):
        wire.read(lambda _: EndpointConnectionError(endpoint_url="x"))

    assert wire.clock.monotonic() == pytest.approx(0.5)
    assert 1 < wire.attempts <= 21


def test_retry__conflict__is_the_caller_s_at_once() -> None:
    wire = Wire()

    def operation() -> str:
        raise answer("ConditionalCheckFailedException")

    assert isinstance(wire.calls.write(operation, {}, "table t"), Refusal)
    assert wire.clock.pauses == []


# Rates.


class Watch:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.exceeded: list[ErrorRateExceeded] = []
        self.rates = ErrorRates(self.clock, self.exceeded.append)

    def meet(self, error: BaseException, times: int, seconds: float = 0.0) -> None:
        for _ in range(times):
            self.clock.advance(seconds / times)
            self.rates.record(error)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_rates__at_the_threshold__nothing_is_said_and_one_more_is_reported(watch: Watch) -> None:
    watch.meet(ThrottledError("x"), 100, seconds=30)
    assert watch.exceeded == []

    watch.rates.record(ThrottledError("x"))

    assert watch.exceeded == [ErrorRateExceeded("throttled", ErrorCategory.TRANSIENT, 100)]


def test_rates__goes_on__is_reported_once_and_again_after_a_calm_minute(watch: Watch) -> None:
    watch.meet(ThrottledError("x"), 500, seconds=30)
    assert len(watch.exceeded) == 1

    watch.clock.advance(61)
    watch.meet(ThrottledError("x"), 100, seconds=30)
    assert len(watch.exceeded) == 1

    watch.meet(ThrottledError("x"), 100, seconds=1)
    assert len(watch.exceeded) == 2


def test_rates__burst_over_the_turn_of_a_minute__is_seen(watch: Watch) -> None:
    watch.clock.advance(59)
    watch.meet(ThrottledError("x"), 75)
    watch.clock.advance(2)
    watch.meet(ThrottledError("x"), 75)

    assert len(watch.exceeded) == 1


def test_rates__slow_trickle__is_never_too_many(watch: Watch) -> None:
    watch.meet(ThrottledError("x"), 1000, seconds=610)

    assert watch.exceeded == []
    assert 95 <= watch.rates.per_minute()["throttled"] <= 101


def test_rates__kinds__do_not_add_up(watch: Watch) -> None:
    watch.meet(ThrottledError("x"), 90)
    watch.meet(ConflictError("x"), 900)

    assert watch.exceeded == []
    assert watch.rates.per_minute() == {"throttled": 90, "conflict": 900}


def test_rates__fatal__is_reported_at_the_first(watch: Watch) -> None:
    watch.rates.record(StoreIOError("x"))

    assert watch.exceeded == [ErrorRateExceeded("store_io", ErrorCategory.SYSTEM, 0)]


def test_rates__codes_of_aws__unknown_ones_together(watch: Watch) -> None:
    for number in range(11):
        watch.rates.record(answer(f"Strange{number}", status=500))
        watch.rates.record(answer("ServiceUnavailable", status=503))

    assert {result.code for result in watch.exceeded} == {"unknown", "ServiceUnavailable"}


def test_rates__wall_clock_set_back__changes_nothing(watch: Watch) -> None:
    watch.meet(ThrottledError("x"), 100)
    watch.clock.step(-86_400)
    watch.clock.advance(61)
    watch.rates.record(ThrottledError("x"))

    assert watch.exceeded == []
