"""The error tree: families, stable codes, and what each protocol makes of them."""

from __future__ import annotations

import http
import inspect
import re

import grpc
import pytest

from headgate import errors
from headgate.errors import ConflictError, FatalError, HeadgateError, TransientError, UserError

# Clients match on these: a line may be added, never changed.
STABLE = {
    # class: (code, HTTP status, gRPC status, exit code)
    "HeadgateError": ("headgate", 500, "INTERNAL", 70),
    "UserError": ("user", 400, "INVALID_ARGUMENT", 2),
    "SettingsError": ("bad_setting", 400, "INVALID_ARGUMENT", 2),
    "InvalidItemError": ("invalid_item", 400, "INVALID_ARGUMENT", 2),
    "ItemTooLargeError": ("item_too_large", 413, "INVALID_ARGUMENT", 2),
    "TransactionLimitError": ("transaction_limit", 400, "INVALID_ARGUMENT", 2),
    "CursorError": ("bad_cursor", 400, "INVALID_ARGUMENT", 2),
    "SignatureError": ("bad_signature", 400, "INVALID_ARGUMENT", 2),
    "ForeignFileError": ("foreign_file", 400, "INVALID_ARGUMENT", 2),
    "InvalidIdError": ("bad_id", 400, "INVALID_ARGUMENT", 2),
    "InvalidPayloadError": ("bad_payload", 400, "INVALID_ARGUMENT", 2),
    "SealedPayloadError": ("sealed_payload", 400, "INVALID_ARGUMENT", 2),
    "PayloadTooLargeError": ("payload_too_large", 413, "INVALID_ARGUMENT", 2),
    "InvalidScheduleError": ("bad_schedule", 400, "INVALID_ARGUMENT", 2),
    "DefinitionError": ("bad_definition", 400, "INVALID_ARGUMENT", 2),
    "WorkflowViolationError": ("workflow_violation", 400, "INVALID_ARGUMENT", 2),
    "KeyReusedError": ("idempotency_key_reused", 422, "INVALID_ARGUMENT", 2),
    "UnknownSensorError": ("unknown_sensor", 400, "INVALID_ARGUMENT", 2),
    "QueryLimitError": ("query_limit", 400, "INVALID_ARGUMENT", 2),
    "UnauthenticatedError": ("unauthenticated", 401, "UNAUTHENTICATED", 2),
    "ForbiddenError": ("forbidden", 403, "PERMISSION_DENIED", 2),
    "ApprovalRequiredError": ("approval_required", 403, "PERMISSION_DENIED", 2),
    "DatasetNotFoundError": ("dataset_not_found", 404, "NOT_FOUND", 4),
    "VersionConflictError": ("version_conflict", 409, "ABORTED", 3),
    "PreconditionFailedError": ("precondition_failed", 412, "FAILED_PRECONDITION", 3),
    "AlreadyExistsError": ("already_exists", 409, "ALREADY_EXISTS", 3),
    "IllegalTransitionError": ("illegal_transition", 409, "FAILED_PRECONDITION", 3),
    "BreakerOpenError": ("breaker_open", 503, "UNAVAILABLE", 75),
    "StillRunningError": ("still_running", 409, "ABORTED", 75),
    "DeadlineExceededError": ("deadline_exceeded", 504, "DEADLINE_EXCEEDED", 75),
    "NotFoundError": ("not_found", 404, "NOT_FOUND", 4),
    "UnknownWorkflowError": ("unknown_workflow", 404, "NOT_FOUND", 4),
    "ConflictError": ("conflict", 409, "ABORTED", 3),
    "AlreadyStartedError": ("already_started", 409, "ABORTED", 3),
    "ExecutionClosedError": ("execution_closed", 409, "ABORTED", 3),
    "StaleClaimError": ("stale_claim", 409, "ABORTED", 3),
    "StuckExecutionError": ("execution_stuck", 409, "ABORTED", 5),
    "BadOutputError": ("bad_output", 500, "INTERNAL", 70),
    "DeterminismError": ("nondeterministic", 500, "INTERNAL", 70),
    "OutcomeUnknownError": ("outcome_unknown", 409, "ABORTED", 3),
    "TokenReusedError": ("token_reused", 409, "ABORTED", 3),
    "TransientError": ("transient", 503, "UNAVAILABLE", 75),
    "ServerBusyError": ("server_busy", 503, "UNAVAILABLE", 75),
    "NotReadyError": ("not_ready", 503, "UNAVAILABLE", 75),
    "RateLimitedError": ("rate_limited", 429, "RESOURCE_EXHAUSTED", 75),
    "IntakeEndedError": ("intake_ended", 503, "UNAVAILABLE", 75),
    "NotAdmittedError": ("not_admitted", 503, "UNAVAILABLE", 75),
    "QueryTimeoutError": ("query_timeout", 503, "UNAVAILABLE", 75),
    "StoreBusyError": ("store_busy", 503, "UNAVAILABLE", 75),
    "ThrottledError": ("throttled", 429, "RESOURCE_EXHAUSTED", 75),
    "FatalError": ("fatal", 500, "INTERNAL", 70),
    "CorruptionError": ("corruption", 500, "DATA_LOSS", 70),
    "StoreFullError": ("store_full", 507, "RESOURCE_EXHAUSTED", 70),
    "ReadOnlyStoreError": ("store_read_only", 503, "UNAVAILABLE", 70),
    "StoreUnavailableError": ("store_unavailable", 503, "UNAVAILABLE", 70),
    "StoreMovedError": ("store_moved", 503, "UNAVAILABLE", 70),
    "StoreDamagedError": ("store_damaged", 503, "UNAVAILABLE", 70),
    "KeysLostError": ("keys_lost", 500, "INTERNAL", 70),
    "StoreIOError": ("store_io", 500, "INTERNAL", 70),
    "NewerStoreError": ("newer_store", 500, "INTERNAL", 70),
    "StoreClosedError": ("store_closed", 500, "INTERNAL", 70),
    "StreamTrimmedError": ("stream_trimmed", 500, "INTERNAL", 70),
}
FAMILIES = (UserError, ConflictError, TransientError, FatalError)
CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, HeadgateError)]


