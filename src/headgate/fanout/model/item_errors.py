"""Item errors: the failed items of a chunk with their errors, as its row stores them.

A row stores the errors of the first failed items in full. Of the others it stores the indexes, under one error for each
fingerprint, so that a chunk with many failed items fits into a row and every failed item can still be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.rows import ERROR_CHARS_MAX, Chunk

ERRORS_MAX: Final = 1000
# Errors that stand for further items; further ones are distinguished by their class only.
FURTHER_ERRORS_MAX: Final = 100
UNNAMED: Final = "Error"
_CLASS: Final = re.compile(r"[^\W\d][\w.]*")


class ItemError(Struct, frozen=True):
    """A failed item, by its index within the fan-out, and its error."""

    index: int
    error_class: str
    message: str
    fingerprint: str


class _FurtherErrors(Struct, frozen=True):
    """Items that failed with similar errors, and one of these errors."""

    error: str
    items: list[int]


def stored_errors(errors: Mapping[int, str]) -> dict[str, str | None]:
    """Return the attributes of a chunk's row for these errors."""
    if not errors:
        return dict.fromkeys(("item_errors", "further_item_errors"))
    ordered = sorted(errors.items())
    first = {str(index): _text(text) for index, text in ordered[:ERRORS_MAX]}
    further: dict[str, _FurtherErrors] = {}
    for index, text in ordered[ERRORS_MAX:]:
        name, message = parsed_error(text)
        known = fingerprint(name, message)
        if known not in further and len(further) >= FURTHER_ERRORS_MAX:
            known, text = name, name
        further.setdefault(known, _FurtherErrors(_text(text), [])).items.append(index)
    return {
        "item_errors": msgspec.json.encode(first).decode() if first else None,
        "further_item_errors": msgspec.json.encode(list(further.values())).decode() if further else None,
    }


def error_texts(chunk: Chunk) -> dict[int, str]:
    """Return the error of each failed item of a chunk, by index."""
    found: dict[int, str] = {}
    if chunk.item_errors is not None:
        found |= typed_decode.from_json(chunk.item_errors, dict[int, str])
    if chunk.further_item_errors is not None:
        for each in typed_decode.from_json(chunk.further_item_errors, list[_FurtherErrors]):
            found |= dict.fromkeys(each.items, each.error)
    return found


def item_errors(chunk: Chunk) -> Iterator[ItemError]:
    """Yield the failed items of a chunk."""
    known: dict[str, tuple[str, str, str]] = {}
    for index, text in error_texts(chunk).items():
        if text not in known:
            name, message = parsed_error(text)
            known[text] = (name, message, fingerprint(name, message))
        yield ItemError(index, *known[text])


def parsed_error(text: str) -> tuple[str, str]:
    """Return the class and the message of an error, as in `ValueError: bad item`."""
    name, separator, message = text.partition(":")
    if separator and _CLASS.fullmatch(name):
        return name, message.strip()
    return (text, "") if _CLASS.fullmatch(text) else (UNNAMED, text)


def _text(text: str) -> str:
    """Return the text truncated and with lone surrogates replaced, so that it can be stored."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
