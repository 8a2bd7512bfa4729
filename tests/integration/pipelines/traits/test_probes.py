"""Probes: real files, a real database, and a server that speaks as S3 does."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import boto3
import pytest

from headgate.errors import DefinitionError
from headgate.file_roots import file_roots
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.probes import probes
from headgate.pipelines.traits.protocol import Answer, of_failure
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.contract import TriggerFailedError
from tests.unit.pipelines.evaluator_rig import NOW, Server, question, reply, serving


def ask(name: str, *, roots: list[Path] | None = None, timeout: float = 5.0, **config: Any) -> Answer:
    files = None if roots is None else file_roots(roots)
    return probes(files=files)[name](question(f"builtin:{name}", timeout=timeout, **config))


# Files.


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        ({}, TraitStatus.PASS, "with 5 bytes"),
        ({"minBytes": 5}, TraitStatus.PASS, "with 5 bytes"),
        ({"minBytes": 6}, TraitStatus.FAIL, "5 bytes, less than 6"),
        ({"maxAge": "2m"}, TraitStatus.PASS, "is there"),
        ({"maxAge": "30s"}, TraitStatus.FAIL, "60 s old, more than 30 s"),
    ],
)
def test_file_exists__file_is_there__is_held_against_size_and_age(
    tmp_path: Path, config: dict[str, Any], status: TraitStatus, said: str
) -> None:
    file = tmp_path / "_SUCCESS"
    file.write_text("done\n")
    os.utime(file, (NOW.timestamp() - 60, NOW.timestamp() - 60))
    answer = ask("file-exists", path=str(file), **config)
    assert answer.status is status
    assert said in answer.reason
    assert answer.value == {"bytes": 5, "ageSeconds": 60}


def test_file_exists__nothing_or_no_file_there__fails(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        answer = ask("file-exists", path=str(path))
        assert (answer.status, answer.category) == (TraitStatus.FAIL, None)


def test_file_exists__below_what_is_no_folder__is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = ask("file-exists", path=str(tmp_path / "file" / "below"))
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)


def test_file_exists__outside_of_the_roots__is_refused_also_by_way_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret").write_text("x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    for path in ("out/secret", "in/../out/secret", "in/link/secret"):
        with pytest.raises(DefinitionError, match="outside"):
            ask("file-exists", roots=[tmp_path / "in"], path=str(tmp_path / path))
    (tmp_path / "in" / "fine").write_text("x")
    inside = ask("file-exists", roots=[tmp_path / "in"], path=str(tmp_path / "in" / "fine"))
    assert inside.status is TraitStatus.PASS


# Databases.


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "facts.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (date TEXT, amount INTEGER)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [("2026-03-03", n) for n in range(7)])
        connection.commit()
    return path


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({}, TraitStatus.PASS),
        ({"min": 7}, TraitStatus.PASS),
        ({"min": 8}, TraitStatus.FAIL),
        ({"max": 6}, TraitStatus.FAIL),
        ({"max": 7}, TraitStatus.PASS),
        ({"query": "SELECT count(*) FROM orders WHERE date = '2026-03-02'"}, TraitStatus.FAIL),
        ({"query": "SELECT count(*) FROM orders WHERE date = '2026-03-02'", "max": 0}, TraitStatus.PASS),
        (
            {"query": "SELECT count(*) FROM orders WHERE amount > :a", "parameters": {"a": 4}, "min": 2},
            TraitStatus.PASS,
        ),
        (
            {"query": "SELECT count(*) FROM orders WHERE amount > :a", "parameters": {"a": 4}, "min": 3},
            TraitStatus.FAIL,
        ),
    ],
)
def test_sql_count__rows_of_the_runs_date__are_held_against_both_ends(
    database: Path, config: dict[str, Any], status: TraitStatus
) -> None:
    given = {"query": "SELECT count(*) FROM orders WHERE date = :date", **config}
    for name in (str(database), f"sqlite:///{database}", f"sqlite:{database}"):
        answer = ask("sql-count", database=name, **given)
        assert (answer.status, answer.category) == (status, None)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        "INSERT INTO orders VALUES ('x', 1)",
        "DROP TABLE orders",
        "ATTACH '{other}' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT count(*) FROM orders; DROP TABLE orders",
        "VACUUM INTO '{other}'",
        "SELECT * FROM nowhere",
        "SELECT date FROM orders",
        "SELECT 1, 2",
        "SELECT 1 WHERE 0",
        "nonsense",
    ],
)
def test_sql_count__query_does_more_than_count__is_a_permanent_error_and_changes_nothing(
    database: Path, query: str
) -> None:
    before = database.read_bytes()
    answer = ask("sql-count", database=str(database), query=query.format(other=database.with_name("other.db")))
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.PERMANENT)
    assert database.read_bytes() == before
    assert [file.name for file in database.parent.iterdir()] == [database.name]


def test_sql_count__query_attaches_another_file__is_not_opened(database: Path) -> None:
    answer = ask("sql-count", database=str(database), query=f"ATTACH '{database}' AS other")
    assert "not authorized" in answer.reason


def test_sql_count__query_never_ends__is_interrupted(database: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    began = time.monotonic()
    answer = ask("sql-count", database=str(database), query=endless, timeout=0.3)
    assert (answer.status, answer.category) == (TraitStatus.FAIL, FailureCategory.TIMEOUT)
    assert time.monotonic() - began < 3


def test_sql_count__database_is_not_there__is_a_passing_error_and_makes_none(tmp_path: Path) -> None:
    answer = ask("sql-count", database=str(tmp_path / "none.db"), query="SELECT 1")
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)
    assert not (tmp_path / "none.db").exists()


def test_sql_count__database_is_locked__is_a_passing_error(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        answer = ask("sql-count", database=str(database), query="SELECT count(*) FROM orders", timeout=0.2)
    assert (answer.status, answer.category) == (TraitStatus.ERROR, FailureCategory.TRANSIENT)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"database": "postgresql://host/db", "query": "SELECT 1"}, "of postgresql"),
        ({"query": "SELECT 1"}, "database is missing"),
        ({"database": "x.db", "query": "SELECT 1", "parameters": [1]}, "parameters is"),
    ],
)
def test_sql_count__config_is_wrong__is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        ask("sql-count", **config)


# Objects.


class Bucket:
    """What a server that speaks as S3 answers to HEAD requests of the objects of one bucket."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(self, key: str, **config: Any) -> Answer:
        session = boto3.Session(aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1")
        aws = AwsClients(region="us-east-1", endpoint_url=self.server.url, session=session)
        asked = question("builtin:s3-object", bucket="lake", key=key, **config)
        try:
            return probes(aws=lambda: aws)["s3-object"](asked)
        except TriggerFailedError as exc:
            return of_failure(exc)
        finally:
            aws.close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    statuses = {"/lake/there": 200, "/lake/forbidden": 403, "/lake/broken": 500}

    def respond(request: BaseHTTPRequestHandler, _before: int) -> None:
        status = statuses.get(request.path.partition("?")[0], 404)
        headers = {"last_modified": format_datetime(NOW, usegmt=True), "content_length": "5"} if status == 200 else {}
        reply(request, status, b"", **headers)

    with serving(respond) as server:
        yield Bucket(server)


@pytest.mark.parametrize(
    ("key", "config", "status", "category"),
    [
        ("there", {}, TraitStatus.PASS, None),
        ("there", {"minBytes": 6}, TraitStatus.FAIL, None),
        ("there", {"maxAge": "1h"}, TraitStatus.PASS, None),
        ("none", {}, TraitStatus.FAIL, None),
        ("forbidden", {}, TraitStatus.ERROR, FailureCategory.PERMANENT),
        ("broken", {}, TraitStatus.ERROR, FailureCategory.TRANSIENT),
    ],
)
def test_s3_object__answers_of_s3__report_what_is_not_there_from_what_cannot_be_looked_at(
    bucket: Bucket, key: str, config: dict[str, Any], status: TraitStatus, category: FailureCategory | None
) -> None:
    answer = bucket.ask(key, **config)
    assert (answer.status, answer.category) == (status, category)
    assert set(bucket.server.methods) == {"HEAD"}


def test_s3_object__among_the_programs_own_objects__is_refused_and_not_looked_at() -> None:
    def connect() -> AwsClients:
        return AwsClients(region="us-east-1")

    asked = question("builtin:s3-object", bucket="own", key="payloads/run")
    with pytest.raises(DefinitionError, match="own objects"):
        probes(aws=connect, own_objects=("own", "payloads/"))["s3-object"](asked)


def test_s3_object__no_clients_of_aws__is_not_among_the_probes() -> None:
    assert sorted(probes()) == ["file-exists", "sql-count"]
