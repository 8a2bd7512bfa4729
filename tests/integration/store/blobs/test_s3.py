"""What S3 blobs make of a network that fails: an error that says try again, not one that says give up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError
from botocore.parsers import ResponseParserError

from headgate.errors import StoreBusyError
from headgate.store.blobs.s3 import S3Blobs

CALLS: list[Callable[[S3Blobs], object]] = [
    lambda blobs: blobs.get("spill/x"),
    lambda blobs: blobs.put("spill/x", b"1"),
    lambda blobs: blobs.delete("spill/x"),
    lambda blobs: list(blobs.list("spill/")),
]


def _blobs(answer: Callable[[], AWSResponse] | None = None) -> S3Blobs:
    """Blobs behind a port without a listener; with `answer`, it is given instead of sending anything."""
    client = boto3.session.Session("a", "b", region_name="eu-west-1").client(
        "s3",
        endpoint_url="http://127.0.0.1:9",
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, s3={"addressing_style": "path"}),
    )
    if answer is not None:
        hook: Any = lambda **_: answer()  # noqa: E731
        client.meta.events.register("before-send.s3", hook)
    return S3Blobs(client, "bucket")


@pytest.mark.parametrize("call", CALLS, ids=["get", "put", "delete", "list"])
def test_call__no_one_listens__is_busy(call: Callable[[S3Blobs], object]) -> None:
    with pytest.raises(StoreBusyError, match=EndpointConnectionError.__name__):
        call(_blobs())


def test_get__connecting_takes_too_long__is_busy_after_what_botocore_has_tried() -> None:
    asked = []

    def answer() -> AWSResponse:
        asked.append(1)
        raise ConnectTimeoutError(endpoint_url="x")

    with pytest.raises(StoreBusyError, match="ConnectTimeoutError"):
        _blobs(answer).get("spill/x")
    assert len(asked) == 1


def test_list__answer_cannot_be_parsed__is_busy() -> None:
    def answer() -> AWSResponse:
        raise ResponseParserError("Unable to parse response")

    with pytest.raises(StoreBusyError, match="ResponseParserError"):
        list(_blobs(answer).list("spill/"))
