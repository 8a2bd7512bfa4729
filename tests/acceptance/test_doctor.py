"""`headgate doctor` finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.catalogue.tables import HEALTH_CHECK
from tests.acceptance.program import Server, run, run_as_nobody
from tests.redis_server import RedisServer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that was used and closed in good order, with enough rows for the database to have many pages."""
    home = tmp_path / ".headgate"
    opened = open_store(Settings(home=home), SystemClock())
    for number in range(50):
        opened.store.put(HEALTH_CHECK, {HEALTH_CHECK.partition.name: f"row-{number}", "payload": "x" * 10_000})
    opened.store.close()
    return home


def _diagnosis(
    folder: Path, *arguments: str, **environ: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
    ports = {"HEADGATE_HTTP": "127.0.0.1:0", "HEADGATE_GRPC": "127.0.0.1:0"}
    ended = run("doctor", "--json", *arguments, folder=folder, **(ports | environ))
    return ended, {finding["check"]: finding for finding in json.loads(ended.stdout)}


def _snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode) for path in folder.rglob("*")
    }


def test_doctor__fresh_folder__nothing_fails_and_nothing_is_made(tmp_path: Path) -> None:
    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 0
    assert {finding["verdict"] for finding in findings.values()} <= {"OK", "WARN"}
    assert findings.keys() >= {"python", "sqlite library", "settings", "home", "free space", "filesystem", "file locks"}
    assert "does not exist yet" in findings["database"]["fact"]
    assert list(tmp_path.iterdir()) == []


def test_doctor__home_in_good_order__all_ok_and_not_a_byte_changes(home: Path, tmp_path: Path) -> None:
    before = _snapshot(home)

    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 0
    assert findings["database content"] == {
        "check": "database content",
        "verdict": "OK",
        "fact": "quick_check found no damage",
        "remedy": "",
    }
    assert findings["keys"]["verdict"] == "OK"
    assert _snapshot(home) == before


def test_doctor__for_people__is_a_table_with_facts_and_remedies(home: Path, tmp_path: Path) -> None:
    (home / "keys.json").chmod(0o644)

    ended = run("doctor", folder=tmp_path)

    assert ended.returncode == 1
    (line,) = [line for line in ended.stdout.splitlines() if "keys.json" in line]
    assert line.startswith("FAIL  keys")
    assert f"chmod 600 {home / 'keys.json'}" in line


def test_doctor__database_with_a_damaged_page__fails_with_the_remedy(home: Path, tmp_path: Path) -> None:
    path = home / "headgate.db"
    damaged = bytearray(path.read_bytes())
    # Beyond the header and the schema, in the middle of what the rows fill.
    for offset in range(len(damaged) // 2, len(damaged), 4096):
        damaged[offset : offset + 512] = b"\xa5" * 512
    path.write_bytes(damaged)

    ended, findings = _diagnosis(tmp_path)

    failed = [finding for finding in findings.values() if finding["verdict"] == "FAIL"]
    assert ended.returncode == 1
    assert [finding["check"] for finding in failed] in (["database"], ["database content"])
    assert "backup" in failed[0]["remedy"]
    assert path.read_bytes() == damaged


def test_doctor__database_header_is_gone__fails(home: Path, tmp_path: Path) -> None:
    path = home / "headgate.db"
    path.write_bytes(b"\0" * 4096 + path.read_bytes()[4096:])

    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 1
    assert findings["database"]["verdict"] == "FAIL"


def test_doctor__database_of_another_program__fails_and_leaves_it_alone(tmp_path: Path) -> None:
    home = tmp_path / ".headgate"
    home.mkdir()
    connection = sqlite3.connect(home / "headgate.db")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = _snapshot(home)

    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 1
    assert "another program" in findings["database"]["fact"]
    assert "another home" in findings["database"]["remedy"]
    assert _snapshot(home) == before


@pytest.mark.parametrize("content", [b'{"my": "notes"}', b"\xff\xfe not json", b""])
def test_doctor__keys_are_not_a_keyring__fails(home: Path, tmp_path: Path, content: bytes) -> None:
    (home / "keys.json").write_bytes(content)

    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 1
    assert findings["keys"]["verdict"] == "FAIL"
    assert findings["keys"]["remedy"]


def test_doctor__home_is_a_file__fails(tmp_path: Path) -> None:
    (tmp_path / ".headgate").write_text("not a folder")

    ended, findings = _diagnosis(tmp_path)

    assert ended.returncode == 1
    assert findings["home"]["verdict"] == "FAIL"


AS_NOBODY = """
import os, sys
from headgate.cli.main import load
from headgate.cli.session import Session

def doctor(home):
    try:
        load()(["doctor", "--json", "--home", home], obj=Session({}), standalone_mode=False)
    except SystemExit:
        pass

doctor(sys.argv[1])  # Loads every module while they can still be read.
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
doctor(sys.argv[2])
"""


def test_doctor__home_cannot_be_written__fails(home: Path, tmp_path: Path) -> None:
    # Root may write anywhere, so the second look is taken by a process that has become nobody.
    other = tmp_path / "other"
    home.chmod(0o555)
    for parent in home.parents:
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)

    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, other, home], capture_output=True, text=True, timeout=60, check=False
    )

    home.chmod(0o700)
    findings = {finding["check"]: finding for finding in json.loads(ended.stdout.splitlines()[-1])}
    assert "is not writable" in findings["home"]["fact"]


