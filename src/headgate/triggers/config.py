"""Trigger config: decodes the config of a trigger into the struct of its kind, with errors that name the field."""

from __future__ import annotations

import difflib
import re
import types
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.duration import from_json_type
from headgate.errors import DefinitionError

C = TypeVar("C")

_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_PATH: Final = re.compile(r"`\$\.?([\w]*)")
_LIST: Final = (list, tuple)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset(
    {"host", "connection", "content-length", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config of one kind. Unknown fields are rejected."""


def read(kind: str, config_type: type[C], value: dict[str, Any]) -> C:
    """Decode a config. Raises `DefinitionError`, which names the field and the allowed values."""
    try:
        return typed_decode.convert(value, config_type, dec_hook=from_json_type)
    except msgspec.ValidationError as exc:
        raise DefinitionError(f"trigger {kind}: {_explained(config_type, str(exc))}") from exc


def between(name: str, value: float, low: float, high: float) -> None:
    """Raise `ValueError` for a number that is out of bounds."""
    if not low <= value <= high:
        raise ValueError(f"{name} {value:g}: use a number from {low:g} to {high:g}")


def exactly_one(**given: object) -> str:
    """Return the name of the one option that is set. Raises `ValueError` unless exactly one is."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        problem = " and ".join(names) + " are given" if names else "none is given"
        raise ValueError(f"give one of {', '.join(given)}; {problem}")
    return names[0]


def check_headers(headers: dict[str, str]) -> None:
    """Raise `ValueError` for an invalid header, or one that the client sets itself."""
    for name in headers:
        if not _HEADER.fullmatch(name):
            raise ValueError(f"headers: {name[:40]!r} is not a valid header name")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise ValueError(f"headers: {name} is set by the client; leave it out")


def check_url(url: str) -> None:
    """Raise `ValueError` for an invalid URL."""
    if not re.match(r"https?://[^/\s]+", url) or re.search(r"[\s\x00-\x1f]", url):
        raise ValueError(f"url {url[:80]!r}: use a URL that begins with https://, or with http:// if allowed")


def check_name(field: str, value: str) -> None:
    """Raise `ValueError` for an empty name or a wildcard."""
    if not value.strip() or "*" in value:
        raise ValueError(f"{field} {value[:80]!r}: give one name, not empty and without '*'")


def _explained(config_type: type, message: str) -> str:
    fields = get_type_hints(config_type)
    unknown = _UNKNOWN.search(message)
    if unknown is not None and "`$." not in message:
        near = difflib.get_close_matches(unknown.group(1), fields, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{unknown.group(1)}: there is no such field; {hint}the fields are {', '.join(fields)}"
    if "missing required field" in message:
        return f"{message}; the fields are {', '.join(fields)}"
    path = _PATH.search(message)
    allowed = _choices(fields.get(path.group(1))) if path is not None else []
    return f"{message}; use one of {', '.join(map(str, allowed))}" if allowed else message


def _choices(field_type: object) -> list[object]:
    """Return the allowed values of a field that is limited to some."""
    if get_origin(field_type) is Literal:
        return list(get_args(field_type))
    if get_origin(field_type) in (Union, types.UnionType, *_LIST):
        return [choice for inner in get_args(field_type) for choice in _choices(inner)]
    return []
