"""What one run of the program was given: the environment, the flags that every command shares, and where to answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]


class Session:
    """Given to every command as the object of its context."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.debug = False

    def settings(self, config: Path | None, **flags: object) -> Settings:
        """Return the settings for these flags. Raises `SettingsError`."""
        from headgate.settings import Settings

        return Settings.load(self.environ, config, flags)


def session_of(context: typer.Context) -> Session:
    """Return the session that `main` has put into the context."""
    session = context.find_object(Session)
    assert session is not None, "main() starts every command with a session"
    return session


def echo_json(answer: object) -> None:
    """Write `answer` to standard output as one line of JSON."""
    import msgspec

    typer.echo(msgspec.json.encode(answer).decode())
