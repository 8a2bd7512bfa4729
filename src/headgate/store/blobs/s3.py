"""S3 blob backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.parsers import ResponseParserError

from headgate.errors import HeadgateError, NotFoundError, StoreBusyError, StoreIOError, ThrottledError
from headgate.store.blobs.folder import check_blob_name

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ATTEMPTS_MAX: Final = 5
_THROTTLES: Final = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_BROKEN_OFF: Final = (HTTPClientError, IncompleteReadError, FlexibleChecksumError)
# botocore has already retried these.
_UNREACHED: Final = (ConnectionError, ResponseParserError)
_Failure = ClientError | BotoCoreError | ResponseParserError
_FAILURES: Final = (ClientError, BotoCoreError, ResponseParserError)


class S3Blobs:
    """Blobs as objects of one bucket. `prefix` is prepended to every name unchanged, slash included.

    Every operation is idempotent, because a name always has the same content, so botocore's retries are used.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    @classmethod
    def connect(cls, *, region: str, endpoint_url: str | None, bucket: str, prefix: str = "") -> S3Blobs:
        """Build the client with AWS's default credential chain. Sends nothing yet."""
        config = Config(
            retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
            connect_timeout=2,
            read_timeout=10,
            max_pool_connections=64,
            tcp_keepalive=True,
            # Only AWS itself resolves bucket names as hosts.
            s3={"addressing_style": "auto" if endpoint_url is None else "path"},
        )
        try:
            session = boto3.session.Session(region_name=region)
            client = session.client("s3", endpoint_url=endpoint_url, config=config)
        except (BotoCoreError, ValueError) as exc:
            raise StoreIOError(f"S3 in {region}: no client can be built: {exc}; check region and endpoint") from exc
        return cls(client, bucket, prefix)

    def put(self, name: str, content: bytes) -> None:
        key = self._key(name)
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content)
        except _FAILURES as exc:
            raise self._translated(exc, f"blob {name}", "written to") from exc

    def get(self, name: str) -> bytes:
        key = self._key(name)
        attempt = 1
        while True:
            try:
                return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            except _FAILURES as exc:
                # botocore retries the request, but not an interrupted read of the body.
                if not isinstance(exc, _BROKEN_OFF) or attempt == ATTEMPTS_MAX:
                    raise self._translated(exc, f"blob {name}", "read from") from exc
                attempt += 1

    def list(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
        )
        try:
            for page in pages:
                for entry in page.get("Contents", []):
                    yield entry["Key"].removeprefix(self._prefix)
        except _FAILURES as exc:
            raise self._translated(exc, f"blobs {prefix}…", "listed in") from exc

    def delete(self, name: str) -> None:
        key = self._key(name)
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except _FAILURES as exc:
            raise self._translated(exc, f"blob {name}", "deleted from") from exc

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def _key(self, name: str) -> str:
        check_blob_name(name)
        return self._prefix + name

    def _translated(self, exc: _Failure, what: str, done: str) -> HeadgateError:
        fact = f"{what}: cannot be {done} bucket {self._bucket}"
        if isinstance(exc, _BROKEN_OFF + _UNREACHED):
            return StoreBusyError(
                f"{fact}: no complete response from S3 ({type(exc).__name__}); check network and endpoint"
            )
        if not isinstance(exc, ClientError):
            return StoreIOError(f"{fact}: {exc}; check the credentials")
        code = str(exc.response.get("Error", {}).get("Code", ""))
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        if code == "NoSuchKey":
            return NotFoundError(f"{what}: not in bucket {self._bucket}")
        if code in _THROTTLES:
            return ThrottledError(f"{fact}: S3 throttles ({code}); try again later")
        if status >= 500:
            return StoreBusyError(f"{fact}: S3 failed ({code}); try again")
        remedy = (
            "create it, or correct its name" if code == "NoSuchBucket" else "check the credentials and their policy"
        )
        return StoreIOError(f"{fact}: {code}; {remedy}")
