"""Command factory: builds typer commands that call a Headgate server.

`calls_server` gives a function the options that select a server and passes it the `Api` as its first argument.
A generator command yields its answer, which `--json` prints, and then prints the same answer as text.
`add_action` builds a whole command from data: a path, options for the request body and the text to print.
A dataclass that derives from `OptionGroup` is one parameter whose fields are options.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_type_hints
from urllib.parse import quote

import typer

from headgate.cli.api_client import Api, api_of
from headgate.cli.help import HelpGroup
from headgate.cli.session import Json, echo_json

Answer = Iterator[object]
Command = Callable[..., Answer | None]
Text = str | Callable[[Any], str]

_REQUIRED: Final = inspect.Parameter.empty
_JSON: Final = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=Json, default=False)


class Option(NamedTuple):
    """Parameter of an action: its annotation, its default, and its name in the request if that differs."""

    annotation: object
    default: object = _REQUIRED
    field: str | None = None


class OptionGroup:
    """Base of dataclasses that group options: each field is annotated as an option."""


def command_group(help: str, **settings: Any) -> typer.Typer:  # noqa: ANN401 - as typer declares them
    """Return an empty group of commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, **{"cls": HelpGroup, **settings})


def server_command(app: typer.Typer, name: str, *, hidden: bool = False) -> Callable[[Command], Command]:
    """Add the decorated function to a group as a command that calls the server. Help does not list a hidden one."""

    def add(command: Command) -> Command:
        app.command(name, hidden=hidden)(calls_server(command))
        return command

    return add


def keep_spelling(app: typer.Typer, old: str, new: str) -> None:
    """Let a command of a group also be called by its earlier name, which help does not list."""
    (command,) = (each for each in app.registered_commands if each.name == new)
    earlier = copy.copy(command)
    earlier.name, earlier.hidden = old, True
    app.registered_commands.append(earlier)


def calls_server(command: Command) -> Callable[..., None]:
    """Return the command with the options that select a server; one that returns an `Answer` also gets `--json`."""
    signature = inspect.signature(command, eval_str=True)
    groups = {
        each.name: _fields(each.annotation)
        for each in signature.parameters.values()
        if isinstance(each.annotation, type) and issubclass(each.annotation, OptionGroup)
    }
    own = [field for each in [*signature.parameters.values()][1:] for field in groups.get(each.name, [each])]
    context, *connection = inspect.signature(api_of, eval_str=True).parameters.values()
    prints_json = signature.return_annotation == Answer

    @functools.wraps(command)
    def call(**arguments: Any) -> None:  # noqa: ANN401 - as the command declares them
        api = api_of(*[arguments.pop(each.name) for each in (context, *connection)])
        as_json = arguments.pop("as_json") if prints_json else False
        for name, fields in groups.items():
            values = {each.name: arguments.pop(each.name) for each in fields}
            arguments[name] = signature.parameters[name].annotation(**values)
        answer = command(api, **arguments)
        if answer is None:
            return
        data = next(answer)
        if as_json:
            echo_json(data)
            return
        for _ in answer:
            raise AssertionError(f"command {command.__name__} yields more than one answer")

    # Help lists the command's own options first, then those of the connection, then --json.
    parameters = [context, *own, *connection, *([_JSON] if prints_json else [])]
    parameters.sort(key=lambda each: each.name == _JSON.name)
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return call


def _fields(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name], default=each.default)
        for each in dataclasses.fields(group)
    ]


def add_action(
    app: typer.Typer,
    name: str,
    path: str,
    help: str,
    text: Text,
    /,
    *,
    method: str = "POST",
    body: Callable[[], Mapping[str, object]] = dict,
    **options: object,
) -> None:
    """Add a command that sends one request and prints the answer.

    Options named in `path` fill it; the others are members of the request body, together with those of `body`.
    `text` is a format string over the options and `answer`, or a function of the answer.
    """
    declared = {key: each if isinstance(each, Option) else Option(each) for key, each in options.items()}

    def action(api: Api, **arguments: Any) -> Answer:  # noqa: ANN401 - as the options declare them
        members = {declared[key].field or key: each for key, each in arguments.items() if f"{{{key}}}" not in path}
        sent = {**body(), **members}
        answer = api.request(method, fill(path, arguments), body=sent or ({} if method == "POST" else None))
        yield answer
        typer.echo(text(answer) if callable(text) else text.format(**arguments, answer=answer))

    _add(app, name, help, action, declared)


def add_deletion(
    app: typer.Typer, name: str, path: str, help: str, text: str = "deleted", /, **options: object
) -> None:
    """Add a command that deletes what `path` names and prints its name, which is the last option in `path`."""
    declared = {key: each if isinstance(each, Option) else Option(each) for key, each in options.items()}
    named = [key for _, key, _, _ in string.Formatter().parse(path) if key][-1]

    def delete(api: Api, **arguments: Any) -> Answer:  # noqa: ANN401 - as the options declare them
        query = {key: each or None for key, each in arguments.items() if f"{{{key}}}" not in path}
        api.request("DELETE", fill(path, arguments), query=query)
        yield {"deleted": arguments[named]}
        typer.echo(f"{arguments[named]}: {text}")

    _add(app, name, help, delete, declared)


def fill(path: str, arguments: Mapping[str, object]) -> str:
    """Return a path with arguments in place of their names; a slash in an argument does not start a new segment."""
    return path.format(**{key: quote(str(each), safe="") for key, each in arguments.items()})


def _add(app: typer.Typer, name: str, help: str, command: Command, options: Mapping[str, Option]) -> None:
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("api", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for key, option in options.items():
        parameters.append(inspect.Parameter(key, keyword, annotation=option.annotation, default=option.default))
    command.__signature__ = inspect.Signature(parameters, return_annotation=Answer)  # type: ignore[attr-defined]
    command.__doc__ = help
    app.command(name)(calls_server(command))
