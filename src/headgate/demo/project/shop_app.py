"""The workflows of the demo shop: loading orders, building the report, and an approval by a person."""

from __future__ import annotations

import json
from pathlib import Path

import headgate as hg

app = hg.App("shop")
LAKE = Path(__file__).parent / "lake"


@app.activity
def copy_export(period: str) -> int:
    """Copy the export of a period into the lake, and return the number of its orders."""
    orders = json.loads((LAKE / "exports" / f"{period}.json").read_text())
    _write(LAKE / "raw" / f"{period}.json", orders)
    return len(orders)


@app.activity
def add_up(period: str) -> float:
    """Add up the scored orders of a period."""
    orders = json.loads((LAKE / "exports" / f"{period}.json").read_text())
    revenue = round(sum(float(order["amount"]) for order in orders), 2)
    _write(LAKE / "revenue" / f"{period}.json", {"revenue": revenue})
    return revenue


@app.activity
def publish(change: dict[str, str]) -> str:
    """Publish a change of prices."""
    _write(LAKE / "prices" / "published.json", change)
    return f"published {change['name']}"


@app.workflow
async def load_orders(period: str) -> int:
    return await copy_export(period)


@app.workflow
async def build_report(period: str) -> float:
    return await add_up(period)


@app.workflow
async def refresh_dashboard(period: str) -> str:
    return period


@app.workflow
async def take_rates(period: str) -> str:
    return period


@app.workflow
async def publish_prices(change: dict[str, str]) -> str:
    """Wait up to a day for the approval of a person, then publish."""
    is_approved = await hg.wait_signal("approved", timeout="1d")
    if not is_approved:
        return f"rejected {change['name']}"
    return await publish(change)


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name first, so that no reader sees half a file.
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value))
    draft.replace(path)
