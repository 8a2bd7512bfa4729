"""OpenAPI descriptions of API operations, derived from their request and response structs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler

from headgate.serve.http.framework import Document, DocumentedHandler, DocumentSchemas
from headgate.serve.http.problem import MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from headgate.serve.http.operations import Operation

_REFERENCE: Final = "#/components/schemas/"
_JSON: Final = "application/json"


class OperationDocuments:
    """Builds operation objects and registers the schemas they reference."""

    def __init__(self, operations: Sequence[Operation], namespace: str = "") -> None:
        kinds = list(dict.fromkeys([Problem, *(kind for each in operations for kind in _kinds(each))]))
        reference = f"{_REFERENCE}{namespace}{{name}}"
        schemas, components = msgspec.json.schema_components(kinds, ref_template=reference)
        self._components = {f"{namespace}{name}": schema for name, schema in components.items()}
        self._namespace = namespace
        self._schemas = dict(zip(kinds, schemas, strict=True))
        self._written = DocumentSchemas(self._components)

    def handler(self, path: str, operation: Operation) -> HTTPRouteHandler:
        """Return a route handler that documents an operation at its path."""
        document = self._document(operation)
        return DocumentedHandler(
            path,
            http_method=[HttpMethod(operation.method)],
            status_code=HTTPStatus.OK,
            schemas=self._written,
            operation_id=document["operationId"],
            operation_class=self._written.operation_class(document),
        )

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
            # "one" distinguishes item operations from collection operations with the same words.
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
    parameters = dict(operation.headers)
    if HTTPStatus.PRECONDITION_FAILED in operation.answers:
        parameters["If-Match"] = "The expected ETag; 412 if the resource has changed."
    if operation.repeatable:
        parameters["Idempotency-Key"] = "Client-chosen key: a retry with the same key returns the first response."
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
        for name, about in parameters.items()
    ]


def _is_required(operation: Operation) -> bool:
    if operation.body is None:
        return True
    return any(field.required for field in msgspec.structs.fields(operation.body))
