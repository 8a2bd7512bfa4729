"""The error class of a problem document."""

from __future__ import annotations

import pytest

from headgate.errors import ConflictError, FatalError, HeadgateError, TransientError, UserError
from headgate.problem_errors import error_of


@pytest.mark.parametrize(
    ("status", "code", "family", "exit_code"),
    [
        (409, "already_started", ConflictError, 3),
        (412, "conflict", ConflictError, 3),
        (422, "update_rejected", UserError, 2),
        (413, "content_too_large", UserError, 2),
        (503, "draining", TransientError, 75),
        (500, "internal", FatalError, 70),
        (500, "nondeterministic", FatalError, 70),
    ],
)
def test_error__problem__keeps_its_code_and_has_the_exit_code_of_its_family(
    status: int, code: str, family: type[HeadgateError], exit_code: int
) -> None:
    error = error_of(status, code, "what went wrong")

    assert isinstance(error, family)
    assert (error.code, error.exit_code, error.message) == (code, exit_code, "what went wrong")
