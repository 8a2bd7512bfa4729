"""AWS calls whose response or request is a stream of events: a Task has no result for it, so nothing is sent."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

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
