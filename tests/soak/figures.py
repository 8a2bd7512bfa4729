"""Figures: one measured fact and whether it meets its requirement."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A fact in words."""

    what: str
    value: str
    holds: bool
