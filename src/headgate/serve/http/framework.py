"""Adapters to the web framework, shared by API operations and user routes.

Both match undecoded paths themselves, and describe themselves for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from litestar.handlers import HTTPRouteHandler

from headgate.durable.http.openapi import Description

# A path parameter that matches everything. No declared parameter can have this name.
CATCH_ALL: Final = "{-:path}"


def raw_path(scope: Any) -> str:  # noqa: ANN401 - of any kind of connection
    """Return the undecoded path, or an encoded form of the decoded one if the server does not provide it."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


class DescribedHandler(HTTPRouteHandler):
    """A route handler with the OpenAPI description of everything it serves.

    The framework's own document has no part in it: it knows only catch-all paths.
    """

    def __init__(self, paths: str | Sequence[str], *, describe: Callable[[], Description], **more: Any) -> None:  # noqa: ANN401 - the framework's
        super().__init__(paths, include_in_schema=False, **more)
        self.describe = describe
