"""The same program on DynamoDB and S3: nothing but the settings differs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.catalogue.tables import ALL_TABLES, HEALTH_CHECK
from headgate.store.dynamodb.store import DynamoStore
from tests.acceptance.program import Server, run
from tests.ministack import REGION, Ministack, aws_session, fresh_account


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield server.endpoint
    server.stop()


@pytest.fixture
def environ(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a process that keeps its state in an AWS account of its own, still empty."""
    account = fresh_account()
    aws_session(account).client("s3", endpoint_url=endpoint).create_bucket(Bucket=f"blobs-{account}")
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": REGION,
        "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
        "HEADGATE_STORE_BLOB_BUCKET": f"blobs-{account}",
        "HEADGATE_STORE_TABLE_PREFIX": "here-",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def _create_tables(settings: Settings) -> None:
    with closing(open_store(settings, SystemClock()).store) as store:
        assert isinstance(store, DynamoStore)
        store.create_tables()


def test_aws__tables_missing_then_created__doctor_says_so_and_up_serves(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    ports = {"HEADGATE_HTTP": "127.0.0.1:0", "HEADGATE_GRPC": "127.0.0.1:0"}
    before = run("doctor", "--json", folder=tmp_path, **environ, **ports)
    assert run("table", "check", folder=tmp_path, **environ).returncode == 1
    created = run("table", "create", "--json", folder=tmp_path, **environ)
    again = run("table", "create", folder=tmp_path, **environ)
    checked = run("table", "check", folder=tmp_path, **environ)
    after = run("doctor", "--json", folder=tmp_path, **environ, **ports)

    assert len(json.loads(created.stdout)["created"]) == len(ALL_TABLES)
    assert again.stdout == "all tables exist\n"
    assert checked.returncode == 0, checked.stdout

    missing = [finding for finding in json.loads(before.stdout) if finding["verdict"] == "FAIL"]
    assert before.returncode == 1
    assert all("does not exist" in finding["fact"] for finding in missing)
    assert any("table here-headgate-pipelines" in finding["fact"] for finding in missing)
    assert after.returncode == 0, after.stdout

    with Server(tmp_path, **environ) as server:
        deep = httpx.get(f"{server.url}/health/deep", timeout=30)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert deep.status_code == 200, deep.text
    assert not (tmp_path / ".headgate" / "headgate.db").exists()


def test_aws__large_attribute__spills_into_the_bucket(tmp_path: Path, environ: dict[str, str], endpoint: str) -> None:
    settings = Settings.load(environ, None, {"home": str(tmp_path / ".headgate")})
    _create_tables(settings)
    key = HEALTH_CHECK.entities[0].key()

    with closing(open_store(settings, SystemClock()).store) as store:
        store.put(HEALTH_CHECK, {**HEALTH_CHECK.key_attributes(key), "payload": "x" * 500_000})
        item = store.get(HEALTH_CHECK, key, consistent=True)

    s3 = aws_session(environ["AWS_ACCESS_KEY_ID"]).client("s3", endpoint_url=endpoint)
    assert item is not None
    assert len(item["payload"]) == 500_000
    assert s3.list_objects_v2(Bucket=settings.store.blob_bucket or "")["KeyCount"] == 1
    assert not (tmp_path / ".headgate" / "blobs").exists()
