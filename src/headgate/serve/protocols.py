"""Protocols of a server that are extras: which are off here, and the settings that need one of them."""

from __future__ import annotations

from typing import Final

from headgate.extras import Extra, require
from headgate.settings import Settings

OPTIONAL: Final = (Extra.GRPC, Extra.GRAPHQL)


def protocols_off() -> list[Extra]:
    """Return the protocols that this server does not serve, because they are not installed."""
    return [each for each in OPTIONAL if not each.is_installed]


def check_protocols(settings: Settings) -> None:
    """Raise `MissingExtraError` if settings ask for a protocol that is not installed."""
    # Port 0 is any free port, which no client can expect.
    if settings.grpc.port and settings.grpc != Settings().grpc:
        require(Extra.GRPC, f"grpc = {settings.grpc}")
    if settings.health.intake == "always":
        require(Extra.GRPC, "health.intake = always: the intake handles calls of gRPC and Connect")
