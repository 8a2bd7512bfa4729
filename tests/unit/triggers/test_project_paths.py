"""Relative paths in configs: below the project folder, and looked at when a definition is validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.triggers.project_paths import missing_files, with_project_paths
from tests.unit.pipelines.loading_rig import problems_of, real_triggers

PROJECT = Path("/srv/shop")


@pytest.mark.parametrize(
    ("type", "config", "expected"),
    [
        ("command", {"command": ["x"]}, {"command": ["x"], "folder": "/srv/shop"}),
        ("command", {"command": "x", "folder": "jobs"}, {"command": "x", "folder": "/srv/shop/jobs"}),
        ("command", {"command": "x", "folder": "/opt"}, {"command": "x", "folder": "/opt"}),
        ("fan-out", {"lines": "data/a.txt"}, {"lines": "/srv/shop/data/a.txt"}),
        ("fan-out", {"items": [1]}, {"items": [1]}),
        ("http", {"url": "https://x", "folder": "a"}, {"url": "https://x", "folder": "a"}),
    ],
)
def test_with_project_paths__relative_ones__are_below_the_project(
    type: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert with_project_paths(type, config, PROJECT) == expected


def test_missing_files__what_is_there_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("a\n")
    (tmp_path / "load.sh").write_text("#!/bin/sh\n")

    def missing(type: str, **config: Any) -> list[tuple[tuple[str | int, ...], str]]:
        return [(each.path, each.fact) for each in missing_files(type, config, tmp_path)]

    assert missing("fan-out", lines="data.txt") == []
    assert missing("fan-out", lines="datta.txt") == [(("lines",), f"there is no file {tmp_path}/datta.txt")]
    assert missing("fan-out", lines="${date}.txt") == missing("fan-out", items=[]) == []
    assert missing("command", command=["python", "x.py"]) == []
    assert missing("command", command="./load.sh --all") == [(("command",), f"{tmp_path}/load.sh is not executable")]
    (tmp_path / "load.sh").chmod(0o755)
    assert missing("command", command="./load.sh --all") == []
    assert missing("command", command=["bin/none"]) == [(("command",), f"there is no program {tmp_path}/bin/none")]
    assert missing("command", command="x", folder="jobs") == [(("folder",), f"there is no folder {tmp_path}/jobs")]


def test_load__missing_file__is_a_warning_at_its_line(tmp_path: Path) -> None:
    text = "id: orders\nschedules: [{cron: '@daily'}]\ntrigger:\n  type: command\n  config:\n    command: [./none]\n"
    known = real_triggers(tmp_path)

    found = problems_of(text, type(known)(check_trigger=known.check_trigger, missing_files=_in(tmp_path)))

    assert [(each.line, each.field, each.is_warning) for each in found] == [(6, "trigger.config.command", True)]


def _in(folder: Path) -> Any:
    return lambda kind, config: missing_files(kind, config, folder)
