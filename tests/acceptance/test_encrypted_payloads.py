"""Encrypted payloads: a server without the app never sees them, nor do its files, pages, CLI or backups."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import httpx
import pytest

import headgate as hg
from tests.acceptance.program import PROGRAM, Server, run

SECRET: Final = "4111-1111-2222"
APP: Final = """
import os
from dataclasses import dataclass

import headgate as hg

app = hg.App("vault", codec=hg.Encryption({"2026-11": bytes.fromhex(os.environ["VAULT_KEY"])}))


@dataclass
class Card:
    number: str


confirmed = hg.Signal("confirmed", Card)
renamed = hg.Update("renamed", Card, returns=Card)


@app.activity
def charge(card: Card) -> Card:
    return card


@app.workflow
async def pay(card: Card) -> list[Card]:
    hg.on_update(renamed, lambda new: new)
    return [await charge(card), await hg.wait_signal(confirmed)]


@app.workflow
async def fails(card: Card) -> None:
    raise ValueError(card.number)
"""


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    value = os.urandom(32).hex()
    monkeypatch.setenv("VAULT_KEY", value)
    return value


def _load(path: Path) -> object:
    spec = importlib.util.spec_from_file_location("vault", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vault"] = module
    spec.loader.exec_module(module)
    return module


def test_payloads__server_without_the_app__holds_and_shows_ciphertext(tmp_path: Path, key: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "vault.py").write_text(APP)
    vault = _load(code / "vault.py")
    card = vault.Card(SECRET)  # type: ignore[attr-defined]
    with Server(tmp_path / "server") as server:
        worker = subprocess.Popen(
            [PROGRAM, "worker", "--app", "vault:app", "--home", server.home],
            cwd=code,
            env={"PATH": os.environ["PATH"], "VAULT_KEY": key},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert worker.stdout is not None
            worker.stdout.readline()
            with hg.Client(server.url) as client:
                handle = client.start(vault.pay.options(id="p-1", memo=SECRET), card)  # type: ignore[attr-defined]
                assert handle.update(vault.renamed, card) == card  # type: ignore[attr-defined]
                handle.signal(vault.confirmed, card)  # type: ignore[attr-defined]
                assert handle.result(30) == [card, card]
                failed = client.start(vault.fails.options(id="f-1"), card)  # type: ignore[attr-defined]
                with pytest.raises(hg.ExecutionFailure, match=SECRET):
                    failed.result(30)

            said = _said(code, server, "execution", "show", "p-1")
            assert "encrypted with key 2026-11" in said
            assert '"encrypted with key 2026-11"' in _said(code, server, "execution", "history", "p-1")
            stored = json.loads(_said(code, server, "execution", "result", "p-1"))
            assert stored["headgate.encrypted"]["key"] == "2026-11"
            opened = _said(code, server, "execution", "result", "p-1", "--app", "vault:app", VAULT_KEY=key)
            assert json.loads(opened) == [{"number": SECRET}] * 2
            refused = run(
                "execution", "result", "f-1", "--app", "vault:app", "--server", server.url, folder=code, VAULT_KEY=key
            )
            assert f"ValueError: {SECRET}" in refused.stderr
            page = httpx.get(f"{server.url}/ui/executions/p-1", timeout=20.0).text
            assert "encrypted with key 2026-11" in page
            assert SECRET not in page
            replayed = _said(code, server, "execution", "replay", "p-1", "--app", "vault:app", VAULT_KEY=key)
            assert replayed.startswith("OK: p-1 (pay)")
            other = os.urandom(32).hex()
            without = run(
                "execution", "replay", "p-1", "--app", "vault:app", "--server", server.url, folder=code, VAULT_KEY=other
            )
            assert "encrypted with key 2026-11, and it was altered, or it belongs to another" in without.stderr
        finally:
            worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
        backup = run("backup", tmp_path / "backup.tar", "--home", server.home, folder=code)
        assert backup.returncode == 0, backup.stderr
        with tarfile.open(tmp_path / "backup.tar") as archive:
            archive.extractall(tmp_path / "backup", filter="data")
        files = [each for each in tmp_path.rglob("*") if each.is_file() and each.parent != code]
        assert len(files) > 5
        assert [each for each in files if SECRET.encode() in each.read_bytes()] == []


def _said(code: Path, server: Server, *arguments: str, **environ: str) -> str:
    ended = run(*arguments, "--server", server.url, folder=code, **environ)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
