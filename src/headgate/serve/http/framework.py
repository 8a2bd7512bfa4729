"""Adapters to the web framework, shared by API operations and user routes.

Both match undecoded paths themselves, and give the framework declared paths only to generate the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation, Schema

from headgate.durable.http.paths import PathTemplate, SegmentKind

Document = dict[str, Any]
# A path parameter that matches everything. No declared parameter can have this name.
CATCH_ALL: Final = "{-:path}"
_FORMS: Final = {SegmentKind.TEXT: "{}", SegmentKind.PARAMETER: "{{{}:str}}", SegmentKind.TAIL: "{{{}:path}}"}


def framework_path(template: PathTemplate) -> str:
    """Return a path template in the framework's syntax."""
    return "".join(f"/{_FORMS[each.kind].format(each.text)}" for each in template.segments)


def raw_path(scope: Any) -> str:  # noqa: ANN401 - of any kind of connection
    """Return the undecoded path, or an encoded form of the decoded one if the server does not provide it."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


class DocumentSchemas:
    """Schemas and operations that are written verbatim into the OpenAPI document of an application."""

    def __init__(self, schemas: Mapping[str, Document]) -> None:
        self._schemas = {name: _VerbatimSchema(schema) for name, schema in schemas.items()}
        # Set when a `DocumentedHandler` is registered.
        self.app: Litestar | None = None

    def operation_class(self, document: Document) -> type[Operation]:
        """Return an operation class that renders `document`."""
        schemas = self

        class Described(Operation):
            def to_schema(self) -> Document:
                # The framework renders operations before schemas, so the schemas can still be added here.
                schemas._add()
                return document

        return Described

    def _add(self) -> None:
        if self.app is not None and self.app.openapi_schema.components.schemas is not None:
            self.app.openapi_schema.components.schemas.update(self._schemas)


class DocumentedHandler(HTTPRouteHandler):
    """A route handler that reports its application to its schemas."""

    def __init__(self, path: str, *, schemas: DocumentSchemas, **more: Any) -> None:  # noqa: ANN401 - the framework's
        super().__init__(path, **more)
        self._schemas = schemas

    def on_registration(self, app: Litestar) -> None:
        super().on_registration(app)
        self._schemas.app = app


class _VerbatimSchema(Schema):
    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document

    def to_schema(self) -> Document:
        return self._document
