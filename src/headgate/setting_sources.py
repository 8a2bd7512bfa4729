"""Where settings are read from: a file, the environment and flags, each value with the place it was given at."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from headgate.errors import SettingsError

FILE_NAME: Final = "headgate.toml"
FILE_VARIABLE: Final = "HEADGATE_CONFIG"
_VARIABLE_PREFIX: Final = "HEADGATE_"
_TEST_PREFIX: Final = "HEADGATE_TEST_"
_KUBERNETES: Final = re.compile(r"HEADGATE_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\w+)=.*|HEADGATE_PORT=\w+://.*", re.S)


class Given(NamedTuple):
    """A value that was given, and where."""

    value: object
    source: str
    is_text: bool


def variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return _VARIABLE_PREFIX + key.replace(".", "_").upper()


def find_file(environ: Mapping[str, str], file: Path | None) -> Path | None:
    """Return the settings file that is named, or is in the current folder, if there is one. Raises `SettingsError`."""
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE])
    looked_for = Path(FILE_NAME) if file is None else file
    try:
        is_there = looked_for.is_file()
    except OSError as exc:
        raise SettingsError(
            f"settings file {looked_for}: cannot be looked for: {exc.strerror}; correct the permissions of its folder"
        ) from exc
    if file is not None and not is_there:
        raise SettingsError(f"settings file {file}: there is no such file; correct --config or {FILE_VARIABLE}")
    return looked_for if is_there else None


def from_file(file: Path | None, keys: Collection[str]) -> dict[str, Given]:
    """Return what a file says of these settings. Raises `SettingsError`."""
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as exc:
        raise SettingsError(f"settings file {file}: cannot be read: {exc.strerror}; correct its permissions") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"settings file {file}: not TOML: {exc}; correct that line") from exc
    found = {}
    for key, value in _flat(content, keys):
        source = f"{file}{_line(text, key)}"
        _refuse_unknown(key, key, list(keys), source)
        found[key] = Given(value, source, is_text=False)
    return found


def _flat(content: Mapping[str, Any], keys: Collection[str]) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if isinstance(value, dict) and name not in keys:
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _line(text: str, key: str) -> str:
    """Return ` line N` for the line that sets `key`, or nothing where it is written in some unusual way."""
    section, _, name = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([\w.\"-]+)\]", line)
        current = header.group(1) if header else current
        written = re.match(r"\s*([\w.-]+)\s*=", line)
        if (written and f"{current}.{written.group(1)}".strip(".") == key) or (header and current == key):
            return f" line {number}"
    return f" section [{section}]" if section and name else ""


def from_environ(environ: Mapping[str, str], keys: Collection[str]) -> dict[str, Given]:
    """Return what the environment says of these settings. Raises `SettingsError`."""
    named = {variable(key): key for key in keys}
    found = {}
    for name, value in environ.items():
        ours = name.startswith(_VARIABLE_PREFIX) and not name.startswith(_TEST_PREFIX) and name != FILE_VARIABLE
        if not ours or _KUBERNETES.fullmatch(f"{name}={value}"):
            continue
        _refuse_unknown(name, name, [*named, FILE_VARIABLE], "the environment")
        if value:
            found[named[name]] = Given(value, f"variable {name}", is_text=True)
    return found


def from_flags(flags: Mapping[str, object], keys: Collection[str]) -> dict[str, Given]:
    """Return what flags say of these settings. Raises `SettingsError`."""
    found = {}
    for key, value in flags.items():
        flag = "--" + key.replace("_", "-")
        _refuse_unknown(key, flag, list(keys), "the command line")
        if value is not None:
            found[key] = Given(value, f"flag {flag}", is_text=isinstance(value, str))
    return found


def _refuse_unknown(name: str, shown: str, known: list[str], source: str) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the settings are {', '.join(known)}"
    raise SettingsError(f"{shown} ({source}): there is no such setting; {hint}")
