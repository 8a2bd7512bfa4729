"""If-Match: which versions a header names."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidPayloadError
from headgate.serve.http.preconditions import if_match


@pytest.mark.parametrize(
    ("header", "versions"),
    [
        ("*", None),
        ('"7"', [7]),
        ("7", [7]),
        ('"7", "8"', [7, 8]),
        ('W/"7" , 9', [9]),
        # RFC 9110 allows a comma within a tag.
        ('"a,b", "3"', [3]),
        ('W/",UDK1<6We",         74', [74]),
        ('""', []),
    ],
)
def test_if_match__well_formed__has_versions_of_strong_tags(header: str, versions: list[int] | None) -> None:
    assert if_match({"if-match": header}) == versions


@pytest.mark.parametrize("header", ["", "7,", '"7', "seven", '"7" "8"', ", 7", ",".join("1" * 11)])
def test_if_match__malformed_or_too_long__is_refused(header: str) -> None:
    with pytest.raises(InvalidPayloadError, match="If-Match"):
        if_match({"if-match": header})
