"""Plain functions of another module of the same package that workflows of `test_source_check` call."""

from __future__ import annotations

import functools
import time


def stamp() -> float:
    return time.time()


def stamped(text: str) -> str:
    return f"{text} {stamp()}"


def plain(text: str) -> str:
    return text.upper()


@functools.lru_cache(maxsize=8)
def cached(text: str) -> str:
    return stamped(text)


class Pricing:
    def total(self, n: int) -> float:
        return n * stamp()

    @staticmethod
    def fixed(n: int) -> float:
        return n + stamp()

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"no code may read {name} of a user's object")


pricing = Pricing()
