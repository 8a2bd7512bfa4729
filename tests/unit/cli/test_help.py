"""Help: each group of commands lists whole sentences, none of them cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import typer.main

from headgate.cli.main import load
from tests.unit.cli.program import invoke


def groups() -> Iterator[tuple[str, ...]]:
    """Give the path of each group of commands."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, each in command.commands.items():
            if hasattr(each, "commands") and not each.hidden:
                yield (*path, name)
                yield from below(each, (*path, name))

    yield from below(typer.main.get_command(load()), ())


@pytest.mark.parametrize("path", list(groups()), ids=" ".join)
def test_help__of_each_group__has_whole_sentences(path: tuple[str, ...]) -> None:
    # As wide as a terminal is by default.
    shown = invoke([*path, "--help"]).stdout

    assert "Commands:" in shown
    assert "..." not in shown.replace("[ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80


EARLIER: Final = {
    "asl describe": "asl show-execution",
    "calendar rm": "calendar delete",
    "dataset rule rm": "dataset rule delete",
    "diff": "pipeline diff",
    "fanout chunks": "chunk ls",
    "pipeline rm": "pipeline delete",
    "plan": "pipeline plan",
    "run log": "period ls",
    "sensor rm": "sensor delete",
    "table mend": "table repair",
    "validate": "pipeline validate",
    "why": "period why",
    "workers": "worker ls",
}


def command_of(program: Any, words: str) -> Any:
    command = program
    for word in words.split():
        command = command.commands[word]
    return command


def test_earlier_spellings__all__are_hidden_and_take_what_the_present_ones_take() -> None:
    def hidden(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
        for name, each in command.commands.items():
            if each.hidden:
                yield " ".join((*path, name))
            elif hasattr(each, "commands"):
                yield from hidden(each, (*path, name))

    program: Any = typer.main.get_command(load())
    assert set(hidden(program)) == EARLIER.keys()
    for earlier, present in EARLIER.items():
        taken = [{each.name for each in command_of(program, words).params} for words in (earlier, present)]
        assert taken[0] >= taken[1], earlier
        assert not command_of(program, present).hidden
