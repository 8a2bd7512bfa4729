"""A job that fails with a traceback."""

from __future__ import annotations


def rows(day: str) -> list[dict[str, float]]:
    return [{"amount": 12.5}, {"total": 8.0}] if day else []


def export(day: str) -> float:
    return sum(row["amount"] for row in rows(day))


print("reading the ledger")
print(export("today"))
