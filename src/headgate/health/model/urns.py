"""Identifiers: dataset URNs `urn:dp:{domain}:{name}[:v{n}]`, column URNs `urn:col:{dataset}:{column}`, evidence ids."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from headgate.errors import InvalidIdError

PREFIX: Final = "urn:dp:"
COLUMN_PREFIX: Final = "urn:col:"
# Leaves room in a sort key of 1,024 bytes for a timestamp and a signal type.
LENGTH_MAX: Final = 512
# Without '#', the separator in keys, and without characters that need quoting in a path or a shell.
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
    """Return a valid dataset URN, with or without a version. Raises `InvalidIdError`."""
    if not is_dataset_urn(given):
        raise InvalidIdError(
            f"dataset {given[:60]!r}: Invalid dataset URN format; write urn:dp:DOMAIN:NAME or urn:dp:DOMAIN:NAME:v1, "
            f"of letters, digits and . _ ~ + @ -, at most {LENGTH_MAX} characters"
        )
    return given


def is_dataset_urn(text: str) -> bool:
    """Whether a text is a valid dataset URN."""
    return len(text) <= LENGTH_MAX and _DATASET.fullmatch(text) is not None


def version_of(urn: str) -> int | None:
    """Return the version suffix of a dataset URN, or None."""
    found = _VERSION.search(urn)
    return int(found.group(1)) if found else None


def unversioned(urn: str) -> str:
    """Return a dataset URN without its version."""
    return _VERSION.sub("", urn)


def column_urn(dataset: str, column: str) -> str:
    """Return the URN of a column. Raises `InvalidIdError` for an invalid dataset or column."""
    if len(column) > LENGTH_MAX or not _COLUMN.fullmatch(column):
        raise InvalidIdError(
            f"column {column[:60]!r} of {dataset}: use a name without spaces, ':' and '#', at most {LENGTH_MAX} long"
        )
    return f"{COLUMN_PREFIX}{dataset_urn(dataset)}:{column}"


def column(urn: str) -> Column:
    """Return the dataset and column of a column URN. Raises `InvalidIdError`."""
    body, separator, name = urn.removeprefix(COLUMN_PREFIX).rpartition(":")
    if not urn.startswith(COLUMN_PREFIX) or not separator:
        raise InvalidIdError(f"column {urn[:80]!r}: write urn:col:urn:dp:DOMAIN:NAME:v1:COLUMN")
    column_urn(body, name)
    return Column(body, name)


def is_evidence_id(given: str) -> bool:
    """Whether a text is an evidence id: `evd-` and a ULID."""
    return _EVIDENCE.fullmatch(given) is not None


def evidence_id(given: str) -> str:
    """Return a valid evidence id. Raises `InvalidIdError`."""
    if not is_evidence_id(given):
        raise InvalidIdError(
            f"evidence_id {given[:40]!r}: write evd- and a ULID of 26 capital letters and digits, "
            "or leave it out to have one generated"
        )
    return given
