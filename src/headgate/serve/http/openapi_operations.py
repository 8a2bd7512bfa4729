"""OpenAPI descriptions of API operations, derived from their request and response structs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.durable.http.openapi import Description, Document
from headgate.serve.http.parameter_descriptions import parameter_description
from headgate.serve.http.problem import MEDIA_TYPE, Problem
from headgate.serve.http.sse import MEDIA_TYPE as EVENT_STREAM

if TYPE_CHECKING:
    from headgate.serve.http.operations import Operation

_REFERENCE: Final = "#/components/schemas/"
_JSON: Final = "application/json"
# Fields of a server-sent event beside its data.
_EVENT_FIELDS: Final[Document] = {"event": {"type": "string"}, "id": {"type": "string"}}
# Problems that operations do not declare, because they follow from their form.
_PROBLEMS: Final = {
    HTTPStatus.BAD_REQUEST: "The request is malformed, or breaks a rule that its schema cannot state.",
    HTTPStatus.UNAUTHORIZED: "The caller is not authenticated.",
    HTTPStatus.FORBIDDEN: "The caller lacks the permission.",
    HTTPStatus.NOT_FOUND: "There is no such resource.",
    HTTPStatus.CONFLICT: "The state of the resource does not allow the change.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The Idempotency-Key was used with another body.",
}


def describe_operations(operations: Sequence[Operation], namespace: str, path_types: Mapping[str, Any]) -> Description:
    """Return the description of operations. Their schemas are named with the prefix `namespace`.

    `path_types` are the types of path parameters by name; all others are text.
    """
    kinds = [Problem, *path_types.values(), *(kind for each in operations for kind in _kinds(each))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=f"{_REFERENCE}{namespace}{{name}}")
    named = {f"{namespace}{name}": schema for name, schema in components.items()}
    # Annotated types may be unhashable: their annotations hold examples.
    writer = _Writer(dict(zip(map(repr, kinds), schemas, strict=True)), named, path_types)
    paths: dict[str, dict[str, Document]] = {}
    for operation in operations:
        paths.setdefault(operation.template.documented, {})[operation.method.lower()] = writer.operation(operation)
    return Description(paths, named)


def describe_get(path: str, summary: str, answers: Mapping[int, Any], namespace: str) -> Description:
    """Return the description of a GET route without parameters; None is an answer without a body."""
    kinds = [kind for kind in answers.values() if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=f"{_REFERENCE}{namespace}{{name}}")
    writer = _Writer(dict(zip(map(repr, kinds), schemas, strict=True)), {}, {})
    words = [each for each in path.split("/") if each] or ["index"]
    operation = {"operationId": ".".join([*words, "get"]), "summary": summary, "responses": writer.answers(answers)}
    return Description({path: {"get": operation}}, {f"{namespace}{name}": each for name, each in components.items()})


class _Writer:
    def __init__(
        self, schemas: Mapping[str, Document], components: Mapping[str, Document], path_types: Mapping[str, Any]
    ) -> None:
        self._schemas = schemas
        self._components = components
        self._path_types = path_types

    def operation(self, operation: Operation) -> Document:
        document: Document = {
            "operationId": _operation_id(operation),
            "summary": operation.summary,
            "tags": [operation.words[0]] if operation.words else [],
            "parameters": [
                *self._path_parameters(operation),
                *self._query_parameters(operation),
                *_header_parameters(operation),
            ],
            "responses": self._responses(operation),
        }
        if operation.description:
            document["description"] = operation.description
        forms = {**operation.body_forms, **({} if operation.body is None else {_JSON: operation.body})}
        if forms:
            content = {media: self._content(kind) for media, kind in forms.items()}
            document["requestBody"] = {"required": _is_required(operation), "content": content}
        return document

    def _content(self, kind: Any) -> Document:  # noqa: ANN401 - a type
        if isinstance(kind, tuple):
            return {"schema": {"anyOf": [self._schemas[repr(each)] for each in kind]}}
        return {"schema": self._schemas[repr(kind)]}

    def answers(self, answers: Mapping[int, Any], media: str | tuple[str, ...] = _JSON) -> Document:
        """Return the responses by status."""
        responses: Document = {}
        for status, kind in answers.items():
            responses[str(status)] = {"description": HTTPStatus(status).phrase}
            if kind is not None:
                own = (media,) if isinstance(media, str) else media
                types = (MEDIA_TYPE,) if kind is Problem else own
                responses[str(status)]["content"] = {each: self._answer(each, kind) for each in types}
        return responses

    def _answer(self, media: str, kind: Any) -> Document:  # noqa: ANN401 - a type
        content = self._content(kind)
        if media != EVENT_STREAM:
            return content
        data = {"type": "string", "contentMediaType": _JSON, "contentSchema": content["schema"]}
        return {"schema": {"type": "object", "properties": {**_EVENT_FIELDS, "data": data}}}

    def _responses(self, operation: Operation) -> Document:
        problem = {MEDIA_TYPE: self._content(Problem)}
        responses = self.answers(operation.answers, operation.answer_media)
        for status in _implied_problems(operation):
            responses.setdefault(str(int(status)), {"description": _PROBLEMS[status], "content": problem})
        return {**responses, "default": {"description": "A problem", "content": problem}}

    def _path_parameters(self, operation: Operation) -> list[Document]:
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": parameter_description("".join(operation.words[:1]), name),
                "schema": self._schemas[repr(self._path_types[name])]
                if name in self._path_types
                else {"type": "string", "minLength": 1},
            }
            for name in operation.template.names
        ]

    def _query_parameters(self, operation: Operation) -> list[Document]:
        schema = self._schemas[repr(operation.query)]
        schema = self._components[schema["$ref"].removeprefix(_REFERENCE)]
        required = schema.get("required", ())
        return [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": described.get("description")
                or parameter_description("".join(operation.words[:1]), name),
                "schema": _without_null(described),
            }
            for name, described in schema["properties"].items()
        ]


def _kinds(operation: Operation) -> list[Any]:
    answers = [kind for each in operation.answers.values() for kind in (each if isinstance(each, tuple) else (each,))]
    kinds = [operation.query, operation.body, *operation.body_forms.values(), *answers]
    return [kind for kind in kinds if kind is not None]


def _operation_id(operation: Operation) -> str:
    words = operation.words
    if "{" in operation.path:
        # "one" distinguishes item operations from collection operations with the same words.
        last = ["one"] if operation.path.endswith("}") and len(words) > 1 else []
        words = [words[0], "one", *words[1:], *last]
    return ".".join([*words, operation.method.lower()])


def _implied_problems(operation: Operation) -> list[HTTPStatus]:
    has_input = operation.template.names or operation.query.__struct_fields__ or operation.method != "GET"
    implied = [HTTPStatus.BAD_REQUEST] if has_input else []
    implied += [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN]
    implied += [HTTPStatus.NOT_FOUND] if operation.template.names else []
    implied += [HTTPStatus.UNPROCESSABLE_ENTITY] if operation.repeatable else []
    return implied if operation.method == "GET" else [*implied, HTTPStatus.CONFLICT]


def _without_null(schema: Document) -> Document:
    """Return the schema of a parameter that may be omitted: there is no null in a query."""
    forms = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if len(forms) == 1:
        return {**rest, **forms[0]}
    return {**rest, "anyOf": forms} if forms else rest


def _header_parameters(operation: Operation) -> list[Document]:
    parameters: dict[str, tuple[str, Document]] = {name: (about, {}) for name, about in operation.headers.items()}
    if HTTPStatus.PRECONDITION_FAILED in operation.answers:
        parameters["If-Match"] = ("The expected ETag; 412 if the resource has changed.", _ETAGS)
    if operation.repeatable:
        about = "Client-chosen key: a retry with the same key returns the first response."
        parameters["Idempotency-Key"] = (about, _IDEMPOTENCY_KEY)
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string", **schema}}
        for name, (about, schema) in parameters.items()
    ]


_TAG: Final = r'((W/)?"[!#-~]{0,64}"|[0-9]{1,18})'
_ETAGS: Final[Document] = {"pattern": rf"^(\*|{_TAG}(, *{_TAG}){{0,9}})$"}
_IDEMPOTENCY_KEY: Final[Document] = {"pattern": r'^"?[!#-~]([ -~]{0,196}[!#-~])?"?$'}


def _is_required(operation: Operation) -> bool:
    if operation.body is None:
        return not operation.is_body_optional
    return any(field.required for field in msgspec.structs.fields(operation.body))
