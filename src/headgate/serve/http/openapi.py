"""OpenAPI document: built on the first request, because building takes longer than starting the server."""

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
_BEARER: Final = SecurityScheme(type="http", scheme="bearer", description="An API key, or an OIDC token.")


def document_route(
    described: Sequence[ControllerRouterHandler], pool: WorkPool, *, version: str
) -> ControllerRouterHandler:
    """Return the route of the document that describes `described`."""
    document = _Document(described, version)

    @get(["/api", PATH], include_in_schema=False)
    async def openapi() -> Response[bytes]:
        return Response(await pool.run(document.content), media_type=MEDIA_TYPE)

    return openapi


class _Document:
    """Lazily built document. Thread-safe."""

    def __init__(self, described: Sequence[ControllerRouterHandler], version: str) -> None:
        self._described = described
        self._version = version
        self._lock = threading.Lock()
        self._content: bytes | None = None

    def content(self) -> bytes:
        with self._lock:
            if self._content is None:
                self._content = msgspec.json.encode(self._application().openapi_schema.to_schema())
            return self._content

    def _application(self) -> Litestar:
        """Return an application that is never served: the framework only generates the document from its routes."""
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
                # Bearer, or none for local programs.
                security=[{"bearer": []}, {}],
            ),
            logging_config=None,
        )
