"""The fan-outs of the shop that the browser tests look at."""

from __future__ import annotations

import random
import sys
import time

import headgate as hg

COUNTRIES = ("DE", "FR", "IT")


def score(work: hg.Work) -> int:
    """Score orders. Those of Italy lack their amount until the parameter 'is_fixed' is set."""
    # Most take a few milliseconds, some far longer.
    time.sleep(0.002 + 0.03 * random.Random(work.chunk_id).random() ** 6)
    total = 0
    for number in work.items:
        order = {"id": number, "country": COUNTRIES[number * 7 % 11 % 3], "amount": number % 90}
        if order["country"] == "IT" and number % 5 and not work.params.get("is_fixed"):
            del order["amount"]
        print(f"order {number} of {order['country']}", file=sys.stderr)
        total += int(order["amount"])
    return total


def check(item: int) -> int:
    """Check one order. Two of ten have no address."""
    if item % 10 in (3, 7):
        raise LookupError(f"order {item} has no address")
    return item


def slow(work: hg.Work) -> int:
    """Take a while, so that the fan-out is open for as long as it is looked at."""
    time.sleep(2)
    return len(work.items)
