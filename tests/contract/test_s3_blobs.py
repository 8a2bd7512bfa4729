"""Blobs in S3: what every blob store promises, and what S3 does when it misbehaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from mypy_boto3_s3 import S3Client

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError, StoreBusyError, StoreIOError, ThrottledError, UserError
from headgate.store.blobs.s3 import S3Blobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from tests.ministack import REGION, fresh_account


class Rig:
    def __init__(self, session: boto3.Session, endpoint: str) -> None:
        self.account = fresh_account()
        options: dict[str, Any] = {
            "endpoint_url": endpoint,
            "aws_access_key_id": self.account,
            "aws_secret_access_key": "-",
            # One attempt, so that a fault that is injected once is also seen once.
            "config": Config(retries={"total_max_attempts": 1, "mode": "standard"}, s3={"addressing_style": "path"}),
        }
        self.client: S3Client = session.client("s3", **options)
        # The names of buckets are shared by all accounts.
        self.bucket = f"blobs-{self.account}"
        self.client.create_bucket(Bucket=self.bucket)
        self.blobs = S3Blobs(self.client, self.bucket, "home/")

    def inject(self, operation: str, *answers: AWSResponse | Exception) -> None:
        waiting = list(answers)

        def meet(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
            if not waiting:
                return None
            answer = waiting.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        hook: Any = meet
        self.client.meta.events.register(f"before-send.s3.{operation}", hook)


@pytest.fixture
def rig(ministack: str, aws_session: boto3.Session) -> Iterator[Rig]:
    rig = Rig(aws_session, ministack)
    yield rig
    rig.blobs.close()


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 40_000], ids=["empty", "small", "10 MB"])
def test_put__any_content__comes_back(rig: Rig, content: bytes) -> None:
    rig.blobs.put("a/b=1.json", content)
    rig.blobs.put("a/b=1.json", content)

    assert rig.blobs.get("a/b=1.json") == content


def test_put__prefix__goes_before_every_name(rig: Rig) -> None:
    rig.blobs.put("a", b"1")

    assert rig.client.get_object(Bucket=rig.bucket, Key="home/a")["Body"].read() == b"1"


def test_get__missing__is_not_found(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="blob a/b"):
        rig.blobs.get("a/b")


def test_delete__there_or_not__is_gone(rig: Rig) -> None:
    rig.blobs.put("a", b"1")

    rig.blobs.delete("a")
    rig.blobs.delete("a")

    with pytest.raises(NotFoundError):
        rig.blobs.get("a")


def test_list__some_names__in_order_and_under_the_prefix_alone(rig: Rig) -> None:
    for name in ("b/2", "b/10", "b-1", "b/1", "c/1", "B/1"):
        rig.blobs.put(name, b"")
    S3Blobs(rig.client, rig.bucket, "elsewhere/").put("b/9", b"")

    assert list(rig.blobs.list("b/")) == ["b/1", "b/10", "b/2"]
    assert list(rig.blobs.list("b")) == ["b-1", "b/1", "b/10", "b/2"]
    assert list(rig.blobs.list("")) == ["B/1", "b-1", "b/1", "b/10", "b/2", "c/1"]
    assert list(rig.blobs.list("none")) == []


def test_list__more_than_a_page__is_complete(rig: Rig) -> None:
    names = [f"n/{number:02}" for number in range(25)]
    for name in names:
        rig.blobs.put(name, b"")
    pages: list[dict[str, Any]] = []

    def small(params: dict[str, Any], **_: object) -> dict[str, Any]:
        pages.append(params)
        return {**params, "MaxKeys": 10}

    hook: Any = small
    rig.client.meta.events.register("provide-client-params.s3.ListObjectsV2", hook)

    assert list(rig.blobs.list("n/")) == names
    assert len(pages) == 3


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", ".a", "a b", "é", "a" * 901])
def test_every_call__unsafe_name__is_refused(rig: Rig, name: str) -> None:
    for call in (lambda: rig.blobs.put(name, b""), lambda: rig.blobs.get(name), lambda: rig.blobs.delete(name)):
        with pytest.raises(UserError, match="blob name"):
            call()


def test_every_call__bucket_missing__names_it_and_the_remedy(rig: Rig) -> None:
    blobs = S3Blobs(rig.client, "nowhere")

    for call in (
        lambda: blobs.put("a", b""),
        lambda: blobs.get("a"),
        lambda: list(blobs.list("")),
        lambda: blobs.delete("a"),
    ):
        with pytest.raises(StoreIOError, match=r"bucket nowhere.*create it"):
            call()


def answer(status: int, code: str) -> AWSResponse:
    return _response(status, f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode())


def test_put__throttled__says_so(rig: Rig) -> None:
    rig.inject("PutObject", answer(503, "SlowDown"))

    with pytest.raises(ThrottledError, match="SlowDown"):
        rig.blobs.put("a", b"")


def test_put__server_fault__is_busy(rig: Rig) -> None:
    rig.inject("PutObject", answer(500, "InternalError"))

    with pytest.raises(StoreBusyError, match="InternalError"):
        rig.blobs.put("a", b"")


def test_put__not_allowed__names_the_credentials(rig: Rig) -> None:
    rig.inject("PutObject", answer(403, "AccessDenied"))

    with pytest.raises(StoreIOError, match=r"AccessDenied.*credentials"):
        rig.blobs.put("a", b"")


def test_get__body_breaks_off__is_read_again(rig: Rig) -> None:
    rig.blobs.put("a", b"content")
    rig.inject("GetObject", _response(200, b"cont", length=7), ReadTimeoutError(endpoint_url="x"))

    assert rig.blobs.get("a") == b"content"


def test_get__never_answers__is_busy(rig: Rig) -> None:
    rig.inject("GetObject", *[ReadTimeoutError(endpoint_url="x")] * 10)

    with pytest.raises(StoreBusyError, match="ReadTimeoutError"):
        rig.blobs.get("a")


def test_connect__credentials_from_the_environment__reaches_the_bucket(
    rig: Rig, ministack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", rig.account)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    blobs = S3Blobs.connect(region=REGION, endpoint_url=ministack, bucket=rig.bucket, prefix="home/")

    blobs.put("a", b"1")

    assert rig.blobs.get("a") == b"1"
    blobs.close()


def test_connect__no_credentials__says_so(ministack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    blobs = S3Blobs.connect(region=REGION, endpoint_url=ministack, bucket="blobs")

    with pytest.raises(StoreIOError, match="credentials"):
        blobs.get("a")
    blobs.close()


class Rows:
    """The rows that a sweep asks about."""

    def __init__(self, item: Item | None) -> None:
        self._item = item

    def get_raw(self, table: Table, key: Key) -> Item | None:
        return self._item


def test_spill__to_s3__restores_and_sweeps(rig: Rig) -> None:
    clock = VirtualClock()
    spill = Spill(rig.blobs, clock)
    item = {"execution_id": "e", "message_id": "m", "text": "x" * 500_000}

    stored = spill.fit(INBOXES, item)
    assert spill.restore(stored) == item
    name = stored["text"]["$blob"]
    assert hashlib.sha256(rig.blobs.get(name)).hexdigest() == name.rpartition("/")[2]

    clock.advance(30 * 3600)
    assert spill.sweep(Rows(stored)) == 0
    # Condemned now, deleted once no change stream can tell of it any more.
    assert spill.sweep(Rows(None)) == 0
    clock.advance(28 * 3600)
    assert spill.sweep(Rows(None)) == 1
    assert list(rig.blobs.list("")) == []


class _Raw:
    """The raw body of a response, as botocore and its streaming body read it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, *_: object, **__: object) -> bytes:
        content, self._content = self._content, b""
        return content

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        pass


def _response(status: int, content: bytes, length: int | None = None) -> AWSResponse:
    headers = {"content-length": str(len(content) if length is None else length)}
    return AWSResponse("http://s3", status, headers, _Raw(content))  # type: ignore[arg-type]
