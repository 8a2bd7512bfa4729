"""Problem errors: the error class of a problem document, so that a caller of the API catches what the server raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headgate.errors import (
    ConflictError,
    FatalError,
    HeadgateError,
    NotFoundError,
    TransientError,
    UserError,
)

_FAMILIES: Final[Mapping[int, type[HeadgateError]]] = {
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: TransientError,
    503: TransientError,
}
_SERVER_ERROR: Final = 500


def error_of(status: int, code: str, detail: str) -> HeadgateError:
    """Return the error of a problem. A code without a class here has that of its status, with the code."""
    known = {kind.code: kind for kind in _subclasses(HeadgateError) if "code" in vars(kind)}
    family = known.get(code) or _FAMILIES.get(status) or (FatalError if status >= _SERVER_ERROR else UserError)
    raised: type[HeadgateError] = family
    if family.code != code:
        raised = type(family.__name__, (family,), {"code": code})
    return raised(detail)


def _subclasses(kind: type[HeadgateError]) -> Iterator[type[HeadgateError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
