"""Machine names: those that are reserved for machines of the product."""

from __future__ import annotations

from typing import Final

from headgate.errors import InvalidIdError

# The name prefix of machines that are part of the product.
BUILT_IN: Final = "headgate-"


def is_built_in(name: str) -> bool:
    """Whether the name is reserved for machines that are part of the product."""
    return name.lower().startswith(BUILT_IN)


def check_not_built_in(name: str) -> None:
    """Raise `InvalidIdError` if the name is reserved: built-in machines are stored and started by Headgate only."""
    if is_built_in(name):
        raise InvalidIdError(
            f"machine {name[:90]!r}: names that begin with {BUILT_IN!r} are reserved for Headgate itself; "
            "choose another name"
        )
