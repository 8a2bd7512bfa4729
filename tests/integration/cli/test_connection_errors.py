"""Errors of the connection to a server name its address, and never the password in it."""

from __future__ import annotations

import pytest

from headgate.cli.connection import Connection, shown_url
from headgate.errors import HeadgateError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8400", "http://127.0.0.1:8400"),
        ("https://ann:secret@pipes.example/x", "https://pipes.example/x"),
        ("https://ann:se/cr@et@pipes.example", "https://pipes.example"),
    ],
)
def test_shown_url__with_a_password__is_without_it(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("address", ["http://ann:secret@127.0.0.1:1", "http://ann:secret@127.0.0.1:none"])
def test_connection__refused_or_invalid__is_named_without_the_password(address: str) -> None:
    with pytest.raises(HeadgateError) as refused:
        Connection(address).request("GET", "/workers", query={})
    assert "secret" not in refused.value.message
    assert "127.0.0.1" in refused.value.message
