"""App of the deployment that tests/soak/aws.py makes: packed for Lambda, so that it imports nothing of the tests."""

from __future__ import annotations

import os
import time
from typing import Any

import boto3

import headgate as hg

app = hg.App("orders")


@app.activity(retry=hg.Retry(attempts=4, first="1s"))
def charge(order: str) -> str:
    """Fail at the first two attempts, whichever process makes them."""
    if _count(f"charge-{order}") < 3:
        raise ConnectionError("the bank is away")
    return f"receipt-{order}"


@app.activity
def pack(order: str) -> str:
    _count(f"pack-{order}")
    return f"parcel-{order}"


@app.activity(retry=hg.Retry(attempts=2, first="1s"))
def refuse(order: str) -> str:
    raise ValueError(f"{order} is not for sale")


@app.workflow
async def ship(order: str) -> str:
    return await pack(order)


@app.workflow
async def fulfil(order: dict[str, Any]) -> dict[str, Any]:
    receipt = await charge(order["id"])
    approval = await hg.wait_signal("approved", timeout="3d")
    await hg.sleep("3s")
    parcel = await ship(order["id"])
    try:
        await refuse(order["id"])
        gift = "sent"
    except ValueError as failure:
        gift = type(failure).__name__
    return {"receipt": receipt, "by": approval["by"], "parcel": parcel, "gift": gift}


@app.workflow
async def age(minutes: int) -> str:
    """Sleep for longer than a queue can delay a message."""
    await hg.sleep(f"{minutes}m")
    return "aged"


@app.workflow
async def settle(order: str) -> str:
    """Take several turns, so that there is always one in progress."""
    await prepare(order)
    await hg.sleep("1s")
    await prepare(order)
    return await ship(order)


@app.activity(retry=hg.Retry(attempts=10, first="1s"), timeout="30s", heartbeat="5s")
def prepare(order: str) -> str:
    """Take a second."""
    time.sleep(1)
    return order


def measure(items: list[int]) -> int:
    """Handle a chunk; fail for every item that ends in 13, until it is repaired."""
    if any(item % 1_000 == 13 for item in items) and not _exists("blobs/repaired"):
        raise ValueError("item 13 of a thousand breaks")
    return len(items)


def weigh(items: list[int]) -> int:
    """Take seconds for a chunk."""
    time.sleep(2)
    return len(items)


def job(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Be the job of a pipeline, as a function of its own."""
    return {"rows": 7}


def _s3() -> Any:
    make: Any = boto3.client
    return make("s3", endpoint_url=os.environ["HEADGATE_STORE_AWS_ENDPOINT_URL"])


def _exists(key: str) -> bool:
    s3 = _s3()
    try:
        s3.get_object(Bucket=os.environ["HEADGATE_STORE_BLOB_BUCKET"], Key=key)
    except s3.exceptions.NoSuchKey:
        return False
    return True


def _count(name: str) -> int:
    """Count a call in the bucket, which outlives the process, and return how many there were."""
    s3, bucket = _s3(), os.environ["HEADGATE_STORE_BLOB_BUCKET"]
    number = 1
    while _exists(f"blobs/calls/{name}/{number}"):
        number += 1
    s3.put_object(Bucket=bucket, Key=f"blobs/calls/{name}/{number}", Body=b"")
    return number
