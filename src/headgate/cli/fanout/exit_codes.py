"""Exit codes of the fan-out commands, which report the outcome of a fan-out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from headgate.cli.help import HelpGroup
from headgate.errors import ConflictError, HeadgateError, NotFoundError, UserError

FAILED: Final = 2  # It ended PARTIAL, FAILED or CANCELLED, or a check failed.
STALLED: Final = 3
USAGE: Final = 5
# click.UsageError; typer does not export it.
_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]


class FanoutGroup(HelpGroup):
    """Command group whose usage errors exit with 5, because 2 and 3 report the outcome of a fan-out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click.Context, which typer does not export
        with _usage_exit_code():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        with _usage_exit_code():
            return super().invoke(ctx)


@contextmanager
def _usage_exit_code() -> Iterator[None]:
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
    raised: type[HeadgateError] = type(kind.__name__, (kind,), {"exit_code": USAGE})
    return raised(error.message)


def exit_code(status: str) -> int:
    """Return the exit code for the final status of a fan-out."""
    return 0 if status == "SUCCEEDED" else FAILED
