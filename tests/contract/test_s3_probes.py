"""File probes on S3: patterns, times and markers, against MiniStack."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from msgspec import Struct

from headgate.file_roots import file_roots
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes import files
from headgate.pipelines.probes.model import ProbeResult
from headgate.triggers.aws.clients import AwsClients
from tests.ministack import REGION, fresh_account
from tests.probe_rig import probe, runner

NO_FILES = file_roots([])


class Bucket(Struct):
    """A bucket with one day of orders in two parts."""

    clients: AwsClients
    client: Any
    name: str

    def put(self, key: str, body: bytes = b"x") -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def look(self, path: str, date: str = "", own: tuple[str, str] | None = None, **fields: Any) -> ProbeResult:
        period = {"period": "daily"} if date else {}
        marker = {"marker": fields.pop("marker")} if "marker" in fields else {}
        path = path.replace("s3://lake/", f"s3://{self.name}/")
        made = probe(files={"path": path, **marker}, **period, **fields)
        return runner(NO_FILES, aws=self.clients, own_objects=own).run(made, date)


@pytest.fixture
def bucket(ministack: str) -> Bucket:
    account = fresh_account()
    session = boto3.Session(aws_access_key_id=account, aws_secret_access_key="-")
    clients = AwsClients(region=REGION, endpoint_url=ministack, session=session)
    # The names of buckets are shared by all accounts.
    made = Bucket(clients, clients.client("s3"), f"lake-{account}")
    made.client.create_bucket(Bucket=made.name)
    made.put("orders/2026-03-03/eu/part-0.parquet", b"12345")
    made.put("orders/2026-03-03/us/part-0.parquet", b"123")
    made.put("orders/2026-03-04/eu/part-0.parquet", b"1")
    return made


def test_s3__pattern_of_a_period__counts_objects_and_bytes(bucket: Bucket) -> None:
    result = bucket.look("s3://lake/orders/${date}/*/part-*.parquet", "2026-03-03")
    assert result.verdict is Verdict.PASS, result.reason
    assert (result.seen["count"], result.seen["bytes"], result.seen["smallest_bytes"]) == (2, 8, 3)
    assert bucket.look("s3://lake/orders/${date}/**", "2026-03-03").seen["count"] == 2
    assert bucket.look("s3://lake/orders/${date}/*/part-*", "2026-03-05").verdict is Verdict.FAIL


def test_s3__one_object__is_there_and_young_or_not(bucket: Bucket) -> None:
    young = [{"field": "newest", "check": "age_lt", "value": "1h"}]
    assert bucket.look("s3://lake/orders/2026-03-04/eu/part-0.parquet", expect=young).verdict is Verdict.PASS
    assert bucket.look("s3://lake/orders/none").verdict is Verdict.FAIL


def test_s3__marker__every_folder_has_it(bucket: Bucket) -> None:
    path = "s3://lake/orders/2026-03-03/*/part-*"
    bucket.put("orders/2026-03-03/eu/_SUCCESS", b"")
    assert bucket.look(path, marker="_SUCCESS").verdict is Verdict.FAIL
    bucket.put("orders/2026-03-03/us/_SUCCESS", b"")
    assert bucket.look(path, marker="_SUCCESS").verdict is Verdict.PASS


def test_s3__no_such_bucket__is_unknown(bucket: Bucket) -> None:
    assert bucket.look("s3://no-such-bucket/a/*").verdict is Verdict.UNKNOWN


def test_s3__too_many_objects__is_refused_without_listing_all(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MATCHES_MAX", 2)
    result = bucket.look("s3://lake/orders/**")
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
    assert "narrow the path" in result.reason


@pytest.mark.parametrize("path", ["s3://lake/blobs/*", "s3://lake/**", "s3://lake/bl*", "s3://*/x"])
def test_s3__own_objects_of_headgate__are_refused(bucket: Bucket, path: str) -> None:
    result = bucket.look(path, own=(bucket.name, "blobs/"))
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
