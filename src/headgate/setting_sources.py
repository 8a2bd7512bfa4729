"""Setting sources: reads raw values from a TOML file, the environment and flags, each with its location."""

from __future__ import annotations

import difflib
import enum
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


class SettingOrigin(enum.StrEnum):
    """The kind of source of a setting."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command_line"


class RawSetting(NamedTuple):
    """A value before conversion, and where it was set. `is_text` marks values of variables and flags."""

    value: object
    source: str
    is_text: bool
    origin: SettingOrigin


def variable(key: str) -> str:
    """Return the name of a setting's environment variable."""
    return _VARIABLE_PREFIX + key.replace(".", "_").upper()


def find_file(environ: Mapping[str, str], file: Path | None) -> Path | None:
    """Return the named settings file, or the one in the current folder if it exists. Raises `SettingsError`."""
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE])
    candidate = Path(FILE_NAME) if file is None else file
    try:
        exists = candidate.is_file()
    except OSError as exc:
        raise SettingsError(
            f"settings file {candidate}: cannot be accessed: {exc.strerror}; correct the permissions of its folder"
        ) from exc
    if file is not None and not exists:
        raise SettingsError(f"settings file {file}: there is no such file; correct --config or {FILE_VARIABLE}")
    return candidate if exists else None


def from_file(file: Path | None, keys: Collection[str]) -> dict[str, RawSetting]:
    """Read the values of a TOML file. Raises `SettingsError` for an unknown key."""
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as exc:
        raise SettingsError(f"settings file {file}: cannot be read: {exc.strerror}; correct its permissions") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"settings file {file}: not TOML: {exc}; correct that line") from exc
    settings = {}
    for key, value in _flat(content, keys):
        source = f"{file}{_line(text, key)}"
        _refuse_unknown(key, key, list(keys), source)
        settings[key] = RawSetting(value, source, is_text=False, origin=SettingOrigin.FILE)
    return settings


def _flat(content: Mapping[str, Any], keys: Collection[str]) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if isinstance(value, dict) and name not in keys:
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _line(text: str, key: str) -> str:
    """Return ` line N` for the line that sets `key`, or its section if the line is not recognised."""
    section, _, name = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([\w.\"-]+)\]", line)
        current = header.group(1) if header else current
        assignment = re.match(r"\s*([\w.-]+)\s*=", line)
        if (assignment and f"{current}.{assignment.group(1)}".strip(".") == key) or (header and current == key):
            return f" line {number}"
    return f" section [{section}]" if section and name else ""


def from_environ(environ: Mapping[str, str], keys: Collection[str]) -> dict[str, RawSetting]:
    """Read the values of `HEADGATE_*` variables. Raises `SettingsError` for an unknown one."""
    key_of = {variable(key): key for key in keys}
    settings = {}
    for name, value in environ.items():
        ours = name.startswith(_VARIABLE_PREFIX) and not name.startswith(_TEST_PREFIX) and name != FILE_VARIABLE
        if not ours or _KUBERNETES.fullmatch(f"{name}={value}"):
            continue
        _refuse_unknown(name, name, [*key_of, FILE_VARIABLE], "the environment")
        if value:
            settings[key_of[name]] = RawSetting(
                value, f"variable {name}", is_text=True, origin=SettingOrigin.ENVIRONMENT
            )
    return settings


# Flags that are not named as their settings.
_FLAGS: Final = {
    "store.backend": "--store",
    "store.aws_region": "--region",
    "store.table_prefix": "--table-prefix",
    "pipelines.folder": "--pipelines",
    "pipelines.watch": "--watch",
    "serve.processes": "--processes",
    "tasks.resources": "--resources",
    "tls.cert": "--tls-cert",
    "tls.key": "--tls-key",
    "worker.async_max": "--async",
    "worker.cached_max": "--cached",
    "worker.isolated_max": "--isolated",
    "worker.metrics": "--metrics",
    "worker.poll_seconds": "--poll-seconds",
    "worker.prefetch_max": "--prefetch",
    "worker.threads_max": "--threads",
}


def from_flags(flags: Mapping[str, object], keys: Collection[str]) -> dict[str, RawSetting]:
    """Read the values of command-line flags. Raises `SettingsError` for an unknown one."""
    settings = {}
    for key, value in flags.items():
        flag = _FLAGS.get(key, "--" + key.replace("_", "-"))
        _refuse_unknown(key, flag, list(keys), "the command line")
        if value is not None:
            settings[key] = RawSetting(
                value, f"flag {flag}", is_text=isinstance(value, str), origin=SettingOrigin.COMMAND_LINE
            )
    return settings


def _refuse_unknown(name: str, shown: str, known: list[str], source: str) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the settings are {', '.join(known)}"
    raise SettingsError(f"{shown} ({source}): there is no such setting; {hint}")
