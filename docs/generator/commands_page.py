"""The page of commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from docs.generator.markdown import NOTE, cell
from headgate.cli.main import load
from headgate.exit_codes import ExitCode


def commands_page() -> str:
    root = typer.main.get_command(load())
    lines = [
        "# Commands",
        "",
        NOTE,
        "Noun, then verb. `--json` prints JSON instead of tables, and errors as JSON on standard error.",
        "",
        "## Exit codes",
        "",
        "Of every command and server process:",
        "",
        "| Exit code | Name | Meaning |",
        "|---|---|---|",
        *(f"| {int(each)} | `{each.name}` | {cell(each.meaning)} |" for each in ExitCode),
        "",
    ]
    for path, command in _walk(root, "headgate"):
        lines += _command_section(path, command)
    return "\n".join(lines)


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer carries a click of its own
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name in sorted(children):
        if not children[name].hidden:
            yield from _walk(children[name], f"{path} {name}")


def _command_section(path: str, command: Any) -> Iterator[str]:  # noqa: ANN401
    arguments = [str(p.name).upper() for p in command.params if p.param_type_name == "argument"]
    yield from (f"## `{' '.join([path, *arguments])}`", "", " ".join((command.help or "").split()), "")
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    for option in options:
        value = f" {option.metavar}" if getattr(option, "metavar", None) else ""
        yield f"- `{option.opts[-1]}{value}`: {getattr(option, 'help', '') or ''}"
    if options:
        yield ""
