"""Trigger config: decodes the config of a trigger into the struct of its kind, with errors that name the field."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.duration import from_json_type
from headgate.errors import DefinitionError

C = TypeVar("C")

# A message about fields that do not go together begins with the name of one.
_LEADING: Final = re.compile(r"([a-z_][a-z0-9_.]*)(?=[ :])")
_LIST: Final = (list, tuple)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset(
    {"host", "connection", "content-length", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config of one kind. Unknown fields are rejected."""


class FieldProblem(Struct, frozen=True, kw_only=True):
    """What is wrong with one field of a config. `path` is empty for a problem of the config as a whole."""

    path: tuple[str | int, ...] = ()
    fact: str
    allowed: str = ""
    suggestion: str = ""

    def text(self) -> str:
        """Return it as a phrase that names the field."""
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")
        hint = f"did you mean {self.suggestion!r}?" if self.suggestion else ""
        parts = [f"{place}: {self.fact}" if place else self.fact, f"{hint} {self.allowed}".strip()]
        return "; ".join(part for part in parts if part)


class ConfigError(DefinitionError):
    """A config is invalid. `problems` has all its problems by field."""

    def __init__(self, kind: str, problems: Sequence[FieldProblem]) -> None:
        super().__init__(f"trigger {kind}: " + "; ".join(problem.text() for problem in problems))
        self.problems = tuple(problems)


def read(kind: str, config_type: type[C], value: dict[str, Any]) -> C:
    """Decode a config. Raises `ConfigError`, which names every wrong field and the allowed values."""
    try:
        return typed_decode.convert(value, config_type, dec_hook=from_json_type)
    except msgspec.ValidationError as exc:
        problems = list(_problems(config_type, value)) or [_as_a_whole(config_type, str(exc))]
        raise ConfigError(kind, problems) from exc


def check_fields(kind: str, config_type: type[C], value: dict[str, Any]) -> None:
    """Raise `ConfigError` for fields that are unknown, also below a struct that ignores them, missing or wrong."""
    problems = list(_problems(config_type, value))
    if problems:
        raise ConfigError(kind, problems)


def _problems(config_type: Any, value: dict[str, Any]) -> Iterator[FieldProblem]:  # noqa: ANN401 - a struct
    """Yield what is wrong with the fields of a config, each taken for itself."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(config_type)}
    listed = f"the fields are {', '.join(fields)}"
    meant: set[str] = set()
    for name in value:
        if name not in fields:
            near = difflib.get_close_matches(name, [each for each in fields if each not in value], 1, 0.5)
            meant.update(near)
            yield FieldProblem(path=(name,), fact="there is no such field", suggestion="".join(near), allowed=listed)
    for name, field in fields.items():
        if name not in value:
            # A misspelt field is not missing as well.
            if field.required and name not in meant:
                yield FieldProblem(path=(name,), fact="it is missing", allowed=listed)
            continue
        given, inner = value[name], _struct_in(field.type)
        nested = list(_problems(inner, given)) if inner is not None and isinstance(given, dict) else []
        if nested:
            yield from (msgspec.structs.replace(each, path=(name, *each.path)) for each in nested)
            continue
        try:
            typed_decode.convert(given, field.type, dec_hook=from_json_type)
        except msgspec.ValidationError as exc:
            yield _of_field(name, field.type, str(exc))


def _of_field(name: str, field_type: object, message: str) -> FieldProblem:
    fact, _, place = message.partition(" - at `$")
    below = tuple(int(step) if step.isdigit() else step for step in re.findall(r"[\w-]+", place) if step != "...")
    choices = _choices(field_type)
    allowed = f"use one of {', '.join(map(str, choices))}" if choices else ""
    return FieldProblem(path=(name, *below), fact=fact[:1].lower() + fact[1:], allowed=allowed)


def _as_a_whole(config_type: Any, message: str) -> FieldProblem:  # noqa: ANN401 - a struct
    """Return the problem of fields that do not go together; the message begins with the name of one."""
    fact = message.partition(" - at `$")[0]
    named = _LEADING.match(fact)
    if named is None or named.group(1).split(".")[0] not in config_type.__struct_fields__:
        return FieldProblem(fact=fact)
    rest = fact[named.end() :]
    return FieldProblem(path=tuple(named.group(1).split(".")), fact=rest[1:].strip() if rest[0] == ":" else fact)


def _struct_in(field_type: object) -> type[Struct] | None:
    """Return the struct that a field holds, if it holds one."""
    kinds = get_args(field_type) if get_origin(field_type) in (Union, types.UnionType) else (field_type,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)), None)


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


def _choices(field_type: object) -> list[object]:
    """Return the allowed values of a field that is limited to some."""
    if get_origin(field_type) is Literal:
        return list(get_args(field_type))
    if get_origin(field_type) in (Union, types.UnionType, *_LIST):
        return [choice for inner in get_args(field_type) for choice in _choices(inner)]
    return []
