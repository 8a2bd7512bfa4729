"""Errors in recorded histories: module names of earlier releases load today's classes, and stay what is written."""

from __future__ import annotations

import msgspec
import pytest

from headgate.asl.errors import StateError
from headgate.asl.expressions.payload_templates import TemplateError
from headgate.asl.runtime.execution_request import MachineFailed
from headgate.durable.model.failures import ActivityFailure, ErrorInfo, NonRetryable, describe, revive
from headgate.durable.model.retry import Retry

# Errors as earlier releases have recorded them, before their modules moved.
RECORDED: dict[str, tuple[bytes, type[Exception]]] = {
    "headgate.asl.failures": (
        b'{"type":"StateError","message":"States.Timeout: no heartbeat for 5 s","module":"headgate.asl.failures",'
        b'"qualname":"StateError","data":{"error":"States.Timeout","cause":"no heartbeat for 5 s","location":null},'
        b'"args":["States.Timeout: no heartbeat for 5 s"]}',
        StateError,
    ),
    "headgate.asl.requests": (
        b'{"type":"MachineFailed","message":"Broken: twice","module":"headgate.asl.requests",'
        b'"qualname":"MachineFailed","data":{"error":"Broken","cause":"twice"},"args":["Broken","twice"]}',
        MachineFailed,
    ),
    "headgate.asl.templates": (
        b'{"type":"TemplateError","message":"$.a: no such field","module":"headgate.asl.templates",'
        b'"qualname":"TemplateError","args":["$.a: no such field"],"bases":["ValueError"]}',
        TemplateError,
    ),
    "headgate.durable.failures": (
        b'{"type":"NonRetryable","message":"card declined","module":"headgate.durable.failures",'
        b'"qualname":"NonRetryable","data":{"data":{"code":51}},"args":["card declined"],"retryable":false}',
        NonRetryable,
    ),
}

each_module = pytest.mark.parametrize("module", RECORDED)


def revived(module: str) -> BaseException:
    recorded, _ = RECORDED[module]
    return revive(msgspec.json.decode(recorded, type=ErrorInfo), otherwise=ActivityFailure, activity="charge")


@each_module
def test_revive__error_of_a_module_that_moved__has_todays_class(module: str) -> None:
    error = revived(module)
    assert type(error) is RECORDED[module][1]
    assert isinstance(error.__cause__, ActivityFailure)


@each_module
def test_describe__class_of_a_module_that_moved__writes_the_module_name_of_earlier_releases(module: str) -> None:
    info = describe(revived(module))
    assert (info.module, info.qualname) == (module, RECORDED[module][1].__qualname__)
    # The previous release looks for the class by this name, in this form.
    assert f'"module":"{module}"'.encode() in msgspec.json.encode(info)


def test_revive__state_error__keeps_its_error_and_cause() -> None:
    error = revived("headgate.asl.failures")
    assert isinstance(error, StateError)
    assert error.output == {"Error": "States.Timeout", "Cause": "no heartbeat for 5 s"}


def test_revive__non_retryable__keeps_its_data() -> None:
    error = revived("headgate.durable.failures")
    assert isinstance(error, NonRetryable)
    assert (str(error), error.data) == ("card declined", {"code": 51})


def test_retry__never_retries_a_class__also_if_the_failure_has_the_earlier_module_name() -> None:
    recorded = msgspec.json.decode(RECORDED["headgate.asl.failures"][0], type=ErrorInfo)
    # A stored policy of an earlier release, and one of today.
    assert "headgate.asl.failures.StateError" in recorded.class_names()
    assert Retry(never=(StateError,)).never == ("headgate.asl.failures.StateError",)
