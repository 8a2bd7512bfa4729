"""Session of one invocation: its environment, and the options that most commands share."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from headgate.settings import Settings

Home = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Folder with all state of Headgate.", show_default=False)
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file. [default: headgate.toml, if it exists]", show_default=False
    ),
]
Build = Annotated[
    str | None,
    typer.Option(
        "--build",
        metavar="ID",
        help="Build id of the app's code. [default: digest of its source files]",
        show_default=False,
    ),
]


class StoreBackend(enum.StrEnum):
    """The values of `--store`."""

    SQLITE = "sqlite"
    DYNAMODB = "dynamodb"


Store = Annotated[
    StoreBackend | None,
    typer.Option(
        "--store",
        help="Store with all state. DynamoDB needs store.aws_region and store.blob_bucket. [default: sqlite]",
        show_default=False,
    ),
]
# Variables of the client, which are not settings of a server process.
SERVER_VARIABLE: Final = "HEADGATE_SERVER"
KEY_VARIABLE: Final = "HEADGATE_API_KEY"
CA_VARIABLE: Final = "HEADGATE_CA"
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Session:
    """Environment and flags of one invocation, stored in the context of the command."""

    def __init__(self, environ: Mapping[str, str], *, is_json: bool = False) -> None:
        self.environ = environ
        self.is_json = is_json
        self.debug = False

    def settings(self, config: Path | None, **flags: object) -> Settings:
        """Return the settings for these flags. Raises `SettingsError`."""
        from headgate.settings import Settings

        client_variables = (SERVER_VARIABLE, KEY_VARIABLE, CA_VARIABLE)
        environ = {name: value for name, value in self.environ.items() if name not in client_variables}
        return Settings.load(environ, config, flags)


def session_of(context: typer.Context) -> Session:
    """Return the session that `main` stored in the context."""
    session = context.find_object(Session)
    assert session is not None, "main() starts every command with a session"
    return session


def echo_json(answer: object, *, to_stderr: bool = False) -> None:
    """Print `answer` as one line of JSON."""
    import msgspec

    typer.echo(msgspec.json.encode(answer).decode(), err=to_stderr)
