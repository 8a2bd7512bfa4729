"""Preconditions: ETag and If-Match for optimistic updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from headgate.errors import InvalidPayloadError, PreconditionFailedError, VersionConflictError

T = TypeVar("T")

_TAGS_MAX: Final = 10
# A tag may contain commas: the list is matched tag by tag.
_TAG: Final = re.compile(r'\s*(?:(W/)?"([^"]{0,64})"|([0-9]{1,18}))\s*(,|$)')


def etag(version: int) -> dict[str, str]:
    """Return the ETag header of a version."""
    return {"etag": f'"{version}"'}


def if_match(headers: Mapping[str, str]) -> list[int] | None:
    """Return the versions in If-Match; None for any. Raises `InvalidPayloadError` for a malformed tag.

    Comparison is strong (RFC 9110): weak and foreign tags never match.
    """
    header = headers.get("if-match", "*").strip()
    if header == "*":
        return None
    versions = []
    for match in _tags(header):
        digits = match.group(2) if match.group(3) is None else match.group(3)
        if match.group(1) is None and digits.isascii() and digits.isdecimal() and len(digits) <= 18:
            versions.append(int(digits))
    return versions


def _tags(header: str) -> Iterator[re.Match[str]]:
    """Yield the tags of a header. Raises `InvalidPayloadError` for a malformed one, or for too many."""
    position = 0
    for _ in range(_TAGS_MAX):
        tag = _TAG.match(header, position)
        if tag is None:
            fact = header[position:].strip()[:40]
            raise InvalidPayloadError(f"If-Match {fact!r}: send the ETag of the resource, which is its version")
        yield tag
        position = tag.end()
        if not tag.group(4):
            return
    raise InvalidPayloadError(f"If-Match: more than {_TAGS_MAX} tags; send the ETag of the resource")


def matching(headers: Mapping[str, str], expected_version: int | None, change: Callable[[int | None], T]) -> T:
    """Call `change` with the expected version from If-Match, or else from the body.

    A mismatch with If-Match raises `PreconditionFailedError`; one with the body stays a `VersionConflictError`.
    """
    versions = if_match(headers)
    if versions is None:
        return change(expected_version)
    if expected_version is not None and expected_version not in versions:
        raise InvalidPayloadError(
            f"If-Match is {versions} but expected_version is {expected_version}; send one of them"
        )
    failed: VersionConflictError | None = None
    for version in versions:
        try:
            return change(version)
        except VersionConflictError as exc:
            failed = exc
    if failed is None:
        raise PreconditionFailedError("If-Match: no tag can match; read the resource again")
    raise PreconditionFailedError(failed.message, current=failed.current) from failed
