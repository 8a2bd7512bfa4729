"""OpenAPI document: built on the first request, because building takes longer than starting the server."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from litestar import Response, get
from litestar.types import ControllerRouterHandler

from headgate.durable.http.openapi import document
from headgate.serve.http.framework import DescribedHandler
from headgate.serve.runtime.thread_pool import WorkPool

PATH: Final = "/api/openapi.json"
MEDIA_TYPE: Final = "application/vnd.oai.openapi+json"
_BEARER: Final = {"type": "http", "scheme": "bearer", "description": "An API key, or an OIDC token."}


def document_route(
    described: Sequence[ControllerRouterHandler], pool: WorkPool, *, version: str
) -> ControllerRouterHandler:
    """Return the route of the document that describes `described`."""
    building = threading.Lock()

    @functools.cache
    def content() -> bytes:
        return msgspec.json.encode(server_document(described, version))

    def built_once() -> bytes:
        with building:
            return content()

    @get(["/api", PATH], include_in_schema=False)
    async def openapi() -> Response[bytes]:
        return Response(await pool.run(built_once), media_type=MEDIA_TYPE)

    return openapi


def server_document(described: Sequence[ControllerRouterHandler], version: str) -> dict[str, Any]:
    """Return the document of all handlers that describe themselves."""
    parts = [each.describe() for each in described if isinstance(each, DescribedHandler)]
    made = document(parts, "Headgate", version)
    made["components"]["securitySchemes"] = {"bearer": _BEARER}
    # Bearer, or none for local programs.
    return {**made, "security": [{"bearer": []}, {}]}
