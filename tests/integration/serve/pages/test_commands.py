"""Commands of pages exist with the options shown, also on pages that no test renders."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from headgate.serve.pages import labels
from tests.integration.serve.pages.shown_commands import refusal, refused, refused_of

PAGES: Final = Path(labels.__file__).parent
TEMPLATES: Final = sorted((PAGES / "templates").glob("*.html"))
VIEWS: Final = sorted(PAGES.rglob("*.py"))
# An expression of a template between two texts, or at the end of one.
_EXPRESSION: Final = re.compile(r'" ~ [^~"]+(?: ~ "|$)')
# A word in place of a value that only a page knows: it is a name, a date or a number.
VALUE: Final = "2026-01-31"


def written_in(template: str) -> list[str]:
    """Return the commands in the text of a template, with values in place of expressions."""
    given = re.findall(r'cli\("(headgate .*?)\)\s*\}\}', template)
    plain = re.findall(r"<code>(headgate [^<{]+)</code>", template)
    texts = (_EXPRESSION.sub(VALUE, each).rstrip('"').replace('\\"', '"') for each in given)
    return [*plain, *(each for each in texts if _has_verb(each.split()[1:]))]


def declared_in(source: str) -> list[list[str]]:
    """Return the literal words of each command that a view builds."""
    found: list[list[str]] = []
    taken: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            calls = [each.value for each in node.values if isinstance(each, ast.FormattedValue)]
            built = [each for each in calls if _is_command(each)]
            if built:
                taken |= {id(each) for each in built}
                more = "".join(str(each.value) for each in node.values if isinstance(each, ast.Constant))
                found.append([*_literals(built[0]), *more.split()])
        elif isinstance(node, ast.Call) and _is_command(node) and id(node) not in taken:
            found.append(_literals(node))
    return [each for each in found if _has_verb(each)]


def _has_verb(words: list[str]) -> bool:
    """Whether the command itself is written out; the tests that render a page check the others."""
    return VALUE not in words[:2] or words[0] in ("why", "init")


def _is_command(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command"


def _literals(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.Call)
    return [str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.args]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.name)
def test_template__each_command_in_it__is_taken_by_the_program(template: Path) -> None:
    assert refused_of(written_in(template.read_text())) == []


@pytest.mark.parametrize("view", VIEWS, ids=lambda each: str(each.relative_to(PAGES)))
def test_view__each_command_it_builds__has_a_verb_and_options_that_exist(view: Path) -> None:
    """Values are unknown here: only a word that names no command or option is a fault."""
    said = {" ".join(words): refusal(tuple(words)) for words in declared_in(view.read_text())}

    assert {words: why for words, why in said.items() if why.startswith("No such")} == {}


def test_commands__all_pages__are_found() -> None:
    assert len([each for path in TEMPLATES for each in written_in(path.read_text())]) > 25
    assert len([each for path in VIEWS for each in declared_in(path.read_text())]) > 80


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("headgate fanout lanes monday", "No such command"),
        ("headgate run ls --state FAILED", "No such option: --state"),
        ("headgate run rerun silver", "Missing"),
        ("headgate why silver --date 2026-01-31", "an earlier spelling"),
        ("headgate period why silver --date 2026-01-31", ""),
    ],
)
def test_refused__a_command_on_a_page__is_parsed_whole(command: str, why: str) -> None:
    page = f'<span class="cli"><code>x</code><button data-copy="{command}">Copy</button></span>'

    assert [why in each for each in refused(page)] == ([True] if why else [])
