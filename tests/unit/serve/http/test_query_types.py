"""Query parameters: lax conversion of text does not accept what the OpenAPI document refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import pytest
from msgspec import Meta, Struct

from headgate.errors import InvalidPayloadError
from headgate.serve.http.operations import _query


class _Query(Struct, forbid_unknown_fields=True):
    since: Annotated[datetime, Meta(tz=True, examples=["2026-03-03T06:00:00Z"])] | None = None
    version: int | None = None
    name: Annotated[str, Meta(description="Any text")] | None = None
    tag: list[str] = []


def test_query__time_and_number_and_list__are_converted() -> None:
    read = _query(b"since=2026-03-03T06:00:00Z&version=7&tag=a&tag=b", _Query)

    assert read == _Query(datetime(2026, 3, 3, 6, tzinfo=UTC), 7, None, ["a", "b"])


@pytest.mark.parametrize("sent", [b"since=0.5", b"since=1772517600", b"since=null"])
def test_query__time_as_number_or_null__is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidPayloadError, match=r"since .*write a time such as"):
        _query(sent, _Query)


def test_query__null__is_refused_for_a_number_and_text_for_a_name() -> None:
    assert _query(b"name=null", _Query).name == "null"
    with pytest.raises(InvalidPayloadError, match="version is null; omit it"):
        _query(b"version=null", _Query)
