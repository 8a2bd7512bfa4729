"""Extras: optional parts of the installation, by the libraries that each needs."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from headgate.errors import UserError


class Extra(StrEnum):
    """An extra that adds a part to the core: `pip install 'headgate[NAME]'`."""

    GRPC = "grpc"
    GRAPHQL = "graphql"
    OTEL = "otel"

    @property
    def adds(self) -> str:
        """What the extra adds."""
        return _ADDED[self]

    @property
    def is_installed(self) -> bool:
        """Whether all libraries of the extra are installed."""
        return all(map(_is_found, _MODULES[self]))


class MissingExtraError(UserError):
    """The request needs a part of Headgate that is not installed here."""

    code = "missing_extra"
    http_status = 501
    grpc_status = "UNIMPLEMENTED"


_ADDED: Final = {
    Extra.GRPC: "gRPC and Connect",
    Extra.GRAPHQL: "GraphQL",
    Extra.OTEL: "traces over OTLP",
}
_MODULES: Final = {
    Extra.GRPC: ("grpc", "grpc_health", "grpc_reflection", "google.protobuf", "google.rpc"),
    Extra.GRAPHQL: ("strawberry", "graphql"),
    Extra.OTEL: ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


def install_command(*extras: Extra) -> str:
    """Return the command that installs extras."""
    return f"pip install 'headgate[{','.join(extras)}]'"


def missing(extra: Extra, what: str) -> str:
    """Return the message about something that needs an extra which is not installed."""
    return f"{what}: not installed; run: {install_command(extra)}"


def require(extra: Extra, what: str) -> None:
    """Raise `MissingExtraError`, naming what needs it and the command, if an extra is not installed."""
    if not extra.is_installed:
        raise MissingExtraError(missing(extra, what))


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
