"""`headgate table`: what to do with a copy of a table that was restored: compare it, mend items from it, use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.store.model.schema import Key, Table

DIFFER_EXIT_CODE: Final = 1
_SHOWN: Final = 20

Name = Annotated[
    str, typer.Argument(metavar="TABLE", help="As the catalogue calls it; 'headgate table ls' lists them.")
]
Restored = Annotated[
    str,
    typer.Option(
        "--restored", metavar="NAME", help="The restored table; on SQLite, the folder that a backup was put into."
    ),
]


def compare(
    context: typer.Context,
    table: Name,
    restored: Restored,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="ATTRIBUTE", help="May differ; may be given repeatedly.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare a restored copy of a table with the one in use, item by item. The exit code is 1 if they differ.

    On DynamoDB, what a restore leaves out is switched on in the copy first: expiry, stream, point-in-time recovery.
    """
    from headgate.bootstrap.health import compare_restored
    from headgate.clock import SystemClock

    settings = session_of(context).settings(config, home=home)
    found, faults = compare_restored(settings, SystemClock(), _table(table), restored, ignoring=ignore or ())
    if as_json:
        echo_json({"difference": found, "faults": faults, "is_alike": found.is_alike})
    else:
        counts = {
            "alike": found.equal_count,
            "not in the copy": found.missing_count,
            "only in the copy": found.extra_count,
            "different": found.differing_count,
        }
        typer.echo(f"{found.table}: " + ", ".join(f"{count} {said}" for said, count in counts.items()))
        typer.echo(f"checksums: in use {found.in_use.checksum}, restored {found.restored.checksum}")
        for said, keys in (("missing", found.missing), ("extra", found.extra), ("differs", found.differing)):
            for key in keys[:_SHOWN]:
                typer.echo(f"{said}: {_text(key)}")
        for fault in faults:
            typer.echo(f"fault: {fault}")
    if faults or not found.is_alike:
        raise typer.Exit(DIFFER_EXIT_CODE)


def mend(
    context: typer.Context,
    table: Name,
    restored: Restored,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="PK[=SK]", help='Mend this item; may be given repeatedly, and as JSON: ["a=b", "c"].'),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Mend all that differ or are gone; nothing is removed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put items back as they are in a restored copy. Whoever changes one meanwhile wins."""
    from headgate.bootstrap.health import repair_restored
    from headgate.clock import SystemClock

    if bool(key) == all:
        raise UserError("mend: name items with --key, or give --all")
    settings = session_of(context).settings(config, home=home)
    catalogued = _table(table)
    keys = None if all else [_key(catalogued, text) for text in key or []]
    found = repair_restored(settings, SystemClock(), catalogued, restored, keys, dry_run=dry_run)
    if as_json:
        echo_json(found)
        return
    done = "would be mended" if found.is_dry_run else "mended"
    for said, those in (
        (done, found.mended), ("as it should be already", found.alike),
        ("not in the copy, left as it is", found.absent),
        ("changed by someone else just now, left as it is", found.overtaken),
    ):  # fmt: skip
        for each in those:
            typer.echo(f"{_text(each)}: {said}")


def swap(
    context: typer.Context,
    table: Name,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The table to use; its usual name is the way back.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print the setting with which another table takes the place of one. It holds once the servers are restarted."""
    from headgate.health.regions.table_restore import swapped

    settings = session_of(context).settings(config, home=home)
    names = swapped(settings.store.table_names, _table(table), name, prefix=settings.store.table_prefix)
    if as_json:
        echo_json({"store.table_names": names})
        return
    import msgspec

    typer.echo("[store.table_names]")
    for logical, physical in sorted(names.items()):
        typer.echo(f"{msgspec.json.encode(logical).decode()} = {msgspec.json.encode(physical).decode()}")


def _table(name: str) -> Table:
    from headgate.store.catalogue.tables import named

    return named(name)


def _key(table: Table, text: str) -> Key:
    """Return the key that was given. Raises `UserError`."""
    import msgspec

    from headgate import typed_decode
    from headgate.store.model.schema import Key

    parts: list[Any] = list(text.partition("=")[::2]) if table.sort is not None else [text]
    if text.startswith("["):
        try:
            parts = typed_decode.from_json(text, list[str | int])
        except msgspec.DecodeError as exc:
            raise UserError(f"--key {text}: it begins like JSON and is none ({exc})") from exc
    if len(parts) != len(table.key_names) or "" in parts:
        raise UserError(f"--key {text}: the key of {table.name} is {' = '.join(table.key_names)}; write all of it")
    return Key(*parts)


def _text(key: Key) -> str:
    return str(key.partition) if key.sort is None else f"{key.partition}={key.sort}"
