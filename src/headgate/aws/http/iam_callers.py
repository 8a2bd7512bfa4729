"""IAM callers: the principal of a request whose signature API Gateway has verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.auth.principals import EVERYWHERE, CredentialKind, Principal
from headgate.auth.roles import Role
from headgate.errors import UnauthenticatedError

# What an identity may call is granted in IAM, route by route.
_ROLES: Final = frozenset({Role.SERVICE})


def iam_caller(event: Mapping[str, Any]) -> Principal:
    """Return the IAM identity that signed a request. Raises `UnauthenticatedError` if API Gateway verified none."""
    authorizer = event.get("requestContext", {}).get("authorizer") or {}
    arn = (authorizer.get("iam") or {}).get("userArn")
    if not arn:
        raise UnauthenticatedError(
            "no IAM identity: sign the request with AWS Signature Version 4; the routes of this API need the "
            "authorization type AWS_IAM"
        )
    return Principal(str(arn), _ROLES, (EVERYWHERE,), CredentialKind.IAM)
