"""Names of datasets and columns: `urn:dp:{domain}:{name}[:v{n}]`, and `urn:col:{dataset}:{column}`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from headgate.errors import InvalidIdError

PREFIX: Final = "urn:dp:"
COLUMN_PREFIX: Final = "urn:col:"
# Room is left in a sort key of 1,024 bytes for a moment and a signal type beside it.
LENGTH_MAX: Final = 512
# No '#', which divides the parts of keys, and nothing that a path or a shell would have to quote.
_DATASET: Final = re.compile(r"urn:dp(:[A-Za-z0-9][A-Za-z0-9._~+@-]*){1,16}")
_COLUMN: Final = re.compile(r"[A-Za-z0-9_$][^\s:#\x00-\x1f\x7f]*")
_EVIDENCE: Final = re.compile(r"evd-[0-7][0-9A-HJKMNP-TV-Z]{25}")
_VERSION: Final = re.compile(r":v([1-9]\d{0,8})\Z")


class Column(NamedTuple):
    """A column of a dataset."""

    dataset_urn: str
    name: str


@lru_cache(maxsize=16_384)
def dataset_urn(given: str) -> str:
    """Return a dataset's name if it is one, with or without a version. Raises `InvalidIdError`."""
    if not is_dataset_urn(given):
        raise InvalidIdError(
            f"dataset {given[:60]!r}: Invalid dataset URN format; write urn:dp:DOMAIN:NAME or urn:dp:DOMAIN:NAME:v1, "
            f"of letters, digits and . _ ~ + @ -, at most {LENGTH_MAX} characters"
        )
    return given


def is_dataset_urn(text: str) -> bool:
    """Whether a text can be the name of a dataset."""
    return len(text) <= LENGTH_MAX and _DATASET.fullmatch(text) is not None


def version_of(urn: str) -> int | None:
    """Return the version that a dataset's name ends in, or None."""
    found = _VERSION.search(urn)
    return int(found.group(1)) if found else None


def unversioned(urn: str) -> str:
    """Return a dataset's name without its version."""
    return _VERSION.sub("", urn)


def column_urn(dataset: str, column: str) -> str:
    """Return the name of a column. Raises `InvalidIdError` for a dataset or a column that cannot be named so."""
    if len(column) > LENGTH_MAX or not _COLUMN.fullmatch(column):
        raise InvalidIdError(
            f"column {column[:60]!r} of {dataset}: use a name without spaces, ':' and '#', at most {LENGTH_MAX} long"
        )
    return f"{COLUMN_PREFIX}{dataset_urn(dataset)}:{column}"


def column(urn: str) -> Column:
    """Return the dataset and column that a column's name stands for. Raises `InvalidIdError`."""
    body, separator, name = urn.removeprefix(COLUMN_PREFIX).rpartition(":")
    if not urn.startswith(COLUMN_PREFIX) or not separator:
        raise InvalidIdError(f"column {urn[:80]!r}: write urn:col:urn:dp:DOMAIN:NAME:v1:COLUMN")
    column_urn(body, name)
    return Column(body, name)


def is_evidence_id(given: str) -> bool:
    """Whether a text has the form of an evidence's id: `evd-` and a ULID."""
    return _EVIDENCE.fullmatch(given) is not None


def evidence_id(given: str) -> str:
    """Return an id if it has the form of one. Raises `InvalidIdError`."""
    if not is_evidence_id(given):
        raise InvalidIdError(
            f"evidence_id {given[:40]!r}: write evd- and a ULID of 26 capital letters and digits, "
            "or leave it out and it is made"
        )
    return given
