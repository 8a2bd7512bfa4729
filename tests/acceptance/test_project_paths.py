"""Relative paths of a definition mean the project folder, wherever the server was started."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.acceptance.program import Server, run, until

PIPELINES = """\
id: command
trigger: {type: command, config: {command: [jobs/load.sh]}}
---
id: fan-out
trigger: {type: fan-out, config: {handler: "handlers:seen", lines: data/items.txt}}
---
id: probe
readiness:
  interval: 1s
  traits: {landed: {evaluator: "builtin:file-exists", config: {path: data/items.txt}}}
trigger: {type: command, config: {command: [sh, -c, "echo probe > probed"]}}
"""
DAY = "2026-01-05"


def project(folder: Path) -> Path:
    for name in ("pipelines", "jobs", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "headgate.toml").write_text("")
    (folder / "pipelines" / "all.yaml").write_text(PIPELINES)
    (folder / "jobs" / "load.sh").write_text("#!/bin/sh\npwd > where\n")
    (folder / "jobs" / "load.sh").chmod(0o755)
    (folder / "data" / "items.txt").write_text("a\nb\n")
    (folder / "handlers.py").write_text("def seen(work):\n    return len(list(work))\n")
    return folder


def test_relative_paths__server_started_elsewhere__mean_the_project(tmp_path: Path) -> None:
    shop = project(tmp_path / "shop")
    elsewhere = tmp_path / "elsewhere"
    with Server(elsewhere, "--pipelines", str(shop / "pipelines"), HEADGATE_PROJECT=str(shop)) as server:
        for name in ("command", "fan-out", "probe"):
            url = f"{server.url}/api/v1/pipelines/{name}/runs"
            started = httpx.post(url, json={"date": DAY, "reason": "test"}, timeout=20)
            assert started.status_code == 202, started.text
        for name in ("command", "fan-out", "probe"):
            until(
                lambda name=name: (
                    [each["status"] for each in server.get(f"/pipelines/{name}/runs")["runs"]]  # type: ignore[misc]  # bound now
                    == ["COMPLETED"]
                ),
                f"{name} is done",
            )

    assert (shop / "where").read_text().strip() == str(shop.resolve())
    assert (shop / "probed").exists()


def test_validate__files_that_are_missing__are_warnings_with_file_line_and_field(tmp_path: Path) -> None:
    shop = project(tmp_path / "shop")
    assert run("validate", "shop", folder=tmp_path).stderr.count("there is no") == 0
    (shop / "data" / "items.txt").unlink()
    (shop / "jobs" / "load.sh").unlink()

    checked = run("validate", "shop", folder=tmp_path)

    assert checked.returncode == 0, checked.stderr
    found = [re.sub(r":\d+: ", ": ", line, count=1) for line in checked.stderr.splitlines() if "there is no" in line]
    assert found == [
        f"shop/pipelines/all.yaml:2: warning: trigger.config.command: there is no program {shop}/jobs/load.sh",
        f"shop/pipelines/all.yaml:5: warning: trigger.config.lines: there is no file {shop}/data/items.txt",
    ]
