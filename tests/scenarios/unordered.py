"""Workflows that iterate over sets and dicts of strings, in a module that another process can import."""

from __future__ import annotations

import headgate as hg

app = hg.App("unordered")


@app.activity
def visit(name: str) -> str:
    return name


@app.workflow
async def visits_a_set(names: list[str]) -> list[str]:
    return [await visit(name) for name in set(names)]


@app.workflow
async def visits_in_order(names: list[str]) -> list[str]:
    by_length = {name: len(name) for name in names}
    return [await visit(name) for name in [*by_length, *sorted(set(names))]]
