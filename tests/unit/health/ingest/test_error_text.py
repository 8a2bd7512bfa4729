"""Error text of outside tools: what is masked, and what stays readable."""

from __future__ import annotations

import pytest

from headgate.health.ingest.error_text import MESSAGE_LENGTH_MAX, error_text


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("Binder Error: column \"a\" not found", "Binder Error: column \"a\" not found"),
        ("\x1b[31mFAIL\x1b[0m 3\x00 rows\nline 2", "FAIL 3  rows\nline 2"),
        ("cannot connect to postgres://shop:s3cret@db:5432/x", "cannot connect to postgres://shop:***@db:5432/x"),
        ("host=db user=shop password=s3cret dbname=x", "host=db user=shop password=*** dbname=x"),
        ("{'user': 'x', 'api_key': 'abc def'}", "{'user': 'x', 'api_key': ***}"),
        ("aws_secret_access_key = abc/def+1, region = eu", "aws_secret_access_key = ***, region = eu"),
        ("401 for Authorization: Bearer eyJhbGciOi.abc.def", "401 for Authorization: Bearer ***"),
        ("AKIAIOSFODNN7EXAMPLE is not allowed", "*** is not allowed"),
        ("the primary key of tokens is missing", "the primary key of tokens is missing"),
    ],
)  # fmt: skip
def test_error_text__credentials__are_masked_and_the_rest_stays(given: str, stored: str) -> None:
    assert error_text(given) == stored


def test_error_text__megabytes__are_bounded() -> None:
    assert len(error_text("password=" * 1_000_000)) <= MESSAGE_LENGTH_MAX
