"""The page of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    commands = list(_walk(root, "headgate"))
    shared = _shared_options([command for _, command in commands])
    lines += ["## Options of most commands", "", "Where a command has one of them, it means this.", "", *shared, ""]
    for path, command in commands:
        lines += _command_section(path, command, shared)
    return "\n".join(lines)


def _shared_options(commands: Sequence[Any]) -> list[str]:
    """Return the options that at least half of the commands have, in the order of a command."""
    counts = Counter(line for command in commands for line in _options(command))
    return [line for line, count in counts.items() if count * 2 >= len(commands)]


def _options(command: Any) -> list[str]:  # noqa: ANN401
    return [
        f"- `{option.opts[-1]}{f' {option.metavar}' if getattr(option, 'metavar', None) else ''}`: "
        f"{getattr(option, 'help', '') or ''}"
        for option in command.params
        if option.param_type_name == "option" and "--help" not in option.opts
    ]


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer carries a click of its own
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name in sorted(children):
        if not children[name].hidden:
            yield from _walk(children[name], f"{path} {name}")


def _command_section(path: str, command: Any, shared: Sequence[str]) -> Iterator[str]:  # noqa: ANN401
    arguments = [str(p.name).upper() for p in command.params if p.param_type_name == "argument"]
    yield from (f"## `{' '.join([path, *arguments])}`", "", " ".join((command.help or "").split()), "")
    options = _options(command)
    own = [line for line in options if line not in shared]
    names = [line.split("`")[1].split()[0] for line in options if line in shared]
    if own:
        yield from (*own, "")
    if names:
        yield from (f"Also {', '.join(f'`{name}`' for name in names)}.", "")
