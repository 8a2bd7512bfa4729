"""Probes of files, tables and HTTP services: real files, real table formats and a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import deltalake
import pyarrow  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headgate.durable.bus.egress_policy import Destinations
from headgate.file_roots import file_roots
from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes.model import ProbeResult
from tests.probe_rig import probe, runner
from tests.unit.pipelines.evaluator_rig import Server, reply, serving

LOCAL = Destinations(hosts=("127.0.0.1",), plain_http=True)
AT = datetime(2026, 3, 3, 6, tzinfo=UTC).timestamp()


def files(root: Path, date: str = "", *, expect: list[dict[str, Any]] | None = None, **fields: Any) -> ProbeResult:
    period = {"period": "daily"} if date else {}
    return runner(root).run(probe(files=fields, expect=expect or [], **period), date)


def put(path: Path, content: str, at: float = AT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (at, at))


# Files.


def test_files__pattern_of_a_period__counts_size_and_times(tmp_path: Path) -> None:
    put(tmp_path / "in/2026-03-03/a.csv", "12345")
    put(tmp_path / "in/2026-03-03/b.csv", "123", AT + 60)
    put(tmp_path / "in/2026-03-04/a.csv", "1")
    result = files(tmp_path, "2026-03-03", path="in/${date}/*.csv")
    assert result.verdict is Verdict.PASS, result.reason
    assert result.seen == {
        "value": 2,
        "count": 2,
        "bytes": 8,
        "smallest_bytes": 3,
        "oldest": "2026-03-03T06:00:00+00:00",
        "newest": "2026-03-03T06:01:00+00:00",
    }
    assert files(tmp_path, "2026-03-05", path="in/${date}/*.csv").verdict is Verdict.FAIL


def test_files__marker__every_folder_has_it(tmp_path: Path) -> None:
    for part in ("eu", "us"):
        put(tmp_path / part / "part-0", "x")
    put(tmp_path / "eu/_SUCCESS", "")
    half = files(tmp_path, path="*/part-*", marker="_SUCCESS")
    assert (half.verdict, half.seen["complete"]) == (Verdict.FAIL, False)
    put(tmp_path / "us/_SUCCESS", "")
    assert files(tmp_path, path="*/part-*", marker="_SUCCESS").verdict is Verdict.PASS


def test_files__age_and_size__are_compared(tmp_path: Path) -> None:
    put(tmp_path / "a", "12345")
    old = files(tmp_path, path="a", expect=[{"field": "newest", "check": "age_lt", "value": "1h"}])
    assert old.verdict is Verdict.FAIL
    small = files(tmp_path, path="a", expect=[{"field": "smallest_bytes", "check": "gte", "value": 6}])
    assert "is 5, at least 6 is needed" in small.reason


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "out/secret", "*/secret", ".headgate/keys.json"])
def test_files__outside_of_the_roots_by_path_or_link__is_never_seen(tmp_path: Path, path: str) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    put(outside / "secret", "x")
    put(root / ".headgate/keys.json", "{}")
    (root / "out").symlink_to(outside)
    result = files(root, path=path)
    assert result.verdict is Verdict.UNKNOWN or result.seen["count"] == 0
    assert result.category in (FailureCategory.PERMANENT, None)


def test_files__home_below_the_root__is_denied(tmp_path: Path) -> None:
    put(tmp_path / "home/x.json", "{}")
    result = runner(file_roots([tmp_path], [tmp_path / "home"])).run(probe(files={"path": "home/*.json"}))
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
    assert "files.roots" in result.reason


@pytest.mark.parametrize("path", ["http://169.254.169.254/latest", "ftp://a/b", "gs://b/k"])
def test_files__other_protocol__is_refused(tmp_path: Path, path: str) -> None:
    assert "use a local path or s3://" in files(tmp_path, path=path).reason


# Tables.


def test_delta__table__has_version_commit_and_rows(tmp_path: Path) -> None:
    missing = runner(tmp_path).run(probe(delta={"path": "orders"}))
    assert (missing.verdict, missing.seen) == (Verdict.FAIL, {"exists": False})
    deltalake.write_deltalake(str(tmp_path / "orders"), pyarrow.table({"id": [1, 2]}))
    deltalake.write_deltalake(str(tmp_path / "orders"), pyarrow.table({"id": [3]}), mode="append")
    expect = [
        {"field": "rows", "check": "gte", "value": 3},
        {"field": "version", "check": "equals", "value": 1},
        {"field": "committed_at", "check": "age_lt", "value": "1h"},
    ]
    result = runner(tmp_path).run(probe(delta={"path": "orders"}, expect=expect))
    assert result.verdict is Verdict.PASS, result.reason
    assert (result.seen["files"], result.seen["rows"]) == (2, 3)


def test_delta__broken_log__is_unknown(tmp_path: Path) -> None:
    put(tmp_path / "orders/_delta_log/00000000000000000000.json", "not a commit")
    result = runner(tmp_path).run(probe(delta={"path": "orders"}))
    assert result.verdict is Verdict.UNKNOWN


def test_delta__outside_of_the_roots__is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "orders"), pyarrow.table({"id": [1]}))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/link").symlink_to(tmp_path / "orders")
    for path in (str(tmp_path / "orders"), "link"):
        result = runner(tmp_path / "project").run(probe(delta={"path": path}))
        assert "files.roots" in result.reason


def test_iceberg__table__has_snapshot_commit_and_rows(tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    data = pyarrow.table({"id": [1, 2]})
    table = catalog.create_table("shop.orders", schema=data.schema)
    folder = table.location().removeprefix("file://")
    empty = runner(tmp_path).run(probe(iceberg={"path": folder}))
    assert (empty.verdict, empty.seen) == (Verdict.FAIL, {"exists": True, "snapshots": 0})
    table.append(data)
    table.append(data)
    expect = [
        {"field": "rows", "check": "equals", "value": 4},
        {"field": "committed_at", "check": "age_lt", "value": "1h"},
    ]
    result = runner(tmp_path).run(probe(iceberg={"path": folder}, expect=expect))
    assert result.verdict is Verdict.PASS, result.reason
    current = table.current_snapshot()
    assert current is not None
    assert result.seen["snapshot_id"] == str(current.snapshot_id)
    catalog.engine.dispose()


# HTTP.


@pytest.fixture
def server() -> Iterator[Server]:
    def respond(request: BaseHTTPRequestHandler, _before: int) -> None:
        match request.path:
            case "/2026-03-03":
                reply(request, 200, b'{"data": {"rows": 12, "state": "done"}}')
            case "/broken":
                reply(request, 200, b"<html>")
            case "/down":
                reply(request, 503, b"busy")
            case _:
                reply(request, 404, b"{}")

    with serving(respond) as server:
        yield server


def http(server: Server, date: str = "", *, environ: dict[str, str] | None = None, **fields: Any) -> ProbeResult:
    period = {"period": "daily"} if date else {}
    expect = fields.pop("expect", [])
    given = {"url": f"{server.url}/{fields.pop('path', '${date}')}", **fields}
    run = runner(Path("/nowhere"), destinations=LOCAL, environ=environ).run
    return run(probe(http=given, expect=expect, **period), date)


def test_http__json_path__selects_the_value(server: Server) -> None:
    expect = [{"check": "gte", "value": 10}]
    result = http(server, "2026-03-03", value="$.data.rows", expect=expect)
    assert (result.verdict, result.seen) == (Verdict.PASS, {"status": 200, "ok": True, "value": 12})
    missing = http(server, "2026-03-03", value="$.data.none", expect=expect)
    assert (missing.verdict, missing.reason) == (Verdict.FAIL, "value is missing")


def test_http__not_found_is_not_ready__and_an_error_is_unknown(server: Server) -> None:
    assert http(server, "2026-03-04", value="$.data.rows").verdict is Verdict.FAIL
    for path, category in (("down", FailureCategory.TRANSIENT), ("broken", FailureCategory.TRANSIENT)):
        result = http(server, path=path, value="$.a")
        assert (result.verdict, result.category) == (Verdict.UNKNOWN, category)


def test_http__secret_header__is_sent_and_never_shown(server: Server) -> None:
    headers = {"authorization": "Bearer ${env:HG_SECRET_TOKEN}"}
    result = http(server, path="down", headers=headers, environ={"HG_SECRET_TOKEN": "tok-12345"})
    assert server.headers[0]["authorization"] == "Bearer tok-12345"
    assert "tok-12345" not in repr(result)
    unset = http(server, path="down", headers=headers)
    assert "${env:HG_SECRET_TOKEN}: it is not set" in unset.reason


def test_http__private_address__is_refused_without_a_setting(server: Server) -> None:
    result = runner(Path("/nowhere")).run(probe(http={"url": server.url.replace("http:", "https:")}))
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
    assert server.methods == []


# Endpoints and libraries.


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "100.100.100.200"])
def test_sql__host_resolves_to_a_metadata_service__is_refused(tmp_path: Path, address: str) -> None:
    sql = {"url": "postgresql+psycopg://reader@db.example.org/shop", "query": "select 1"}
    result = runner(tmp_path, resolve=lambda _host, _port: [address]).run(probe(sql=sql))
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
    assert "is for a cloud's own machines" in result.reason


def test_library__not_installed__names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    sql = {"url": "postgresql+psycopg://reader@db.example.org/shop", "query": "select 1"}
    for given, extra in (
        ({"sql": sql}, "sql"),
        ({"files": {"path": "a"}}, "files"),
        ({"delta": {"path": "a"}}, "delta"),
        ({"iceberg": {"path": "a"}}, "iceberg"),
    ):
        result = runner(tmp_path).run(probe(**given))
        assert result.verdict is Verdict.UNKNOWN
        assert f"pip install 'headgate[{extra}]'" in result.reason
