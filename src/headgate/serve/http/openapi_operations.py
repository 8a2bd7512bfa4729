"""What the server's OpenAPI document says of the API's operations, from the structs that they take and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Litestar
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation as SpecOperation
from litestar.openapi.spec import Schema

from headgate.serve.http.problem import MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from headgate.serve.http.operations import Operation

Document = dict[str, Any]
_REFERENCE: Final = "#/components/schemas/"
_JSON: Final = "application/json"


class OperationDocuments:
    """Describes operations, and puts the schemas of their structs where the descriptions refer to them."""

    def __init__(self, operations: Sequence[Operation], namespace: str = "") -> None:
        kinds = list(dict.fromkeys([Problem, *(kind for each in operations for kind in _kinds(each))]))
        reference = f"{_REFERENCE}{namespace}{{name}}"
        schemas, components = msgspec.json.schema_components(kinds, ref_template=reference)
        self._components = {f"{namespace}{name}": schema for name, schema in components.items()}
        self._namespace = namespace
        self._schemas = dict(zip(kinds, schemas, strict=True))
        self._app: Litestar | None = None

    def handler(self, path: str, operation: Operation) -> HTTPRouteHandler:
        """Return what makes a function the documented handler of an operation, at its path for the framework."""
        document = self._document(operation)
        return _Handler(
            path,
            http_method=[HttpMethod(operation.method)],
            status_code=HTTPStatus.OK,
            documents=self,
            operation_id=document["operationId"],
            operation_class=self._operation_class(document),
        )

    def registered(self, app: Litestar) -> None:
        """Remember which application's document it is."""
        self._app = app

    def _operation_class(self, document: Document) -> type[SpecOperation]:
        documents = self

        class Described(SpecOperation):
            def to_schema(self) -> Document:
                # A document is written in the order of its specification, operations before schemas.
                documents._add_schemas()
                return document

        return Described

    def _add_schemas(self) -> None:
        if self._app is not None and self._app.openapi_schema.components.schemas is not None:
            verbatim = {name: _Verbatim(schema) for name, schema in self._components.items()}
            self._app.openapi_schema.components.schemas.update(verbatim)

    def _document(self, operation: Operation) -> Document:
        words = [each for each in operation.path.split("/")[1:] if not each.startswith("{")]
        document: Document = {
            "operationId": ".".join([*words, operation.method.lower()]),
            "summary": operation.summary,
            "tags": [words[0]],
            "parameters": [
                *_path_parameters(operation),
                *self._query_parameters(operation),
                *_header_parameters(operation),
            ],
            "responses": self._responses(operation),
        }
        if operation.description:
            document["description"] = operation.description
        if "{" in operation.path:
            # An operation on one thing and one on all of them have the same words.
            last = ["one"] if operation.path.endswith("}") and len(words) > 1 else []
            document["operationId"] = ".".join([words[0], "one", *words[1:], *last, operation.method.lower()])
        forms = self._body_forms(operation)
        if forms:
            document["requestBody"] = {"required": _is_required(operation), "content": forms}
        return document

    def _body_forms(self, operation: Operation) -> Document:
        forms = dict(operation.body_forms)
        if operation.body is not None:
            forms[_JSON] = operation.body
        return {media: self._content(kind) for media, kind in forms.items()}

    def _content(self, kind: Any) -> Document:  # noqa: ANN401 - a type
        return {"schema": self._schemas[kind]}

    def _responses(self, operation: Operation) -> Document:
        responses: Document = {}
        for status, kind in operation.answers.items():
            responses[str(status)] = {"description": HTTPStatus(status).phrase}
            if kind is not None:
                media = MEDIA_TYPE if kind is Problem else operation.answer_media
                responses[str(status)]["content"] = {media: self._content(kind)}
        problem = {"description": "A problem", "content": {MEDIA_TYPE: self._content(Problem)}}
        return {**responses, "default": problem}

    def _query_parameters(self, operation: Operation) -> list[Document]:
        schema: Mapping[str, Any] = self._components[f"{self._namespace}{operation.query.__name__}"]
        required = schema.get("required", ())
        return [
            {"name": name, "in": "query", "required": name in required, "schema": described}
            for name, described in schema["properties"].items()
        ]


def _kinds(operation: Operation) -> list[Any]:
    kinds = [operation.query, operation.body, *operation.body_forms.values(), *operation.answers.values()]
    return [kind for kind in kinds if kind is not None]


def _path_parameters(operation: Operation) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in operation.template.names
    ]


def _header_parameters(operation: Operation) -> list[Document]:
    wanted = dict(operation.headers)
    if HTTPStatus.PRECONDITION_FAILED in operation.answers:
        wanted["If-Match"] = "The ETag of what is to be changed; 412 if it is not that any more."
    if operation.repeatable:
        wanted["Idempotency-Key"] = "A word of the caller's own: sent again, the request is answered as the first time."
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
        for name, about in wanted.items()
    ]


def _is_required(operation: Operation) -> bool:
    if operation.body is None:
        return True
    return any(field.required for field in msgspec.structs.fields(operation.body))


class _Handler(HTTPRouteHandler):
    """A handler that tells its documents where they belong."""

    def __init__(self, path: str, *, documents: OperationDocuments, **more: Any) -> None:  # noqa: ANN401
        super().__init__(path, **more)
        self._documents = documents

    def on_registration(self, app: Litestar) -> None:
        super().on_registration(app)
        self._documents.registered(app)


class _Verbatim(Schema):
    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document

    def to_schema(self) -> Document:
        return self._document
