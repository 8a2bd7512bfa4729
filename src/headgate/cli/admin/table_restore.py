"""`headgate table compare`, `repair` and `swap`: compares, repairs from, and switches to a restored table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.store.model.schema import Key, Table

_SHOWN: Final = 20

Name = Annotated[str, typer.Argument(metavar="TABLE", help="Table name in the catalogue; see 'headgate table ls'.")]
Restored = Annotated[
    str,
    typer.Option("--restored", metavar="NAME", help="Restored table; on SQLite, the folder of the restored backup."),
]


def compare(
    context: typer.Context,
    table: Name,
    restored: Restored,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="ATTRIBUTE", help="Attribute to ignore. Repeatable.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare a restored table with the live one, item by item. The exit code is 1 if they differ.

    On DynamoDB, features that a restore leaves out are enabled first: TTL, stream, point-in-time recovery.
    """
    from headgate.bootstrap.health import compare_restored
    from headgate.clock import SystemClock

    settings = session_of(context).settings(config, home=home)
    found, faults = compare_restored(settings, SystemClock(), _table(table), restored, ignoring=ignore or ())
    if as_json:
        echo_json({"difference": found, "faults": faults, "is_alike": found.is_alike})
    else:
        counts = {
            "equal": found.equal_count,
            "only in the live table": found.missing_count,
            "only in the restored table": found.extra_count,
            "different": found.differing_count,
        }
        typer.echo(f"{found.table}: " + ", ".join(f"{count} {label}" for label, count in counts.items()))
        typer.echo(f"checksums: live {found.in_use.checksum}, restored {found.restored.checksum}")
        for label, keys in (("missing", found.missing), ("extra", found.extra), ("differs", found.differing)):
            for key in keys[:_SHOWN]:
                typer.echo(f"{label}: {_text(key)}")
        for fault in faults:
            typer.echo(f"fault: {fault}")
    if faults or not found.is_alike:
        raise typer.Exit(ExitCode.FAILED)


def repair(
    context: typer.Context,
    table: Name,
    restored: Restored,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="PK[=SK]", help='Item to repair, also as JSON: ["a=b", "c"]. Repeatable.'),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Repair all items that differ or are missing; none are deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change without changing it.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Restore items from a restored table. Items that change concurrently are left alone."""
    import msgspec

    from headgate.bootstrap.health import repair_restored
    from headgate.clock import SystemClock

    if bool(key) == all:
        raise UserError("repair: give either --key or --all")
    settings = session_of(context).settings(config, home=home)
    catalogued = _table(table)
    keys = None if all else [_key(catalogued, text) for text in key or []]
    found = repair_restored(settings, SystemClock(), catalogued, restored, keys, dry_run=dry_run)
    if as_json:
        # `mended` is the name in earlier releases.
        echo_json({**msgspec.structs.asdict(found), "mended": found.repaired})
        return
    status = "would be repaired" if found.is_dry_run else "repaired"
    for label, keys_done in (
        (status, found.repaired), ("already equal", found.alike),
        ("not in the restored table, unchanged", found.absent),
        ("changed concurrently, unchanged", found.overtaken),
    ):  # fmt: skip
        for each in keys_done:
            typer.echo(f"{_text(each)}: {label}")


def swap(
    context: typer.Context,
    table: Name,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Table to use; its usual name reverts the swap.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print the setting that replaces a table with another. It takes effect when the servers restart."""
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
    """Parse a key. Raises `UserError`."""
    import msgspec

    from headgate import typed_decode
    from headgate.store.model.schema import Key

    parts: list[Any] = list(text.partition("=")[::2]) if table.sort is not None else [text]
    if text.startswith("["):
        try:
            parts = typed_decode.from_json(text, list[str | int])
        except msgspec.DecodeError as exc:
            raise UserError(f"--key {text}: invalid JSON ({exc})") from exc
    if len(parts) != len(table.key_names) or "" in parts:
        raise UserError(f"--key {text}: write the whole key of {table.name}: {'='.join(table.key_names)}")
    return Key(*parts)


def _text(key: Key) -> str:
    return str(key.partition) if key.sort is None else f"{key.partition}={key.sort}"
