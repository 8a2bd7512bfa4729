"""The page of errors, with their codes and exit codes."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generator.markdown import NOTE, cell
from headgate import errors
from headgate import extras as _extras
from headgate.notify import messages as _messages
from headgate.pipelines.definition import problems as _problems


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTE,
        "Every error has a stable code and belongs to a family that determines how to react. The same code",
        "appears in HTTP problem documents and on standard error of the command line.",
        "",
        "| Code | Class | Family | HTTP | gRPC | Exit | Meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    families: dict[type[errors.HeadgateError], str] = {
        errors.UserError: "fix the input",
        errors.ConflictError: "re-read, then decide",
        errors.TransientError: "retry with backoff",
        errors.FatalError: "stop, page a human",
    }
    # Imported for their errors, so that the page does not depend on other imports.
    assert _messages.__name__
    assert _problems.__name__
    assert _extras.__name__
    for family, remedy in families.items():
        for kind in _with_subclasses(family):
            meaning = (kind.__doc__ or "").splitlines()[0]
            cells = (f"`{kind.code}`", kind.__name__, remedy, kind.http_status, kind.grpc_status, kind.exit_code)
            lines.append(f"| {' | '.join(map(str, cells))} | {cell(meaning)} |")
    return "\n".join([*lines, ""])


def _with_subclasses(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    """Yield a class and its public subclasses of Headgate, at any depth, in the order of their definition.

    Of subclasses in different modules that order depends on what was imported first, so modules are sorted.
    """
    if kind.__module__.startswith("headgate.") and not kind.__name__.startswith("_"):
        yield kind
        for each in sorted(kind.__subclasses__(), key=lambda each: each.__module__):
            yield from _with_subclasses(each)
