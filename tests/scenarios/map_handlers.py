"""Handlers that workflows of the tests map over items."""

from __future__ import annotations

from typing import Any

import headgate as hg

calls: list[Any] = []


def double(number: int) -> int:
    return 2 * number


def total(numbers: list[int]) -> int:
    return sum(numbers)


def picky(number: int) -> int:
    if number == 3:
        raise hg.NonRetryable("not three")
    return number


def flaky(number: int) -> int:
    calls.append(number)
    if calls.count(number) < 3:
        raise ConnectionError(f"try {calls.count(number)} of {number}")
    return number


def scaled(work: hg.Work) -> list[int]:
    return [work.params["factor"] * item for item in work.items]
