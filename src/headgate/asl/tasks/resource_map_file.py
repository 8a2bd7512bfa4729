"""Resource map file: reads a resource map, in YAML or JSON, from the project folder and from nowhere else.

A map may name programs and functions, so it is never stored and never accepted through the API: each process reads the
file of its own project when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.mock_config import MockConfig, is_mock_config, read_mock_config
from headgate.asl.tasks.resource_map import MappedResource, ResourceMap
from headgate.durable.model.duration import from_json_type
from headgate.errors import DefinitionError, SettingsError

BYTES_MAX: Final = 16 * 1_048_576


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a resource map."""

    resources: list[Any]
    # A file of test cases beside it, in the format of Step Functions Local.
    mocks: str | None = None


def load_resource_map(file: Path, project: Path | None) -> ResourceMap:
    """Read a resource map, or a MockConfigFile of Step Functions Local.

    A relative path means the project folder. Raises `SettingsError` for a file outside of it, and `DefinitionError`
    for content that cannot be used, naming the entry and what is allowed.
    """
    path = _within(file, project)
    content = _read(path)
    document = _parsed(content, file)
    if is_mock_config(document):
        return ResourceMap(mocks=read_mock_config(document, str(file)), source=str(file))
    try:
        read = typed_decode.convert(document, _File)
    except msgspec.ValidationError as exc:
        raise DefinitionError(
            f"resource map {file}: {exc}; write 'resources:' with a list of entries, or the StateMachines and "
            "MockedResponses of a MockConfigFile"
        ) from exc
    entries = tuple(_entry(each, index, file) for index, each in enumerate(read.resources))
    return ResourceMap(entries, _mocks(read.mocks, path, project), str(file))


def _mocks(named: str | None, path: Path, project: Path | None) -> MockConfig:
    if named is None:
        return MockConfig()
    mocks = _within(path.parent / named, project)
    return read_mock_config(_parsed(_read(mocks), mocks), named)


def _entry(value: Json, index: int, file: Path) -> MappedResource:
    try:
        return typed_decode.convert(value, MappedResource, dec_hook=from_json_type)
    except msgspec.ValidationError as exc:
        raise DefinitionError(f"resource map {file}: resources[{index}]: {exc}") from exc


def _within(file: Path, project: Path | None) -> Path:
    """Return the real path of a file. Raises `SettingsError` unless it is below the project folder."""
    if project is None:
        raise SettingsError(
            f"resource map {file}: there is no project folder here; start Headgate in the folder of the project"
        )
    folder = Path(os.path.realpath(project))
    real = Path(os.path.realpath(folder / file))
    if not real.is_relative_to(folder):
        raise SettingsError(
            f"resource map {file}: it is outside of the project folder {folder}; a map may name programs, so it is "
            "read from there only; move it there"
        )
    return real


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as exc:
        raise SettingsError(f"resource map {path}: it cannot be read: {exc.strerror}; correct the path") from exc
    if len(content) > BYTES_MAX:
        raise SettingsError(f"resource map {path}: it has more than {BYTES_MAX:,} bytes")
    return content


def _parsed(content: bytes, file: Path) -> Json:
    # Imported on use: most processes have no map.
    import yaml

    is_json = file.suffix == ".json"
    try:
        # A date of YAML becomes text, as JSON has it.
        return msgspec.json.decode(content) if is_json else msgspec.to_builtins(yaml.safe_load(content.decode()))
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as exc:
        text = " ".join(str(exc).split())
        raise DefinitionError(f"resource map {file}: it is not {'JSON' if is_json else 'YAML'}: {text}") from exc
