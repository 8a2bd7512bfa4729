"""`headgate table costs`: estimates the monthly AWS cost of the tables and checks a stated estimate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.input_files import read_document
from headgate.cli.output import show_table
from headgate.cli.session import Json, echo_json
from headgate.errors import InvalidPayloadError, UserError
from headgate.exit_codes import ExitCode


def costs(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Load in JSON or TOML: loads, storage_gb, recovery_gb, cache_nodes, transfer_gb."
        ),
    ],
    prices: Annotated[
        str, typer.Option(metavar="MONTH", help="Price list: 2024-10, or 2024-11 with cheaper requests.")
    ] = "2024-11",
    a_second: Annotated[
        bool, typer.Option("--a-second", help="Writes and reads are per second instead of per month.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate the monthly cost of a load on DynamoDB, line by line.

    An estimate in the file (stated, stated_total) is checked; the exit code is 1 if it is wrong.
    """
    import msgspec

    from headgate import typed_decode
    from headgate.health import aws_costs

    known = {each.as_of: each for each in (aws_costs.PRICES_2024_10, aws_costs.PRICES_2024_11)}
    if prices not in known:
        raise UserError(f"--prices {prices}: unknown; use {' or '.join(known)}")
    document = read_document(file, "load")
    stated, stated_total = document.pop("stated", []), document.pop("stated_total", None)
    try:
        estate = typed_decode.convert(document, aws_costs.Workload)
        lines = typed_decode.convert(stated, list[aws_costs.StatedCost])
        total = None if stated_total is None else typed_decode.convert(stated_total, float)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"load {file}: {exc}") from exc
    bill = aws_costs.monthly(aws_costs.by_month(estate) if a_second else estate, known[prices])
    found = [] if total is None and not lines else aws_costs.discrepancies(lines, total if total is not None else 0.0)
    if as_json:
        shown: list[dict[str, Any]] = [{**msgspec.to_builtins(each), "dollars": each.dollars} for each in bill.lines]
        echo_json({"as_of": bill.as_of, "lines": shown, "total": bill.total, "doubts": found})
    else:
        rows = [(each.name, f"{each.quantity:,.2f}", f"{each.price:g}", f"{each.dollars:,.2f}") for each in bill.lines]
        rows.append(("total", "", "", f"{bill.total:,.2f}"))
        show_table(("ITEM", "QUANTITY", "PRICE $", "PER MONTH $"), rows, nothing="")
        typer.echo(f"prices of us-east-1 as of {bill.as_of}")
        for doubt in found:
            typer.echo(
                f"doubt: {doubt.name}: stated {doubt.stated:,.2f}, computed {doubt.computed:,.2f}: {doubt.reason}"
            )
    if found:
        raise typer.Exit(ExitCode.FAILED)
