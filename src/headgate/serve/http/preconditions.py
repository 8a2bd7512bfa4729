"""Preconditions of changes: the ETag that a thing has, and the If-Match that a caller gives back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from headgate.errors import InvalidPayloadError, PreconditionFailedError, VersionConflictError

T = TypeVar("T")

_TAGS_MAX: Final = 10
_TAG: Final = re.compile(r'(W/)?"([^"]{0,64})"|([0-9]{1,18})')


def etag(version: int) -> dict[str, str]:
    """Return the header that names a version of a thing."""
    return {"etag": f'"{version}"'}


def if_match(headers: Mapping[str, str]) -> list[int] | None:
    """Return the versions that a caller will change; None for any. Raises `InvalidPayloadError` for what is no tag.

    Tags are compared as strong ones (RFC 9110): a weak one, or one that is none of ours, never matches.
    """
    given = headers.get("if-match", "*").strip()
    if given == "*":
        return None
    tags = [each.strip() for each in given.split(",")]
    if len(tags) > _TAGS_MAX:
        raise InvalidPayloadError(f"If-Match: {len(tags)} tags; give at most {_TAGS_MAX}")
    versions = []
    for tag in tags:
        match = _TAG.fullmatch(tag)
        if match is None:
            raise InvalidPayloadError(f"If-Match {tag[:40]!r}: give back the ETag of the thing, which is its version")
        digits = match.group(2) if match.group(3) is None else match.group(3)
        if match.group(1) is None and digits.isascii() and digits.isdecimal() and len(digits) <= 18:
            versions.append(int(digits))
    return versions


def matching(headers: Mapping[str, str], expected_version: int | None, change: Callable[[int | None], T]) -> T:
    """Return what a change returns that is given the version it is to be of, from the header or else from the body.

    Raises `PreconditionFailedError` if the thing is at another version than the header says; one that the body says
    is left as the `VersionConflictError` that it is.
    """
    versions = if_match(headers)
    if versions is None:
        return change(expected_version)
    if expected_version is not None and expected_version not in versions:
        raise InvalidPayloadError(f"If-Match says {versions} and expected_version {expected_version}; give one of them")
    failed: VersionConflictError | None = None
    for version in versions:
        try:
            return change(version)
        except VersionConflictError as exc:
            failed = exc
    if failed is None:
        raise PreconditionFailedError("If-Match: no tag of it can be the thing's; read it again")
    raise PreconditionFailedError(failed.message, current=failed.current) from failed
