"""A home whose keys.json is lost or foreign: nothing starts on it until the keys are back or the loss is accepted."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.acceptance.program import Server, run, until

DATASETS = 24


def _register(server: Server, first: int, count: int) -> list[int]:
    """Register datasets, which makes audit entries in all chains, and return the statuses."""
    with httpx.Client(base_url=server.url, timeout=20) as client:
        return [
            client.post("/api/v1/datasets", json={"dataset_urn": f"urn:dp:keys:d{number}:v1"}).status_code
            for number in range(first, first + count)
        ]


def _stop(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0, server.stderr


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that a server has used, and in `keys.saved` a copy of its keys."""
    folder = tmp_path_factory.mktemp("used")
    home = folder / "home"
    with Server(folder, "--home", str(home)) as server:
        assert set(_register(server, 0, DATASETS)) == {201}
        _stop(server)
    return home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    # The pipe by which commands report their end is made anew by each server.
    return Path(shutil.copytree(used, tmp_path / "home", ignore=shutil.ignore_patterns("*.fifo")))


def _up(home: Path) -> tuple[int, str]:
    ended = run("up", "--home", home, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", folder=home.parent)
    return ended.returncode, ended.stderr


def _keys_check(home: Path) -> dict[str, str]:
    ended = run("doctor", "--json", "--home", home, folder=home.parent)
    (check,) = [each for each in json.loads(ended.stdout) if each["check"] == "keys"]
    assert (ended.returncode == 1) == (check["verdict"] == "FAIL"), ended.stdout
    return dict(check)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_keys__lost__no_start_no_new_keys_and_doctor_names_it(home: Path, tmp_path: Path, is_foreign: bool) -> None:
    keys = home / "keys.json"
    saved = keys.read_bytes()
    keys.unlink()
    if is_foreign:
        run("api-key", "first", "ann", "--home", tmp_path / "other", folder=tmp_path)
        shutil.copy(tmp_path / "other" / "keys.json", keys)

    status, said = _up(home)

    assert status == 70
    assert "keys_lost" in said
    assert "restore it from a backup" in said
    assert "headgate key accept-loss" in said
    assert keys.exists() == is_foreign, "keys were replaced"
    check = _keys_check(home)
    assert check["verdict"] == "FAIL"
    assert "headgate key accept-loss" in check["remedy"]
    if is_foreign:
        return
    keys.write_bytes(saved)
    keys.chmod(0o600)
    assert _keys_check(home)["verdict"] == "OK"
    with Server(tmp_path, "--home", str(home)) as server:
        assert set(_register(server, 100, 4)) == {201}
        _stop(server)


def test_keys__loss_accepted__the_server_starts_and_every_change_works_and_it_is_audited(
    home: Path, tmp_path: Path
) -> None:
    (home / "keys.json").unlink()

    accepted = run("key", "accept-loss", "--reason", "disk died", "--home", home, folder=tmp_path)

    assert accepted.returncode == 0, accepted.stderr
    assert _keys_check(home)["verdict"] == "OK"
    with Server(tmp_path, "--home", str(home)) as server:
        assert set(_register(server, 100, DATASETS)) == {201}
        entries = httpx.get(f"{server.url}/api/v1/audit", params={"page_size": "100"}).json()
        until(lambda: httpx.get(f"{server.url}/health").json()["status"] == "ok", "health without corruption")
        _stop(server)
    assert "disk died" in json.dumps(entries)
    assert "key.loss_accepted" in json.dumps(entries)


def test_keys__home_without_a_record_of_them__adopts_the_present_ones(home: Path, tmp_path: Path) -> None:
    _forget_record(home)

    with Server(tmp_path, "--home", str(home)) as server:
        assert set(_register(server, 100, 2)) == {201}
        _stop(server)
    (home / "keys.json").unlink()

    assert _up(home)[0] == 70


def test_keys__lost_in_a_home_without_a_record__found_by_the_seals_of_the_audit_log(home: Path) -> None:
    _forget_record(home)
    (home / "keys.json").unlink()

    status, said = _up(home)

    assert status == 70
    assert "keys_lost" in said


def _forget_record(home: Path) -> None:
    """Make a home as builds before the record left it."""
    connection = sqlite3.connect(home / "headgate.db")
    deleted = connection.execute("DELETE FROM \"headgate-control\" WHERE pk = 'KEYRING'").rowcount
    connection.commit()
    connection.close()
    assert deleted == 1