def test_doctor__settings_are_wrong__fails_with_their_message(tmp_path: Path) -> None:
    ended, findings = _diagnosis(tmp_path, HEADGATE_LOG_LEVEL="loud")

    assert ended.returncode == 1
    assert findings["settings"]["verdict"] == "FAIL"
    assert "log.level" in findings["settings"]["fact"]
    assert "one of debug" in findings["settings"]["remedy"]


def test_doctor__headgate_runs__its_ports_and_open_database_are_ok(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        ended, findings = _diagnosis(
            tmp_path, HEADGATE_HTTP=server.url.removeprefix("http://"), HEADGATE_GRPC=server.grpc
        )

    assert ended.returncode == 0
    assert "served by Headgate" in findings["http port"]["fact"]
    assert "SERVING" in findings["grpc port"]["fact"]
    assert findings["database content"]["verdict"] == "OK"


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_doctor__another_program_on_a_port__fails_and_names_the_flag(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        ended, findings = _diagnosis(tmp_path, **{f"HEADGATE_{name.upper()}": address})

    assert ended.returncode == 1
    assert findings[f"{name} port"]["fact"] == f"{address} is used by another program"
    assert f"--{name} HOST:PORT" in findings[f"{name} port"]["remedy"]


def test_doctor__redis_answers__is_ok_and_its_url_is_not_shown(tmp_path: Path) -> None:
    with RedisServer.start(tmp_path / "redis") as redis:
        ended, findings = _diagnosis(tmp_path, HEADGATE_CACHE_REDIS_URL=redis.url)

    assert ended.returncode == 0
    assert findings["redis"]["verdict"] == "OK"
    assert redis.url not in ended.stdout


def test_doctor__redis_is_away__fails_without_its_password(tmp_path: Path) -> None:
    ended, findings = _diagnosis(tmp_path, HEADGATE_CACHE_REDIS_URL="redis://:hunter2@127.0.0.1:9/0")

    assert ended.returncode == 1
    assert findings["redis"]["verdict"] == "FAIL"
    assert "hunter2" not in ended.stdout + ended.stderr


def test_doctor__dynamodb_is_away__fails_and_makes_no_home(tmp_path: Path) -> None:
    environ = {
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": "eu-west-1",
        "HEADGATE_STORE_AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "HEADGATE_STORE_BLOB_BUCKET": "blobs",
        "HEADGATE_STORE_DEADLINE_SECONDS": "1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }

    ended, findings = _diagnosis(tmp_path, **environ)

    assert ended.returncode == 1
    assert findings["dynamodb tables"]["verdict"] == "FAIL"
    assert list(tmp_path.iterdir()) == []


def test_doctor__home_cannot_be_entered__fails_and_is_no_bug(home: Path, tmp_path: Path) -> None:
    home.chmod(0)

    ended = run_as_nobody("doctor", "--json", "--home", home, folder=tmp_path)

    home.chmod(0o700)
    assert ended.returncode == 1, ended.stderr
    findings = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert findings["home"]["verdict"] == findings["keys"]["verdict"] == findings["database"]["verdict"] == "FAIL"
    assert "Permission denied" in findings["keys"]["fact"]


def test_doctor__home_below_a_folder_that_cannot_be_entered__fails_and_is_no_bug(home: Path, tmp_path: Path) -> None:
    home.chmod(0)

    ended = run_as_nobody("doctor", "--json", "--home", home / "inner", folder=tmp_path)

    home.chmod(0o700)
    assert ended.returncode == 1, ended.stderr
    findings = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert "Permission denied" in findings["home"]["fact"]


def test_doctor__database_cannot_be_written__fails(home: Path, tmp_path: Path) -> None:
    home.chmod(0o777)
    (home / "headgate.db").chmod(0o444)

    ended = run_as_nobody("doctor", "--json", "--home", home, folder=tmp_path)

    assert ended.returncode == 1, ended.stderr
    findings = {finding["check"]: finding for finding in json.loads(ended.stdout)}
    assert findings["home"]["verdict"] == "OK"
    assert findings["database"]["fact"] == f"{home / 'headgate.db'} is not writable"


def test_doctor__table_names_are_wrong__the_settings_fail(tmp_path: Path) -> None:
    ended, findings = _diagnosis(tmp_path, HEADGATE_STORE_TABLE_NAMES='{"headgate-fanouts": "x"}')

    assert ended.returncode == 1
    assert findings["settings"]["verdict"] == "FAIL"
    assert "did you mean 'headgate-fanout'?" in findings["settings"]["remedy"]


def test_doctor__headgate_runs_behind_a_proxy__its_port_is_ok(tmp_path: Path) -> None:
    environ = {"HEADGATE_BEHIND_PROXY": "true", "HEADGATE_ALLOWED_HOSTS": "gate.example"}
    with Server(tmp_path, "--http", "0.0.0.0:0", **environ) as server:
        _, findings = _diagnosis(tmp_path, **environ, HEADGATE_HTTP=server.url.removeprefix("http://"))

    assert "served by Headgate" in findings["http port"]["fact"]


def test_doctor__host_that_is_no_name__fails_and_is_no_bug(tmp_path: Path) -> None:
    environ = {"HEADGATE_BEHIND_PROXY": "true", "HEADGATE_ALLOWED_HOSTS": "gate.example"}

    ended, findings = _diagnosis(tmp_path, **environ, HEADGATE_HTTP="gate..example:8400")

    assert ended.returncode == 1
    assert findings["http port"]["fact"] == "gate..example:8400: invalid host name"
