"""Start of a serving process: what the first process gives to it."""

from __future__ import annotations

from msgspec import Struct

from headgate.settings import Settings


class ServingStart(Struct, frozen=True, kw_only=True):
    """What a serving process gets from the first one. The settings have the addresses that were bound."""

    settings: Settings
    # Its number, from 1: the first process is 0. And the number of all.
    process: int
    processes: int
    version: str
