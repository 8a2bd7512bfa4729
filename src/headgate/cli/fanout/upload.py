"""`headgate fanout upload`: puts a manifest where the server or a function of AWS finds it, and shows its fan-out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, CaFile, KeyFile, Server, api_of, at
from headgate.cli.fanout.submit import GROUP
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import NotFoundError, TransientError, UserError

if TYPE_CHECKING:
    from headgate.clock import Clock

_POLL_SECONDS: Final = 0.5


def upload(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="JSON file with the options of the fan-out.")],
    to: Annotated[
        str, typer.Option("--to", metavar="FOLDER|s3://BUCKET/PREFIX", help="The folder or bucket that is watched.")
    ],
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the fan-out.")] = "60s",
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    api_key_file: KeyFile = None,
    ca: CaFile = None,
    as_json: Json = False,
) -> None:
    """Upload a manifest, and print the id of the fan-out that it starts.

    The server splits manifests in the folder of the setting fanout.manifests, a function of AWS those in its bucket.
    The fan-out is the one of the manifest's run_id, or the next one of its group.
    """
    from headgate.clock import SystemClock
    from headgate.durable.model.duration import seconds

    api = api_of(context, server, home, config, api_key_file, ca)
    content, given = _read(manifest)
    wait_seconds = seconds(timeout, name="--timeout")
    newest = None if given.get("run_id") else _newest(api, given)
    if to.startswith("s3://"):
        from headgate.bootstrap.manifests import put_manifest

        refusal = None
        put_manifest(session_of(context).settings(config, home=home), content, to, manifest.name)
    else:
        refusal = _put(content, Path(to), manifest.name)
    clock = SystemClock()
    found = _awaited(api, given, newest, refusal, wait_seconds, clock)
    if as_json:
        echo_json(found)
    else:
        typer.echo(found["run_id"])
    if watch:
        from headgate.cli.fanout.watch import follow

        raise typer.Exit(follow(api, [found["run_id"]], stall_seconds=None, as_json=as_json, clock=clock))


def _read(manifest: Path) -> tuple[bytes, dict[str, Any]]:
    import msgspec

    from headgate import typed_decode

    try:
        content = manifest.read_bytes()
        given = typed_decode.from_json(content, dict[str, Any])
    except OSError as exc:
        raise UserError(f"manifest {manifest}: cannot be read ({exc.strerror})") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise UserError(f"manifest {manifest}: {exc}") from exc
    if not manifest.name.endswith(".json"):
        raise UserError(f"manifest {manifest}: only files that end with .json are split; rename it")
    return content, given


def _put(content: bytes, folder: Path, name: str) -> Path:
    """Put the manifest into a folder under its name at once. Returns the file that appears if it is refused."""
    if not folder.is_dir():
        raise UserError(f"--to {folder}: there is no such folder; use that of the setting fanout.manifests")
    refusal = folder / "refused" / f"{name}.reason.txt"
    refusal.unlink(missing_ok=True)
    hidden = folder / f".{name}.{os.getpid()}"
    hidden.write_bytes(content)
    hidden.replace(folder / name)
    return refusal


def _newest(api: Api, given: dict[str, Any]) -> str | None:
    found = api.get("/fanouts", group=given.get("group", GROUP), latest="true")["fanouts"]
    return found[0]["run_id"] if found else None


def _awaited(
    api: Api,
    given: dict[str, Any],
    newest: str | None,
    refusal: Path | None,
    wait_seconds: float,
    clock: Clock,
) -> dict[str, Any]:
    ends_at = clock.monotonic() + wait_seconds
    run_id = given.get("run_id")
    while True:
        if refusal is not None and refusal.exists():
            raise UserError(refusal.read_text().strip())
        found = run_id if run_id is None else str(run_id)
        if found is None and _newest(api, given) != newest:
            found = _newest(api, given)
        if found is not None:
            with suppress(NotFoundError):
                fanout: dict[str, Any] = api.get(at("fanouts", found))
                return fanout
        if clock.monotonic() > ends_at:
            group = given.get("group", GROUP)
            raise TransientError(
                f"group {group}: no fan-out within {wait_seconds:g} s; see that the server watches this place, and "
                "the log of the server or of the function splitter"
            )
        clock.sleep(_POLL_SECONDS)