def _facts(error: type[HeadgateError]) -> tuple[str, int, str, int]:
    return (error.code, error.http_status, error.grpc_status, error.exit_code)


@pytest.mark.parametrize("name", STABLE)
def test_error__published_class__keeps_its_code_and_statuses(name: str) -> None:
    assert _facts(getattr(errors, name)) == STABLE[name]


def test_errors__every_class__is_in_the_list_of_stable_codes() -> None:
    assert {error.__name__ for error in CLASSES} == set(STABLE)


def test_errors__every_class__has_a_code_of_its_own() -> None:
    codes = [error.code for error in CLASSES]

    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error__any_class__has_statuses_that_exist(error: type[HeadgateError]) -> None:
    assert error.http_status in {status.value for status in http.HTTPStatus}
    assert error.grpc_status in {status.name for status in grpc.StatusCode}
    assert 1 <= error.exit_code <= 125
    assert re.fullmatch(r"[a-z][a-z_]*", error.code)


@pytest.mark.parametrize("error", [error for error in CLASSES if error is not HeadgateError], ids=lambda e: e.__name__)
def test_error__any_class_but_the_root__is_in_exactly_one_family(error: type[HeadgateError]) -> None:
    assert sum(issubclass(error, family) for family in FAMILIES) == 1


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error_tree__in_the_module_docstring__shows_the_class(error: type[HeadgateError]) -> None:
    assert errors.__doc__ is not None
    assert re.search(rf"^[│├└─ ]*{error.__name__}\b", errors.__doc__, re.MULTILINE)


def test_message__any_error__is_the_sentence_it_was_made_with() -> None:
    assert UserError("run 7: no such run; list them first").message == "run 7: no such run; list them first"


def test_conflict__of_a_single_write__names_write_zero() -> None:
    conflict = ConflictError("item a: version is 3", current={"PK": "a", "version": 3})

    assert conflict.current == {"PK": "a", "version": 3}
    assert conflict.write_index == 0
    assert conflict.failures == {0: {"PK": "a", "version": 3}}


def test_conflict__without_a_current_item__says_there_is_none() -> None:
    conflict = ConflictError("item a is absent")

    assert conflict.current is None
    assert conflict.failures == {0: None}


def test_conflict__of_a_transaction__carries_every_refused_write() -> None:
    failures = {2: {"PK": "c"}, 5: None}

    conflict = ConflictError("writes 2 and 5", current={"PK": "c"}, write_index=2, failures=failures)

    assert conflict.write_index == 2
    assert conflict.failures == failures


def test_transient__any__says_how_long_to_wait() -> None:
    assert TransientError("busy").retry_after_seconds > 0
