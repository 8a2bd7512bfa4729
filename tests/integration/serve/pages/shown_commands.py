"""Commands that pages show: each is parsed by the program's own parser, and not run."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from typing import Any, Final

import msgspec
import typer

from headgate.cli.main import load

PROGRAM: Final = "headgate"
# What the parser raises, whose package typer keeps to itself.
_UsageError: Final[Any] = typer.BadParameter.__base__
_PLACEHOLDER: Final = re.compile(r"\{([a-z_.]+)\}")


def refused(html: str) -> list[str]:
    """Return the commands of a page that the program refuses, each with the reason."""
    return refused_of(_Shown.read(html))


def refused_of(commands: Iterable[str]) -> list[str]:
    """Return the commands that the program refuses, each with the reason."""
    found = ((text, refusal(tuple(shlex.split(text)[1:]))) for text in commands)
    return [f"{text}: {why}" for text, why in found if why]


@functools.cache
def refusal(words: tuple[str, ...]) -> str:
    """Return why the program refuses the words after its name; empty if it takes them."""
    command, rest = _program(), list(words)
    while hasattr(command, "commands"):
        found = command.commands.get(rest[0]) if rest else None
        if found is None:
            return f"No such command: {' '.join(words)}"
        if found.hidden:
            return f"No such command, but an earlier spelling: {' '.join(words)}"
        command, rest = found, rest[1:]
    try:
        command.make_context(command.name, rest)
    except _UsageError as exc:
        return str(exc.format_message())
    return ""


@functools.cache
def _program() -> Any:
    return typer.main.get_command(load())


class _Shown(HTMLParser):
    """Collects the commands of a page: those to copy, those of its actions, and those in its text."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[str] = []
        self._is_code = False

    @classmethod
    def read(cls, html: str) -> list[str]:
        found = cls()
        found.feed(html)
        found.close()
        return found.commands

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._is_code = tag == "code"
        if given.get("data-copy"):
            self._add(str(given["data-copy"]))
        if given.get("data-action"):
            self._add(filled(msgspec.json.decode(str(given["data-action"]))))

    def handle_endtag(self, tag: str) -> None:
        self._is_code = False

    def handle_data(self, data: str) -> None:
        if self._is_code:
            self._add(data)

    def _add(self, text: str) -> None:
        if text.startswith(f"{PROGRAM} "):
            self.commands.append(text)


def filled(action: Mapping[str, Any]) -> str:
    """Return the command of an action as its dialog shows it, once its fields are filled in."""
    fields = {each["name"]: each for each in action["fields"]}

    def value(match: re.Match[str]) -> str:
        field = fields[match[1]]
        samples = {"number": "1", "json": "{}", "select": next(iter(field["choices"]), "")}
        return shlex.quote(field["value"] or samples.get(field["kind"], "1h"))

    return _PLACEHOLDER.sub(value, action["cli"])
