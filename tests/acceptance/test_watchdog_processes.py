"""The watchdog that a server starts: it has the server's settings, a home has one, and it ends with its home."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from pathlib import Path

import httpx

from tests.acceptance.program import Server, until, watchdogs_of

PIPELINE = 'id: cmd\ntrigger:\n  type: command\n  config: {command: ["true"]}\n'
# More kills find no more: the second start already has an older watchdog to replace.
KILLS = 4


def _pipelines(folder: Path) -> Path:
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    (pipelines / "cmd.yaml").write_text(PIPELINE)
    return pipelines


def _has_database(pid: int, database: Path) -> bool:
    opened = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return f"{database}-wal" in opened


def test_watchdog__server_with_a_config_and_a_table_prefix__has_its_settings_and_the_server_runs_on(
    tmp_path: Path,
) -> None:
    home, config = tmp_path / "home", tmp_path / "other.toml"
    config.write_text('[store]\ntable_prefix = "zz-"\n')

    with Server(
        tmp_path, "--home", str(home), "--config", str(config), "--pipelines", str(_pipelines(tmp_path))
    ) as server:
        database = home / "headgate.db"
        until(lambda: any(_has_database(pid, database) for pid in watchdogs_of(home)), "a watchdog with the database")

        emitted = httpx.post(f"{server.url}/api/v1/events", json={"type": "after.watchdog"})

        assert emitted.status_code == 202, emitted.text
        assert server.process.poll() is None, server.stderr
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        connection.close()
        assert [name for name in tables if not name.startswith(("zz-", "headgate:", "sqlite_"))] == []
        assert "another build" not in server.stderr
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0, server.stderr
    assert watchdogs_of(home) == []


def test_watchdog__server_killed_and_restarted_several_times__one_is_left_and_it_ends_with_the_home(
    tmp_path: Path,
) -> None:
    home, pipelines = tmp_path / "home", _pipelines(tmp_path)
    seen: set[int] = set()
    for _ in range(KILLS):
        with Server(tmp_path, "--home", str(home), "--pipelines", str(pipelines)) as server:
            until(lambda: not seen.issuperset(watchdogs_of(home)), "a watchdog of this server")
            seen.update(watchdogs_of(home))
            server.process.kill()
            server.process.wait()
            server.home = tmp_path / "none"  # So that the end of the block leaves the watchdog alone.
    try:
        until(lambda: len(watchdogs_of(home)) == 1, "the end of the older watchdogs")
        assert len(seen) >= KILLS
        (last,) = watchdogs_of(home)
        assert last in seen

        shutil.rmtree(home)

        until(lambda: watchdogs_of(home) == [], "the end of the watchdog", 15)
        assert not home.exists()
    finally:
        for pid in watchdogs_of(home):
            os.kill(pid, signal.SIGKILL)
