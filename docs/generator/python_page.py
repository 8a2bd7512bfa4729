"""Generates docs/reference/python.md: every public name of `headgate`, with signature and docstring."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_origin

import msgspec

import headgate as hg
from docs.generator.markdown import NOTE

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Declare": ("App", "Workflow", "Activity", "Retry", "Limit", "Signal", "Query", "Update", "Filter", "ParentClose"),
    "In workflows": (
        "info",
        "now",
        "sleep",
        "sleep_until",
        "wait_condition",
        "wait_signal",
        "on_signal",
        "on_query",
        "on_update",
        "signal",
        "emit",
        "random",
        "uuid",
        "side_effect",
        "log",
        "set_tags",
        "patched",
        "deprecate_patch",
        "continue_as_new",
        "map",
        "Child",
        "Mapped",
    ),
    "In activities": ("activity", "heartbeat", "complete_later"),
    "From outside": (
        "connect",
        "Handle",
        "Client",
        "RemoteHandle",
        "AsyncClient",
        "AsyncRemoteHandle",
        "Status",
        "Reuse",
    ),
    "Values": ("register_type", "Encryption", "KeyProvider", "KeyringKeys"),
    "Errors": (
        "Failure",
        "ActivityFailure",
        "ActivityTimeout",
        "ChildFailure",
        "ExecutionFailure",
        "UpdateFailure",
        "FanoutFailure",
        "Cancelled",
        "NonRetryable",
        "NotAdmittedError",
    ),
    "Tests": ("testing",),
}
MORE = "More"
# Made by the library, not by users.
MADE = {"Workflow", "Activity", "Child", "Handle", "RemoteHandle", "AsyncRemoteHandle", "Mapped", "ActiveChunk"}
# Used between the parts of Headgate.
INTERNAL = {
    "App": {
        "activity_named",
        "activity_names",
        "bind",
        "check_again",
        "commands",
        "has_activity",
        "match",
        "routes",
        "table",
    },
    "Workflow": {"input_of", "start_options"},
    "Activity": {"options_for"},
    "Retry": {"again", "delay_seconds"},
    "Encryption": {"has_key", "open", "seal"},
    "Environment": {"opened", "service", "worker"},
}
_BASES = (object, Exception, BaseException)


def python_page() -> str:
    """Return the page."""
    lines = [
        "# Python API",
        "",
        NOTE,
        "`import headgate as hg`. Type checkers and editors see the same names and types; "
        "[Write workflows](../how-to/write-workflows.md) has examples of each.",
        "",
    ]
    for title, names in _sections():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _testing() if name == "testing" else _name(name, getattr(hg, name))
    return "\n".join(lines)


def _sections() -> Iterator[tuple[str, list[str]]]:
    """Give the sections with the names that there are; names without a section come last."""
    public = [name for name in hg.__all__ if not name.startswith("__")]
    placed = {name for names in SECTIONS.values() for name in names}
    for title, names in SECTIONS.items():
        yield title, [name for name in names if name in public]
    yield MORE, [name for name in public if name not in placed]


def _name(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any public object
    origin = get_origin(value) or value
    if not isinstance(origin, type):
        return [f"### `hg.{name}`", "", *_code([f"{name}{_signature(value)}"]), *_text(value), ""]
    lines = [f"### `hg.{name}`", ""]
    if issubclass(origin, enum.Enum):
        return [*lines, *_text(origin), f"Values: {', '.join(f'`{each.name}`' for each in origin)}.", ""]
    bases = [base.__name__ for base in origin.__bases__ if base not in _BASES and _is_public(base)]
    if bases:
        lines += [f"A kind of {', '.join(f'`hg.{base}`' for base in bases)}.", ""]
    if name not in MADE and not getattr(origin, "_is_protocol", False) and not issubclass(origin, BaseException):
        lines += _code([f"{name}{_signature(origin)}"])
    lines += _text(origin)
    lines += [f"- `{shown}`{_sentence(text)}" for shown, text in _members(origin)]
    return [*lines, ""]


def _testing() -> list[str]:
    environment = hg.testing.Environment
    return [
        "### `hg.testing`",
        "",
        *_text(hg.testing),
        *[
            f"- `{shown}`{_sentence(text)}"
            for shown, text in (("replay" + _signature(hg.testing.replay), _doc(hg.testing.replay)),)
        ],
        "",
        "### `hg.testing.Environment`",
        "",
        *_code([f"Environment{_signature(environment)}"]),
        *_text(environment),
        *[f"- `{shown}`{_sentence(text)}" for shown, text in _members(environment)],
        "",
    ]


def _is_public(kind: type) -> bool:
    return getattr(hg, kind.__name__, None) is kind if kind.__name__ in hg.__all__ else False


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Give the public methods, properties and fields of a class, in the order of the source, inherited ones last."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("headgate"):
            continue
        if base is not kind and issubclass(base, msgspec.Struct):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or name in INTERNAL.get(kind.__name__, ()):
                continue
            seen.add(name)
            if isinstance(member, property):
                yield name, _doc(member)
            elif isinstance(member, classmethod | staticmethod):
                yield f"{name}{_signature(member.__func__, skip_first=isinstance(member, classmethod))}", _doc(member)
            elif inspect.isfunction(member):
                prefix = "async " if inspect.iscoroutinefunction(member) else ""
                yield f"{prefix}{name}{_signature(member, skip_first=True)}", _doc(member)


def _signature(value: Any, *, skip_first: bool = False) -> str:  # noqa: ANN401
    """Return the signature with its annotations, as the source has them."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
    returns = inspect.Signature.empty if isinstance(value, type) else signature.return_annotation
    shown = str(signature.replace(parameters=parameters, return_annotation=returns))
    # Annotations are text, which inspect quotes.
    shown = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", shown).replace("<class 'NoneType'>", "None")
    shown = re.sub(r"'([^']*)'", _unquoted, shown)
    # Names without their modules, and defaults without a form of their own as an ellipsis.
    shown = re.sub(r"\b(?:headgate|msgspec|datetime|typing)(?:\.[a-z_]\w*)*\.(?=[A-Za-z])", "", shown)
    return re.sub(r"<[^>]*>", "...", shown).replace("~", "")


def _unquoted(found: re.Match[str]) -> str:
    before = found.string[: found.start()]
    return found.group(1) if before.endswith((": ", "-> ")) else f'"{found.group(1)}"'


def _doc(value: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _sentence(text: str) -> str:
    return f": {text}" if text else ""


def _text(value: object) -> list[str]:
    found = inspect.cleandoc(value.__doc__ or "")
    return [found, ""] if found else []


def _code(lines: Iterable[str]) -> list[str]:
    return ["```python", *lines, "```", ""]
