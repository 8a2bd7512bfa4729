"""Commands that documents, messages and comments name: each exists, in its present spelling, with the options shown."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headgate.cli.main import load

ROOT = Path(__file__).parents[2]
# Decisions tell what was; the reference of commands is generated.
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    if "adr" not in page.parts and page.name != "commands.md"
)
# What the program prints, deploys and documents itself with.
SOURCES = sorted(
    path
    for folder in ("src", "deploy", "integrations", "examples", "bench", "docs/generator", "docs/reference")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".html", ".js", ".tf", ".yml", ".yaml", ".sh", ".md", ".toml", ".json"}
)
# In quotes or backticks, or alone on its line behind a label.
_NAMED = re.compile(r"(?:(?<=[`'])|(?<=^)|(?<= {2}))headgate ([a-z][a-z-]*(?: [^`'\n]*)?)(?=[`'\n]|$)", re.MULTILINE)
# Lines that the program prints about itself.
_NO_COMMANDS = re.compile(r"(?:(?:chunk )?worker )?ready\b|worker (?:restarted|stopped)\b")
# Ends the command: a pipe, a redirection, another command, or a comment.
END = re.compile(r"\s(?:\||\|\||&&|;|2?>{1,2}|<|&|#)(?:\s|$)")
_OF_ALL = frozenset({"--help", "-h", "--debug", "--version", "--json"})


@functools.cache
def root_command() -> Any:
    return typer.main.get_command(load())


def shown_in(page: Path) -> Iterator[str]:
    """Give the commands of a page, without `headgate`."""
    text = page.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        prompt = r"\$ " if language == "console" else ""
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(rf"{prompt}(?:[A-Z_]+=\S+ )*headgate ([a-z].*)", line)
            if found:
                yield found[1]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`headgate ([a-z][^`]*)`", prose)


def _fault(shown: str) -> str:
    """Return what is wrong with a command; empty if nothing is."""
    line = END.split(shown, maxsplit=1)[0]
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    command, path = root_command(), "headgate"
    while words and getattr(command, "commands", None):
        name = words[0]
        if name.startswith("-") or name in ("…", "..."):
            return ""
        names = [each for each in name.split("|") if re.fullmatch(r"[a-z][a-z-]*", each)]
        for each in names:
            if each not in command.commands:
                return f"'{path} {each}' does not exist"
            if command.commands[each].hidden:
                return f"'{path} {each}' is an earlier spelling"
        if not names:
            return f"'{path} {name}' is no command"
        command, path, words = command.commands[names[0]], f"{path} {name}", words[1:]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | _OF_ALL
    given = [re.split(r"[=|\]]", word.strip("[]"))[0] for word in words if word.strip("[").startswith("--")]
    unknown = [option for option in given if option not in known and option != "--"]
    return f"'{path}' has no {', '.join(unknown)}" if unknown else ""


def _texts(path: Path) -> Iterator[str]:
    """Give what a file says: of Python its strings, with fields of f-strings as words, and its comments."""
    text = path.read_text()
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "FIELD" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield "\n".join(re.findall(r"^\s*# (.*)", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands__that_a_page_shows__exist_with_their_options(page: Path) -> None:
    assert [f"headgate {shown}: {fault}" for shown in shown_in(page) if (fault := _fault(shown))] == []


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        ("pipeline validate .", ""),
        ("validate .", "'headgate validate' is an earlier spelling"),
        ("period why shop-daily --date 2026-01-05 | head", ""),
        ("period why shop-daily --day 2026-01-05", "'headgate period why' has no --day"),
        ("up --app app:app 2> headgate.log &", ""),
        ("incident frob INC-1", "'headgate incident frob' does not exist"),
    ],
)
def test_fault__of_a_command__says_what_is_wrong(shown: str, fault: str) -> None:
    assert _fault(shown) == fault


def test_commands__of_all_pages__are_many() -> None:
    assert sum(1 for page in PAGES for _ in shown_in(page)) > 400


def test_commands__that_messages_and_comments_name__exist_in_their_present_spelling() -> None:
    named = [
        (path.relative_to(ROOT), shown)
        for path in SOURCES
        if "headgate " in path.read_text()
        for text in _texts(path)
        for shown in _NAMED.findall(text)
        if not _NO_COMMANDS.match(shown)
    ]

    assert len(named) > 300
    assert [f"{path}: headgate {shown}: {fault}" for path, shown in named if (fault := _fault(shown))] == []
