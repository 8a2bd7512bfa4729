"""AWS calls whose response or request is a stream of events: a Task has no result for it, so nothing is sent."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import (
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from headgate.asl.errors import StateError
from headgate.asl.tasks.aws_calls import AwsCalls
from headgate.asl.tasks.integrations import find_integration
from headgate.asl.tasks.task_access import TaskAccess


class Sent(Exception):
    """A request would have left the process."""


def _refuse(**_given: Any) -> None:
    raise Sent


class Clients:
    def client(self, service: str, *, read_seconds: float, tries: int) -> Any:
        del read_seconds, tries
        made = boto3.client(
            service,  # type: ignore[call-overload]  # any service
            region_name="eu-west-1",
            aws_access_key_id="id",
            aws_secret_access_key="secret",
            endpoint_url="http://127.0.0.1:1",
        )
        made.meta.events.register("before-send", _refuse)
        return made


class ClientsWithout(Clients):
    """Clients without credentials, or without a network."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def client(self, service: str, *, read_seconds: float, tries: int) -> Any:
        made = super().client(service, read_seconds=read_seconds, tries=tries)

        def fail(**_: object) -> None:
            raise self._error

        made.meta.events.register_first("before-call", fail)
        return made


def test_describe__credentials_are_missing__is_an_error_and_a_network_failure_is_not() -> None:
    described = find_integration("aws-sdk:glue", "getJobRun")
    assert described is not None
    given = {"JobName": "load", "RunId": "r"}
    for error in (NoCredentialsError(), PartialCredentialsError(provider="env", cred_var="secret"), NoRegionError()):
        with pytest.raises(StateError, match="SdkClientException"):
            AwsCalls(ClientsWithout(error), TaskAccess(["glue:*"])).describe(described, given)
    unreachable = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
    assert AwsCalls(ClientsWithout(unreachable), TaskAccess(["glue:*"])).describe(described, given) is None


def test_request__response_is_a_stream_of_events__is_refused_before_it_is_sent() -> None:
    calls = AwsCalls(Clients(), TaskAccess(["lambda:*"]))
    streamed = find_integration("aws-sdk:lambda", "invokeWithResponseStream")
    plain = find_integration("aws-sdk:lambda", "listFunctions")
    assert streamed is not None
    assert plain is not None

    with pytest.raises(StateError, match="stream of events") as refused:
        calls.request(streamed, {"FunctionName": "price"})
    with pytest.raises(Sent):
        calls.request(plain, {})

    assert refused.value.error == "States.Runtime"
