"""The jobs of the medallion project: hours of orders become days, and days become revenue, in files below `lake`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import headgate as hg

app = hg.App("medallion")
LAKE = Path("lake")


@app.activity
def take_in(hour: str) -> int:
    """Copy the export of an hour, and return how many orders are in it."""
    orders = _read(LAKE / "exports" / f"{hour}.json")
    _write(LAKE / "bronze" / f"{hour}.json", orders)
    return len(orders)


@app.activity
def merge_hours(day: str) -> int:
    """Make one file of the hours of a day, each order once, and return how many there are."""
    hours = sorted((LAKE / "bronze").glob(f"{day}T*.json"))
    orders = {order["id"]: order for hour in hours for order in _read(hour)}
    _write(LAKE / "silver" / f"{day}.json", list(orders.values()))
    return len(orders)


@app.activity
def add_up(day: str) -> dict[str, float]:
    """Add up the latest day before this one by country."""
    days = sorted(path for path in (LAKE / "silver").glob("*.json") if path.stem < day)
    revenue: dict[str, float] = {}
    for order in _read(days[-1]) if days else []:
        revenue[order["country"]] = revenue.get(order["country"], 0.0) + order["amount"]
    _write(LAKE / "gold" / f"{day}.json", revenue)
    return revenue


@app.workflow
async def load_bronze(hour: str) -> int:
    return await take_in(hour)


@app.workflow
async def build_silver(day: str) -> int:
    return await merge_hours(day)


@app.workflow
async def build_gold(day: str) -> dict[str, float]:
    return await add_up(day)


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name first, so that no reader sees half a file.
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value))
    draft.replace(path)
