"""The server's OpenAPI document, made when it is first asked for: to make it takes longer than to start the server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler

from headgate.serve.http.operations import OperationHandler
from headgate.serve.runtime.thread_pool import WorkPool

PATH: Final = "/api/openapi.json"
MEDIA_TYPE: Final = "application/vnd.oai.openapi+json"
_BEARER: Final = SecurityScheme(type="http", scheme="bearer", description="An API key, or a token of the issuer.")


def document_route(
    described: Sequence[ControllerRouterHandler], pool: WorkPool, *, version: str
) -> ControllerRouterHandler:
    """Return what answers with the document that describes these routes."""
    document = _Document(described, version)

    @get(["/api", PATH], include_in_schema=False)
    async def openapi() -> Response[bytes]:
        return Response(await pool.run(document.content), media_type=MEDIA_TYPE)

    return openapi


class _Document:
    """The document. Safe to use from many threads, of which one makes it."""

    def __init__(self, described: Sequence[ControllerRouterHandler], version: str) -> None:
        self._described = described
        self._version = version
        self._lock = threading.Lock()
        self._content: bytes | None = None

    def content(self) -> bytes:
        """Return it as JSON."""
        with self._lock:
            if self._content is None:
                self._content = msgspec.json.encode(self._application().openapi_schema.to_schema())
            return self._content

    def _application(self) -> Litestar:
        """Return an application that is there to be described: the framework reads its routes, and nobody asks it."""
        declared: list[ControllerRouterHandler] = []
        for each in self._described:
            if isinstance(each, OperationHandler):
                declared += each.documented()
            elif not isinstance(each, HTTPRouteHandler) or each.include_in_schema is not False:
                declared.append(each)
        return Litestar(
            declared,
            openapi_config=OpenAPIConfig(
                title="Headgate",
                version=self._version,
                components=Components(security_schemes={"bearer": _BEARER}),
                # Either with a key or token, or, for programs on this machine, without.
                security=[{"bearer": []}, {}],
            ),
            logging_config=None,
        )
