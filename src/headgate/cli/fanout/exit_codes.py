"""Exit codes of the commands about fan-outs, which tell programs how a fan-out ended and not only whether it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from headgate.errors import ConflictError, HeadgateError, NotFoundError, UserError

FAILED: Final = 2  # It ended PARTIAL, FAILED or CANCELLED, or something is not as it should be.
STALLED: Final = 3
USAGE: Final = 5
# What is raised for an option that does not exist and the like, wherever this version of the library keeps it.
_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]


class FanoutGroup(TyperGroup):
    """Commands that end with 5 if what they were given is wrong, because 2 and 3 say how a fan-out is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a class that the library hides
        with _exits():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        with _exits():
            return super().invoke(ctx)


@contextmanager
def _exits() -> Iterator[None]:
    try:
        yield
    except NotFoundError:
        raise
    except (UserError, ConflictError) as exc:
        raise _with_exit_code(exc) from exc
    except _UsageError as exc:
        exc.exit_code = USAGE
        raise


def _with_exit_code(error: HeadgateError) -> HeadgateError:
    kind = type(error)
    made: type[HeadgateError] = type(kind.__name__, (kind,), {"exit_code": USAGE})
    return made(error.message)


def exit_code(status: str) -> int:
    """Return the exit code of a fan-out that has ended so."""
    return 0 if status == "SUCCEEDED" else FAILED
