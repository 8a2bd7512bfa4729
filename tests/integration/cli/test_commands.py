"""Command factory: options of the server, JSON output, actions and deletions built from data, option groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headgate.cli.api_client import Api
from headgate.cli.commands import Answer, Option, OptionGroup, add_action, add_deletion, command_group, server_command
from headgate.cli.session import Session
from tests.integration.cli.http_peer import Peer, responds

CONNECTION = ["server", "home", "config", "api_key_file", "ca"]


@pytest.fixture
def app() -> typer.Typer:
    group = command_group("Test.")
    group.callback()(lambda: None)
    return group


@pytest.fixture
def peer(peer: Peer) -> Peer:
    peer.response = responds(200, b'{"state":"done"}')
    return peer


def invoke(peer: Peer, app: typer.Typer, *arguments: str) -> str:
    session = Session({"HEADGATE_SERVER": peer.url})
    result = CliRunner().invoke(app, arguments, obj=session, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def sent(peer: Peer) -> list[tuple[str, str, bytes]]:
    return [(method, path.removeprefix("/api/v1"), body) for method, path, _, body in peer.requests]


def test_server_command__generator__prints_json_or_text(peer: Peer, app: typer.Typer) -> None:
    @server_command(app, "show")
    def show(api: Api, name: str, count: Annotated[int, typer.Option(min=1)] = 2) -> Answer:
        """Show something."""
        yield {"name": name, "count": count}
        typer.echo(f"{name} {count}")

    command = typer.main.get_command(app).commands["show"]  # type: ignore[attr-defined]

    assert invoke(peer, app, "show", "anna") == "anna 2\n"
    assert invoke(peer, app, "show", "ben", "--count", "3", "--json") == '{"name":"ben","count":3}\n'
    assert [param.name for param in command.params] == ["name", "count", *CONNECTION, "as_json"]
    assert command.help == "Show something."


def test_server_command__without_an_answer__has_no_json(peer: Peer, app: typer.Typer) -> None:
    @server_command(app, "watch")
    def watch(api: Api) -> None:
        typer.echo("watched")

    command = typer.main.get_command(app).commands["watch"]  # type: ignore[attr-defined]

    assert invoke(peer, app, "watch") == "watched\n"
    assert [param.name for param in command.params] == CONNECTION


def test_add_action__path_and_body__come_from_the_options(peer: Peer, app: typer.Typer) -> None:
    add_action(
        app,
        "cancel",
        "/runs/{run}/cancel",
        "Cancel a run.",
        "{run}: cancelled for {who}, {answer[state]}",
        body=lambda: {"by": "me"},
        run=str,
        who=Option(Annotated[str, typer.Option("--who")], "all", field="principal"),
    )

    assert invoke(peer, app, "cancel", "a/b") == "a/b: cancelled for all, done\n"
    assert invoke(peer, app, "cancel", "c", "--json") == '{"state":"done"}\n'
    assert sent(peer)[0] == ("POST", "/runs/a%2Fb/cancel", b'{"by":"me","principal":"all"}')


def test_add_action__no_options__sends_a_body_with_post_only(peer: Peer, app: typer.Typer) -> None:
    add_action(app, "retry", "/runs/{run}/retry", "Retry.", lambda answer: str(answer["state"]), run=str)
    add_action(app, "revoke", "/keys/{key}", "Revoke.", "revoked", method="DELETE", key=str)

    assert invoke(peer, app, "retry", "r") == "done\n"
    assert invoke(peer, app, "revoke", "k") == "revoked\n"
    assert sent(peer) == [("POST", "/runs/r/retry", b"{}"), ("DELETE", "/keys/k", b"")]


def test_add_deletion__named__is_deleted_with_its_query(peer: Peer, app: typer.Typer) -> None:
    reason = Option(Annotated[str, typer.Option("--reason")], "")
    add_deletion(app, "rm", "/things/{name}", "Delete.", name=str, reason=reason)

    assert invoke(peer, app, "rm", "x") == "x: deleted\n"
    assert invoke(peer, app, "rm", "x", "--reason", "old", "--json") == '{"deleted":"x"}\n'
    assert sent(peer) == [("DELETE", "/things/x", b""), ("DELETE", "/things/x?reason=old", b"")]


@dataclass(frozen=True)
class Size(OptionGroup):
    width: Annotated[int, typer.Option("--width")] = 1
    height: Annotated[int, typer.Option("--height")] = 2


def test_option_group__fields__are_options(peer: Peer, app: typer.Typer) -> None:
    @server_command(app, "draw")
    def draw(api: Api, name: str, size: Size) -> None:
        typer.echo(f"{name} {size.width}x{size.height}")

    assert invoke(peer, app, "draw", "a", "--height", "5") == "a 1x5\n"
