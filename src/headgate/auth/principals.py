"""Principals: who calls, and the one place that says whether they may."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from headgate.auth.roles import Permission, Role, permissions_of, roles_with
from headgate.errors import ForbiddenError, InvalidPayloadError, UnauthenticatedError

EVERYWHERE: Final = "*"
SCOPES_MAX: Final = 100
# What names of datasets are made of, and the two wildcards; no brackets, which would mean sets of characters.
_VERSION: Final = re.compile(r":v[0-9]+\Z")
_SCOPE: Final = re.compile(r"[A-Za-z0-9._~+@:*?-]{1,512}")


class Kind(enum.StrEnum):
    """By what someone was recognised."""

    LOCAL = "local"
    API_KEY = "api_key"
    TOKEN = "token"


class Principal(Struct, frozen=True):
    """Someone who calls. `scopes` are patterns of dataset names such as `urn:dp:orders:*`; none: no dataset."""

    name: str
    roles: frozenset[Role]
    scopes: tuple[str, ...] = ()
    kind: Kind = Kind.API_KEY
    # Which key it was, so that what it did can be told from what the principal's other keys did.
    key_id: str | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether every dataset is in scope."""
        return EVERYWHERE in self.scopes

    def reaches(self, dataset_urn: str) -> bool:
        """Whether a dataset is in scope, all versions of it if the scope names none."""
        if EVERYWHERE in self.scopes:
            return True
        names = (dataset_urn, _VERSION.sub("", dataset_urn))
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.scopes)


# A program on this machine, where nobody has asked for more: whoever can run one can read the files as well.
LOCAL: Final = Principal("local", frozenset({Role.ADMIN}), (EVERYWHERE,), Kind.LOCAL)


def may(principal: Principal, permission: Permission, dataset_urn: str | None = None) -> bool:
    """Whether someone may do something, to a dataset if one is named."""
    if permission not in permissions_of(principal.roles):
        return False
    return dataset_urn is None or principal.reaches(dataset_urn)


def require(principal: Principal | None, permission: Permission, dataset_urn: str | None = None) -> Principal:
    """Return the principal if it may do this. Raises `UnauthenticatedError` or `ForbiddenError`."""
    if principal is None:
        raise UnauthenticatedError(
            f"{permission}: who calls is not known; send 'Authorization: Bearer' with a key "
            "(commands: HEADGATE_API_KEY, or --api-key-file)"
        )
    if permission not in permissions_of(principal.roles):
        held = ", ".join(sorted(principal.roles)) or "none"
        raise ForbiddenError(
            f"{principal.name}: may not {permission}{_on(dataset_urn)}; its roles are {held}, and this needs one of "
            f"{', '.join(roles_with(permission))}"
        )
    if dataset_urn is not None and not principal.reaches(dataset_urn):
        scopes = ", ".join(principal.scopes) or "none"
        raise ForbiddenError(
            f"{principal.name}: may {permission}, but not on {dataset_urn[:120]}; its scopes are {scopes}"
        )
    return principal


def checked_scopes(given: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of dataset names, each once. Raises `InvalidPayloadError` for what is none."""
    scopes = tuple(dict.fromkeys(given))
    if len(scopes) > SCOPES_MAX:
        raise InvalidPayloadError(f"scopes: {len(scopes)} patterns; give at most {SCOPES_MAX}")
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise InvalidPayloadError(
                f"scope {scope[:60]!r}: write a dataset's name, with * for any characters and ? for one, such as "
                "urn:dp:orders:*"
            )
    return scopes


def covers(holder: Principal, roles: Iterable[Role], scopes: Iterable[str]) -> bool:
    """Whether someone has at least these rights, and so may give them to others."""
    if not permissions_of(roles) <= permissions_of(holder.roles):
        return False
    # A pattern without wildcards of its own is a name, and only such a one can be inside another.
    return holder.is_unlimited or all(
        scope in holder.scopes or ("*" not in scope and "?" not in scope and holder.reaches(scope)) for scope in scopes
    )


def _on(dataset_urn: str | None) -> str:
    return "" if dataset_urn is None else f" on {dataset_urn[:120]}"
