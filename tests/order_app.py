"""The order of the tutorial, with a child that ships it: an activity, a signal, a timer of an hour, a child."""

from __future__ import annotations

import threading
from typing import Any

import headgate as hg

app = hg.App("orders")
# What was done in the world, in order.
done: list[str] = []
# Let activities that wait for it go on.
go_on = threading.Event()


@app.activity(retry=hg.Retry(attempts=5, first="1s"), timeout="5m", heartbeat="30s")
def charge(order: dict[str, Any]) -> str:
    done.append(f"charge {order['id']}")
    return f"receipt-{order['id']}"


@app.activity
async def pack(order_id: str) -> str:
    done.append(f"pack {order_id}")
    return f"parcel-{order_id}"


@app.activity(retry=hg.Retry(attempts=3, first="30m", most="1h"))
def flaky(order_id: str) -> str:
    done.append(f"flaky {order_id}")
    if done.count(f"flaky {order_id}") == 1:
        raise ConnectionError("the depot is away")
    return "there"


@app.activity
def slow(order_id: str) -> str:
    done.append(f"slow {order_id}")
    assert go_on.wait(30)
    return f"slow-{done.count(f'slow {order_id}')}"


@app.workflow
async def ship(order_id: str) -> str:
    return await pack(order_id)


@app.on_event("order.paid")
def send(event: hg.Event) -> None:
    ship.start(event.data["id"], id=f"ship-{event.data['id']}")


@app.workflow
async def fulfil(order: dict[str, Any]) -> str:
    receipt = await charge(order)
    try:
        approval = await hg.wait_signal("approved", timeout="3d")
    except TimeoutError:
        return f"{receipt}: nobody approved it"
    await hg.sleep("1h")
    parcel = await ship(order["id"])
    return f"{receipt}: approved by {approval['by']}, sent as {parcel}"


@app.workflow
async def fetch(order_id: str) -> str:
    return await flaky(order_id)


@app.workflow
async def ponder(order_id: str) -> str:
    return await slow(order_id)


@app.workflow
async def tally(day: str) -> str:
    return f"tallied {day}"


app.schedule("daily-tally", tally, hg.Cron("0 0 * * *"), "today")


@app.workflow
async def count(until: int) -> int:
    result = 0
    while result < until:
        await hg.wait_signal("one")
        result += 1
    return result


def double(item: int) -> int:
    """Handle an item of a fan-out."""
    return 2 * item


@app.workflow
async def doubled(numbers: int) -> list[int]:
    mapped = await hg.map(double, range(numbers), chunk_size=2)
    return list(mapped.results or [])
