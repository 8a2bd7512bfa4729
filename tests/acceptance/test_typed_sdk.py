"""The SDK as type checkers and editors see it: the installed package, mypy --strict and pyright."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headgate as hg

_HERE = Path(__file__).parent / "typed"
_RIGHT, _PLANTED = "right_usage.py", "planted_errors.py"
_BIN = Path(sys.executable).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user, with both files and no configuration of this repository."""
    for name in (_RIGHT, _PLANTED):
        shutil.copy(_HERE / name, tmp_path / name)
    return tmp_path


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYTHONPATH": ""}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 1, f"{command}: {ended.stdout[-2000:]} {ended.stderr[-2000:]}"
    return ended.stdout


def _mypy(folder: Path) -> set[tuple[str, int]]:
    # One worktree uses one cache: the checker reads the package again only if it has changed.
    cache = Path(__file__).parents[2] / ".mypy_cache" / "typed_sdk"
    options = ["--strict", "--no-error-summary", "--hide-error-context", "--no-pretty", "--cache-dir", str(cache)]
    output = _run([str(_BIN / "mypy"), *options, _RIGHT, _PLANTED], folder)
    return {(name, int(line)) for name, line in re.findall(r"^(\S+?):(\d+): error", output, re.MULTILINE)}


def _pyright(folder: Path) -> set[tuple[str, int]]:
    output = _run([str(_BIN / "pyright"), "--outputjson", "--pythonpath", sys.executable, _RIGHT, _PLANTED], folder)
    found = [each for each in json.loads(output)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}


@pytest.mark.parametrize("check", [_mypy, _pyright], ids=["mypy --strict", "pyright"])
def test_type_checker__planted_errors_and_right_usage__refuses_exactly_the_errors(
    project: Path, check: Callable[[Path], set[tuple[str, int]]]
) -> None:
    lines = (project / _PLANTED).read_text().splitlines()
    planted = {(_PLANTED, number) for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(planted) >= 60

    assert check(project) == planted


def test_editor__every_public_name__is_declared_statically(tmp_path: Path) -> None:
    names = [name for name in hg.__all__ if name != "testing"]
    script = tmp_path / "names.py"
    script.write_text("import headgate as hg\n" + "".join(f"reveal_type(hg.{name})\n" for name in names))
    command = [str(_BIN / "pyright"), "--outputjson", "--pythonpath", sys.executable, "names.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    answers = json.loads(ended.stdout)["generalDiagnostics"]

    assert len(answers) == len(names)
    # "error": the name is not declared; "Unknown" alone: it is declared, and its type is not.
    assert not [each for each in answers if each["severity"] == "error" or each["message"].endswith('is "Unknown"')]
    assert set(hg.__all__) <= set(dir(hg))
