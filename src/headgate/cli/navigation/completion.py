"""`headgate completion`: scripts that complete commands, options and ids in bash, zsh and fish.

The scripts run `headgate completion words`, which prints one candidate per line and its help after a tab. Ids come from
the server that the command itself would call; without a server there are none.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from headgate.cli.api_client import api_of
from headgate.cli.commands import command_group
from headgate.cli.help import first_sentence
from headgate.cli.navigation.listed_ids import ID_OPTIONS, LISTINGS, ids, nouns_of
from headgate.errors import HeadgateError
from headgate.exit_codes import ExitCode

app = command_group("Complete commands, options and ids in bash, zsh and fish.")

_BASH: Final = """\
_headgate() {
  local line typed="${COMP_LINE:0:COMP_POINT}"
  COMPREPLY=()
  while IFS=$'\\t' read -r line _; do
    COMPREPLY+=("$line")
  done < <(headgate completion words --line "$typed" 2>/dev/null)
  # Bash breaks words at colons: what precedes the last one is on the line already.
  typed="${typed##*[[:space:]]}"
  if [[ "$typed" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
    local place before="${typed%"${typed##*:}"}"
    for place in "${!COMPREPLY[@]}"; do
      COMPREPLY[place]="${COMPREPLY[place]#"$before"}"
    done
  fi
}
complete -o default -F _headgate headgate
"""
_ZSH: Final = """\
#compdef headgate
_headgate() {
  local line
  local -a found
  for line in "${(@f)$(headgate completion words --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)}"; do
    if [[ "$line" == *$'\\t'* ]]; then
      found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    elif [[ -n "$line" ]]; then
      found+=("${line//:/\\\\:}")
    fi
  done
  if (( ${#found} )); then _describe headgate found; else _files; fi
}
compdef _headgate headgate
"""
_FISH: Final = """\
function __headgate_words
  headgate completion words --line (commandline -cp | string collect) 2>/dev/null
end
complete -c headgate -f -n 'test (count (__headgate_words)) -gt 0' -a '(__headgate_words)'
"""
# A server that does not answer must not block the terminal.
_SECONDS_MAX: Final = 3.0
# Options of the connection, by which a command selects its server.
_CONNECTION: Final = {
    "--server": "server",
    "--home": "home",
    "--config": "config",
    "--api-key-file": "api_key_file",
    "--ca": "ca",
}


class Shell(StrEnum):
    """A shell that has a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Candidate(NamedTuple):
    """A word that may follow, and what it is for."""

    word: str
    help: str = ""


@app.command("script")
def script(shell: Annotated[Shell, typer.Argument(help="Shell.")]) -> None:
    """Print the completion script of a shell.

    For bash, add `source <(headgate completion script bash)` to ~/.bashrc; for zsh the same in ~/.zshrc, after
    compinit; for fish, write the output to ~/.config/fish/completions/headgate.fish.
    """
    typer.echo({Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}[shell], nl=False)


@app.command("words")
def words(
    context: typer.Context,
    line: Annotated[str, typer.Option(metavar="TEXT", help="Command line up to the cursor.")],
) -> None:
    """Print what may follow on a command line: a word per line, and its help after a tab."""
    for each in candidates(context, *split_line(line)):
        typer.echo(f"{each.word}\t{each.help}" if each.help else each.word)


def split_line(line: str) -> tuple[list[str], str]:
    """Return the finished words after the name of the program, and the word that is being typed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        found.extend(lexer)
    except ValueError:
        # The quote is not closed yet.
        found.append(lexer.token)
    typed = "" if line[-1:].isspace() or len(found) < 2 else found.pop()
    return found[1:], typed


def candidates(context: typer.Context, before: Sequence[str], typed: str) -> Iterator[Candidate]:
    """Yield the words that start with `typed` and may follow the words before it."""
    command: Any = context.find_root().command
    rest, path = list(before), []
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    if hasattr(command, "commands"):
        if not rest:
            shown = {name: each for name, each in command.commands.items() if not each.hidden}
            yield from _starting(typed, ((name, first_sentence(each.help or "")) for name, each in shown.items()))
        return
    yield from _starting(typed, _values(context, command, path, rest, typed))


def _values(
    context: typer.Context,
    command: Any,  # noqa: ANN401 - of click, which typer does not export
    path: Sequence[str],
    rest: Sequence[str],
    typed: str,
) -> Iterator[tuple[str, str]]:
    """Yield the options of a command, the choices of one that takes a value, or those of its next argument."""
    options = {name: each for each in command.params for name in each.opts if each.param_type_name == "option"}
    last = options.get(rest[-1]) if rest else None
    given = _positional(rest, options)
    if last is not None and not last.is_flag:
        yield from _choices(last)
        nouns = nouns_of(path[0], path[-1], last.name) if last.name in ID_OPTIONS else ()
        yield from ((each, "") for each in _ids(context, rest, nouns, given))
        return
    if typed.startswith("-"):
        used = set(rest)
        shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
        for each in (*shown, *command.get_help_option_names(context)[-1:]):
            if isinstance(each, str):
                yield each, "Show help."
            elif not used & set(each.opts) or each.multiple:
                yield each.opts[-1], first_sentence(each.help or "")
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if arguments and (len(given) < len(arguments) or arguments[-1].nargs == -1):
        argument = arguments[min(len(given), len(arguments) - 1)]
        yield from _choices(argument)
        yield from ((each, "") for each in _ids(context, rest, nouns_of(path[0], path[-1], argument.name), given))


def _choices(parameter: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for each in getattr(parameter.type, "choices", ()):
        yield getattr(each, "value", str(each)), ""


def _positional(rest: Sequence[str], options: dict[str, Any]) -> list[str]:
    """Return the words that are arguments, neither options nor their values."""
    found, is_value = [], False
    for word in rest:
        if not is_value and not word.startswith("-"):
            found.append(word)
        is_value = not is_value and word in options and not options[word].is_flag
    return found


def _ids(context: typer.Context, rest: Sequence[str], nouns: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield the ids of some nouns that the server lists; `given` are the arguments that are typed already."""
    chosen = {_CONNECTION[name]: value for name, value in pairwise(rest) if name in _CONNECTION}
    paths = {name: Path(value) if name in ("config", "api_key_file", "ca") else value for name, value in chosen.items()}
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(ExitCode.OK))
    signal.setitimer(signal.ITIMER_REAL, _SECONDS_MAX)
    for noun in nouns:
        if "{}" in LISTINGS[noun].path and not given:
            continue
        try:
            yield from ids(api_of(context, **paths), noun, *given[:1])  # type: ignore[arg-type]  # paths where wanted
        except HeadgateError:
            # Without a server, or a right to list them, there is nothing to complete.
            continue


def _starting(typed: str, found: Iterator[tuple[str, str]]) -> Iterator[Candidate]:
    return (Candidate(word, help) for word, help in found if word.startswith(typed))
