"""Page cursors: signed positions that are valid for one query only."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from headgate.errors import CursorError, SignatureError
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Query
from headgate.store.model.values import Item


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    query: str
    position: dict[str, str | int]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Payload)


class Cursors:
    """Creates and verifies cursors. A position holds key attributes, so that any backend can resume from it."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def after(self, query: Query, last: Item) -> str:
        """Return the cursor that resumes `query` after the item `last`."""
        position = {name: last[name] for name in _position_names(query)}
        return self._keyring.sign(Purpose.CURSOR, _encoder.encode(_Payload(_fingerprint(query), position)))

    def position(self, query: Query) -> dict[str, Any] | None:
        """Return the key attributes that `query.cursor` resumes after, or None for the first page.

        Raises `CursorError` for a cursor that was altered or belongs to another query.
        """
        if query.cursor is None:
            return None
        try:
            payload = _decoder.decode(self._keyring.verify(Purpose.CURSOR, query.cursor))
        except (SignatureError, msgspec.DecodeError) as exc:
            raise CursorError(f"{exc}; start again without a cursor") from exc
        if payload.query != _fingerprint(query):
            raise CursorError("cursor belongs to another query; use it with the same table, index, range and order")
        return dict(payload.position)


def _position_names(query: Query) -> tuple[str, ...]:
    names = query.table.key_names
    if query.index is None:
        return names
    return tuple(dict.fromkeys([*(key.name for key in query.table.index(query.index).attributes()), *names]))


def _fingerprint(query: Query) -> str:
    # The limit may differ between pages; everything that determines the next items may not.
    shape = (query.table.name, query.index, query.partition, query.sort, query.descending)
    return hashlib.blake2b(_encoder.encode(shape), digest_size=9).hexdigest()
