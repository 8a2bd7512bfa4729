"""`headgate table costs`: what the tables cost a month on AWS, and what is wrong with an estimate of that."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headgate.cli.input_files import read_document
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import InvalidPayloadError, UserError

DOUBTS_EXIT_CODE: Final = 1


def costs(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The load, in JSON or TOML: loads, storage_gb, recovery_gb, cache_nodes, transfer_gb."
        ),
    ],
    prices: Annotated[
        str, typer.Option(metavar="MONTH", help="Prices as of 2024-10 or of 2024-11, when requests became cheaper.")
    ] = "2024-11",
    a_second: Annotated[
        bool, typer.Option("--a-second", help="Writes and reads of the file are a second, and not a month.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Work out what a load costs a month on DynamoDB, line by line.

    If the file holds an estimate (stated, stated_total), it is checked as well, and the exit code is 1 if it is wrong.
    """
    import msgspec

    from headgate import typed_decode
    from headgate.health import aws_costs as model

    known = {each.as_of: each for each in (model.PRICES_2024_10, model.PRICES_2024_11)}
    if prices not in known:
        raise UserError(f"--prices {prices}: there are those of {', '.join(known)}")
    given = read_document(file, "load")
    stated, stated_total = given.pop("stated", []), given.pop("stated_total", None)
    try:
        estate = typed_decode.convert(given, model.Workload)
        lines = typed_decode.convert(stated, list[model.StatedCost])
        total = None if stated_total is None else typed_decode.convert(stated_total, float)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"load {file}: {exc}") from exc
    bill = model.monthly(model.by_month(estate) if a_second else estate, known[prices])
    found = [] if total is None and not lines else model.discrepancies(lines, total if total is not None else 0.0)
    if as_json:
        shown: list[dict[str, Any]] = [{**msgspec.to_builtins(each), "dollars": each.dollars} for each in bill.lines]
        echo_json({"as_of": bill.as_of, "lines": shown, "total": bill.total, "doubts": found})
    else:
        rows = [(each.name, f"{each.quantity:,.2f}", f"{each.price:g}", f"{each.dollars:,.2f}") for each in bill.lines]
        rows.append(("total", "", "", f"{bill.total:,.2f}"))
        show_table(("WHAT", "QUANTITY", "PRICE $", "A MONTH $"), rows, nothing="")
        typer.echo(f"prices of us-east-1 as of {bill.as_of}")
        for doubt in found:
            typer.echo(
                f"doubt: {doubt.name}: {doubt.stated:,.2f} is stated, {doubt.computed:,.2f} is right: {doubt.reason}"
            )
    if found:
        raise typer.Exit(DOUBTS_EXIT_CODE)
