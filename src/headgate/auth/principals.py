"""Principals: authenticated callers, and the authorisation check by role and dataset scope."""

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
_VERSION: Final = re.compile(r":v[0-9]+\Z")
# The characters of dataset names and the two wildcards; no brackets, which fnmatch treats as character sets.
_SCOPE: Final = re.compile(r"[A-Za-z0-9._~+@:*?-]{1,512}")


class CredentialKind(enum.StrEnum):
    """The kind of credential a principal was authenticated by."""

    LOCAL = "local"
    API_KEY = "api_key"
    TOKEN = "token"
    # A request that AWS has authenticated.
    IAM = "iam"


class Principal(Struct, frozen=True):
    """An authenticated caller. `scopes` are patterns of dataset names such as `urn:dp:orders:*`; empty: no dataset."""

    name: str
    roles: frozenset[Role]
    scopes: tuple[str, ...] = ()
    kind: CredentialKind = CredentialKind.API_KEY
    # The API key, to tell the actions of a principal's keys apart.
    key_id: str | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether every dataset is in scope."""
        return EVERYWHERE in self.scopes

    def reaches(self, dataset_urn: str) -> bool:
        """Whether a dataset is in scope. A scope without a version covers all versions."""
        if EVERYWHERE in self.scopes:
            return True
        names = (dataset_urn, _VERSION.sub("", dataset_urn))
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.scopes)


# An unauthenticated program on this machine. It has all rights, because it could read the files as well.
LOCAL: Final = Principal("local", frozenset({Role.ADMIN}), (EVERYWHERE,), CredentialKind.LOCAL)


def may(principal: Principal, permission: Permission, dataset_urn: str | None = None) -> bool:
    """Whether a principal has a permission, and the dataset, if given, is in its scope."""
    if permission not in permissions_of(principal.roles):
        return False
    return dataset_urn is None or principal.reaches(dataset_urn)


def require(principal: Principal | None, permission: Permission, dataset_urn: str | None = None) -> Principal:
    """Return the principal if it has the permission. Raises `UnauthenticatedError` or `ForbiddenError`."""
    if principal is None:
        raise UnauthenticatedError(
            f"{permission}: not authenticated; send 'Authorization: Bearer' with a key "
            "(commands: HEADGATE_API_KEY, or --api-key-file)"
        )
    if permission not in permissions_of(principal.roles):
        roles = ", ".join(sorted(principal.roles)) or "none"
        raise ForbiddenError(
            f"{principal.name}: may not {permission}{_on(dataset_urn)}; its roles are {roles}, and this needs one of "
            f"{', '.join(roles_with(permission))}"
        )
    if dataset_urn is not None and not principal.reaches(dataset_urn):
        scopes = ", ".join(principal.scopes) or "none"
        raise ForbiddenError(
            f"{principal.name}: may {permission}, but not on {dataset_urn[:120]}; its scopes are {scopes}"
        )
    return principal


def checked_scopes(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return distinct dataset name patterns. Raises `InvalidPayloadError` for an invalid one."""
    scopes = tuple(dict.fromkeys(patterns))
    if len(scopes) > SCOPES_MAX:
        raise InvalidPayloadError(f"scopes: {len(scopes)} patterns; use at most {SCOPES_MAX}")
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise InvalidPayloadError(
                f"scope {scope[:60]!r}: write a dataset's name, with * for any characters and ? for one, such as "
                "urn:dp:orders:*"
            )
    return scopes


def covers(holder: Principal, roles: Iterable[Role], scopes: Iterable[str]) -> bool:
    """Whether a principal has at least these rights, and so may grant them."""
    if not permissions_of(roles) <= permissions_of(holder.roles):
        return False
    # Only a pattern without wildcards, which is a name, can be contained in another pattern.
    return holder.is_unlimited or all(
        scope in holder.scopes or ("*" not in scope and "?" not in scope and holder.reaches(scope)) for scope in scopes
    )


def _on(dataset_urn: str | None) -> str:
    return "" if dataset_urn is None else f" on {dataset_urn[:120]}"
