"""Apps that cannot be loaded: whose fault it is, and where."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from headgate.bootstrap.store import load_app
from headgate.errors import SettingsError


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("import headgate\nimport nosuch_module\n", 2, "ModuleNotFoundError: No module named 'nosuch_module'"),
        ("\n\ndef f(:\n", 3, "SyntaxError: "),
        ("def half() -> float:\n    return 1 / 0\n\n\nhalf()\n", 2, "ZeroDivisionError: division by zero"),
        # What a library raises is the fault of the line that called it.
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
        ("from headgate.clock import nothing\n", 1, "ImportError: "),
    ],
)
def test_load_app__the_users_module_raises__is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: int, message: str
) -> None:
    name = f"broken_{zlib.crc32(source.encode())}"
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError) as raised:
        load_app(f"{name}:app")

    assert f"--app '{name}:app': {file}, line {line}: {message}" in raised.value.message
    assert raised.value.message.endswith("; fix it there")


def test_load_app__module_whose_name_begins_like_a_missing_one__is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nosuch_shop.py").write_text("import nosuch\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match=r"nosuch_shop.py, line 1: ModuleNotFoundError"):
        load_app("nosuch_shop:app")
    with pytest.raises(SettingsError, match="there is no module 'nosuch_other'"):
        load_app("nosuch_other:app")
