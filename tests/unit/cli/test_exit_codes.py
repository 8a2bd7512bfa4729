"""One table of exit codes: commands and errors use no number that it lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headgate
from headgate import errors
from headgate.exit_codes import ExitCode

CLI = Path(headgate.__file__).parent / "cli"


def literal_exits(source: str) -> list[int]:
    """Return the lines where a process is ended with a number of its own."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("Exit", "exit", "_exit")
        and any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in ast.walk(node))
    ]


def literal_codes(source: str) -> list[int]:
    """Return the lines where a number is called an exit code."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and "EXIT" in ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int)
    ]


def subclasses(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def test_commands__ending_with_a_code__take_it_from_the_table() -> None:
    found = [f"{each.name}:{line}" for each in CLI.rglob("*.py") for line in literal_exits(each.read_text())]

    found += [f"{each.name}:{line}" for each in CLI.rglob("*.py") for line in literal_codes(each.read_text())]

    assert literal_codes("A_EXIT_CODE: Final = 3") == [1], "the search finds nothing at all"
    assert literal_exits("import typer\nraise typer.Exit(3 if x else y)") == [2], "the search finds nothing at all"
    assert found == []


def test_errors__of_every_family__have_a_code_of_the_table() -> None:
    found = [each.__name__ for each in subclasses(errors.HeadgateError) if not isinstance(each.exit_code, ExitCode)]

    assert found == []


def test_meaning__of_each_code__is_one_sentence() -> None:
    assert all(each.meaning.endswith(".") for each in ExitCode)
    assert len({each.meaning for each in ExitCode}) == len(ExitCode)
