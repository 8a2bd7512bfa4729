"""Restore drill: back up a home under load, restore it, serve it; damaged backups and killed commands leave nothing."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.schema import Key
from tests.acceptance.program import Server, run, until

ROOT = Path(__file__).parents[2]
ROUNDS = 25
LARGE = {"PK": "DEDUP#large", "SK": "DEDUP", "text": "x" * 600_000}


def urn(number: int) -> str:
    return f"urn:dp:drill:table_{number}"


class Load:
    """Registers datasets, one after the other, until it is stopped. `acknowledged` are those that were answered."""

    def __init__(self, url: str) -> None:
        self.acknowledged: list[str] = []
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(base_url=f"{self._url}/api/v1", timeout=30) as client:
            number = 0
            while not self._stopping.is_set():
                number += 1
                body = {"dataset_urn": urn(number), "tier": "TIER_2", "owner_team": "drill"}
                assert client.post("/datasets", json=body).status_code == 201
                self.acknowledged.append(urn(number))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Drill:
    """A home that was backed up while a server wrote to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        with Server(folder, "--home", str(self.home)) as server:
            self._put_large()
            load = Load(server.url)
            try:
                until(lambda: len(load.acknowledged) >= 20, "the load")
                self.before = list(load.acknowledged)
                self.written = self._backup("with-keys.tar", "--with-keys")
                self.during = len(load.acknowledged) - len(self.before)
                self._backup("without-keys.tar")
            finally:
                load.stop()

    def _put_large(self) -> None:
        clock = SystemClock()
        with closing(open_store(Settings.load({}, None, {"home": str(self.home)}), clock).store) as store:
            store.put(CONTROL, LARGE)

    def _backup(self, name: str, *options: str) -> Any:
        ended = self.run("backup", name, "--home", str(self.home), "--json", *options)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    return Drill(tmp_path_factory.mktemp("drill"))


def test_drill__backup_under_load__a_server_on_the_restored_home_has_every_acknowledged_write(drill: Drill) -> None:
    assert drill.during > 0, "nothing was written while the backup ran"
    restored = drill.folder / "restored"

    ended = drill.run("restore", "with-keys.tar", "--home", str(restored), "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["manifest"] == drill.written["manifest"]

    clock = SystemClock()
    with closing(open_store(Settings.load({}, None, {"home": str(restored)}), clock).store) as store:
        assert store.get(CONTROL, Key(LARGE["PK"], LARGE["SK"])) == LARGE
    with Server(drill.folder / "second", "--home", str(restored)) as server:
        with httpx.Client(base_url=f"{server.url}/api/v1") as client:
            lost = [each for each in drill.before if client.get(f"/datasets/{each}").status_code != 200]
            assert lost == []
            # The restored home accepts further entries.
            body = {"dataset_urn": urn(10**6), "tier": "TIER_2", "owner_team": "drill"}
            assert client.post("/datasets", json=body).status_code == 201
        until(lambda: "headgate_store_bytes " in httpx.get(f"{server.url}/metrics").text, "the size of the store")
        assert drill.run("vacuum", "--home", str(restored)).returncode == 0
        verified = drill.run("audit", "verify", "--server", server.url)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert verified.stdout.startswith("OK: ")


def test_backup__written__only_its_owner_can_read_it_and_the_manifest_states_the_home(drill: Drill) -> None:
    manifest = drill.written["manifest"]

    assert stat.S_IMODE((drill.folder / "with-keys.tar").stat().st_mode) == 0o600
    assert manifest["rows"]["observability-dataset-registry"] >= len(drill.before)
    assert sum(head["sequence"] for head in manifest["audit_heads"]) >= len(drill.before)
    assert any(name.startswith("blobs/spill/") for name in manifest["files"])
    assert {"build", "schema_format", "created_at"} <= manifest.keys()


def test_restore__backup_without_keys__needs_the_keys_of_the_home(drill: Drill) -> None:
    target = drill.folder / "by-keys"

    refused = drill.run("restore", "without-keys.tar", "--home", str(target))
    assert refused.returncode == 2
    assert "--keys" in refused.stderr
    assert not target.exists()

    other = drill.folder / "other-keys.json"
    other.write_text((drill.home / "keys.json").read_text().replace('"id": "', '"id": "f'))
    other.chmod(0o600)
    refused = drill.run("restore", "without-keys.tar", "--home", str(target), "--keys", str(other))
    assert refused.returncode == 2
    assert not target.exists()

    ended = drill.run("restore", "without-keys.tar", "--home", str(target), "--keys", str(drill.home / "keys.json"))
    assert ended.returncode == 0, ended.stderr
    assert stat.S_IMODE((target / "keys.json").stat().st_mode) == 0o600


def test_restore__home_in_use__is_refused_and_unchanged(drill: Drill) -> None:
    before = (drill.home / "headgate.db").read_bytes()

    ended = drill.run("restore", "with-keys.tar", "--home", str(drill.home))

    assert (ended.returncode, "code: already_exists" in ended.stderr) == (3, True)
    assert (drill.home / "headgate.db").read_bytes() == before


@pytest.mark.parametrize("place", [0.02, 0.5, "manifest", "end"])
def test_restore__backup_altered__is_refused(drill: Drill, tmp_path: Path, place: float | str) -> None:
    altered = tmp_path / "altered.tar"
    shutil.copyfile(drill.folder / "with-keys.tar", altered)
    content = bytearray(altered.read_bytes())
    if place == "end":
        del content[len(content) // 2 :]
    elif place == "manifest":
        at = content.rindex(b'"rows"')
        content[at + 30] ^= 1
    else:
        content[int(len(content) * float(place))] ^= 1
    altered.write_bytes(content)

    ended = drill.run("restore", str(altered), "--home", str(tmp_path / "home"))

    assert (ended.returncode, "code: corruption" in ended.stderr) == (70, True), ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["altered.tar"]


@pytest.mark.timeout(120)
def test_kill_9__backups_and_restores_at_random_moments__nothing_half_written(drill: Drill, tmp_path: Path) -> None:
    paths = [str(each) for each in (drill.home, drill.folder / "with-keys.tar", tmp_path)]
    command = [sys.executable, "-m", "tests.acceptance.backup_rounds", *paths, str(ROUNDS), "20261118"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    # Both kinds of commands were killed in progress, and both finished at times.
    assert all(int(count) > 0 for count in ended.stdout.split()), ended.stdout


def test_backup__dynamodb__names_what_to_use_instead(tmp_path: Path) -> None:
    environ = {
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": "eu-west-1",
        "HEADGATE_STORE_BLOB_BUCKET": "headgate",
    }

    ended = run("backup", "x.tar", folder=tmp_path, **environ)

    assert ended.returncode == 2
    assert "point-in-time recovery" in ended.stderr
    assert "headgate table compare" in ended.stderr
