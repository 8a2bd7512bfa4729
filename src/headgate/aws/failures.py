"""Failures: under which names errors of ours reach the machine, which retries and catches by name.

Lambda passes on the name of the class. The lifecycle retries what AWS itself calls a passing failure of a function, in
every state; of other names, those states that wait for a token retry none. So what will pass goes by AWS's names.
"""

from __future__ import annotations

from typing import Final

from headgate.errors import ConflictError, HeadgateError, ThrottledError, TransientError

SERVICE: Final = "Lambda.ServiceException"
TOO_MANY_REQUESTS: Final = "Lambda.TooManyRequestsException"


class PassingError(Exception):
    """Something that will pass: the same call may well succeed later."""


class ThrottledCallError(Exception):
    """There were too many calls: the same one may well succeed later."""


PassingError.__name__ = SERVICE
ThrottledCallError.__name__ = TOO_MANY_REQUESTS


def named(error: HeadgateError) -> Exception:
    """Return what to raise for an error, so that the machine knows it: by AWS's name if it passes, or its own."""
    text = f"{error.code}: {error.message}"
    if isinstance(error, ThrottledError):
        return ThrottledCallError(text)
    if isinstance(error, TransientError | ConflictError):
        return PassingError(text)
    return error
