"""What one run of the program was given: the environment, the flags that every command shares, and where to answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from headgate.settings import Settings

Home = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Folder of everything Headgate keeps.", show_default=False)
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file. [default: headgate.toml, if it is there]", show_default=False
    ),
]
# How to call a server is for those who call: it is no setting of a process.
SERVER_VARIABLE: Final = "HEADGATE_SERVER"
KEY_VARIABLE: Final = "HEADGATE_API_KEY"
CA_VARIABLE: Final = "HEADGATE_CA"
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]


class Session:
    """Given to every command as the object of its context."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.debug = False

    def settings(self, config: Path | None, **flags: object) -> Settings:
        """Return the settings for these flags. Raises `SettingsError`."""
        from headgate.settings import Settings

        calling = (SERVER_VARIABLE, KEY_VARIABLE, CA_VARIABLE)
        environ = {name: value for name, value in self.environ.items() if name not in calling}
        return Settings.load(environ, config, flags)


def session_of(context: typer.Context) -> Session:
    """Return the session that `main` has put into the context."""
    session = context.find_object(Session)
    assert session is not None, "main() starts every command with a session"
    return session


def echo_json(answer: object) -> None:
    """Write `answer` to standard output as one line of JSON."""
    import msgspec

    typer.echo(msgspec.json.encode(answer).decode())
