"""Overload: each API asked for ten times what the server can do, as `python -m bench overload` prints it."""

from __future__ import annotations

from bench import overload
from tests.soak.figures import Figure


def run() -> list[Figure]:
    """Return the figures of the benchmark."""
    return [
        Figure(each.name.removeprefix("overload, "), f"{each.value}; aim {each.goal}", each.reached)
        for each in overload.run()
    ]
